"""`map`: any number of inputs through a model, a bounded number of them at a time.

Nothing is asked once per job. Inputs go in packs; then one long poll waits for the end of one job,
chosen so that about a pack has ended by then, and one lookup reads what has. The choice follows
the model's pace: a quick model is asked for hundreds at a time, a slow one for one. A job that is
overtaken by younger ones is put aside, so that one slow job holds nothing up; every second all that
is in flight is looked at.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, Callable, Iterable
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from typing_extensions import Unpack

from headrace.client.bulk import (
    CHUNK_JOBS,
    GATHER_S,
    Entry,
    Ids,
    Outcome,
    namer,
    packs,
    send,
    statuses,
)
from headrace.client.calls import POLL_S, output
from headrace.client.exchange import Session, exchange
from headrace.client.job import Job, Result
from headrace.client.problems import job_error
from headrace.client.requests import Options, job_line, job_request
from headrace.client.steps import Emit, Plan, Stream, Take, Taken, source_of
from headrace.errors import HeadraceError, InvalidRequest, JobNotFound

In = TypeVar("In")

#: All that is in flight is looked at so often, and a wait for one of several lasts no longer.
SWEEP_S: Final = 1.0
#: A round that takes less asks for more at a time, one that takes more for fewer.
QUICK_S: Final = 0.1
SLOW_S: Final = 0.5
#: How often a job that Redis has lost is submitted again.
RESUBMITS: Final = 1


def map_inputs(
    session: Session,
    model: str,
    inputs: Iterable[In] | AsyncIterable[In],
    *,
    in_flight: int = 1000,
    ordered: bool = True,
    return_errors: bool = False,
    ids: Ids[In] = None,
    content_type: str | None = None,
    version: str | None = None,
    **options: Unpack[Options],
) -> Stream[Result[In]]:
    """Run every input through a model, also while servers are restarted.

    Each input becomes one job under one id, however often it has to be said, and gives one result.
    Memory does not grow with the number of inputs: so many as `in_flight` are held.

    Args:
        session: the server.
        model: the model's name.
        inputs: any number of them, also without end; they are taken as there is room. What they
            raise is raised again once the results of those before are out.
        in_flight: how many are taken and not given back at the most.
        ordered: give the results in the order of the inputs, and not as the jobs end.
        return_errors: give a result with its `error` where an input fails, and do not raise it.
        ids: the id of each job, in step with the inputs, or what makes it from an input. A second
            run with the same ids finds the results of the first while they are kept.
        content_type: what every input is, where its kind does not say so.
        version: only for this version of the model.
        options: as for `submit`, for every job.

    Yields:
        A result for every input.

    Raises:
        JobError: without `return_errors`, a job did not succeed.
        RequestError: without `return_errors`, an input was refused.
        ServerUnreachable: the server was away for longer than `retry_s`. Its jobs go on.
    """
    if in_flight < 1:
        raise InvalidRequest(f"in_flight is {in_flight}", hint="Give 1 or more.")

    def line(entry: Entry) -> bytes:
        return job_line(model, entry.input, content_type, version, options, entry.job_id)

    source, name = source_of(inputs), namer(ids)
    window: _Window[In] = _Window(session, line, ordered=ordered)
    chunk = min(CHUNK_JOBS, max(1, in_flight // 4))
    taken = Taken([], ended=False)
    index = 0
    while not taken.ended or window.busy:
        room = in_flight - window.held
        if not taken.ended and (room >= chunk or not window.open):
            taken = yield Take(source, min(chunk, room), GATHER_S)
            entries = []
            for value in taken.inputs:
                entries.append(Entry(index, value, name(value)))
                index += 1
            yield from window.submit(entries)
        else:
            yield from window.look()
        results = window.released()
        if not return_errors:
            yield from _raising(results)
        elif results:
            yield Emit(results)
    if taken.error is not None:
        raise taken.error


def _raising(results: list[Result[In]]) -> Stream[Result[In]]:
    for at, result in enumerate(results):
        if result.error is not None:
            yield Emit(results[:at])
            raise result.error
    if results:
        yield Emit(results)


class _Window(Generic[In]):
    """What is in flight, and what has ended and is not given back yet."""

    def __init__(self, session: Session, line: Callable[[Entry], bytes], *, ordered: bool) -> None:
        # By index, in the order of their submission, which is about that of their ends.
        self._fresh: dict[int, Entry] = {}
        self._overtaken: dict[int, Entry] = {}
        self._session = session
        self._line = line
        self._ordered = ordered
        self._done: dict[int, Result[In]] = {}
        self._next = 0
        self._goal = 1
        self._swept = time.monotonic()

    @property
    def open(self) -> int:
        """How many jobs are not known to have ended."""
        return len(self._fresh) + len(self._overtaken)

    @property
    def held(self) -> int:
        """How many inputs are taken and not given back."""
        return self.open + len(self._done)

    @property
    def busy(self) -> bool:
        """Whether anything is still to be given back."""
        return self.held > 0

    def submit(self, entries: Iterable[Entry]) -> Plan[None]:
        """Submit these; what is refused is done."""
        for pack in packs(entries, self._line):
            outcomes: list[Outcome] = yield from send(self._session, pack, patient=True)
            for entry, outcome in zip(pack, outcomes, strict=True):
                if isinstance(outcome, HeadraceError):
                    self._end(entry, None, error=outcome)
                else:
                    self._fresh[entry.index] = entry

    def look(self) -> Plan[None]:
        """Wait until some have ended, and read which."""
        started = time.monotonic()
        jobs = (self._fresh or self._overtaken).values()
        aim = next(islice(jobs, min(self._goal, len(jobs)) - 1, None))
        poll_s = POLL_S if self.open == 1 else SWEEP_S
        # One that is lost is known by the lookup too.
        with suppress(JobNotFound):
            yield from exchange(self._session, job_request("GET", aim.job_id, wait_s=poll_s))
        waited_s = time.monotonic() - started
        sweep = time.monotonic() - self._swept > SWEEP_S
        looked = list(islice(jobs, 2 * self._goal))
        if sweep:
            looked = [*self._fresh.values(), *self._overtaken.values()]
        ended = yield from self._read(looked)
        if sweep:
            self._swept = time.monotonic()
        self._pace(waited_s, ended)

    def released(self) -> list[Result[In]]:
        """What can be given back now."""
        if not self._ordered:
            results = list(self._done.values())
            self._done.clear()
            return results
        results = []
        while self._next in self._done:
            results.append(self._done.pop(self._next))
            self._next += 1
        return results

    def _pace(self, waited_s: float, ended: int) -> None:
        if waited_s > SLOW_S:
            self._goal = max(1, self._goal // 2)
        elif ended >= self._goal and waited_s < QUICK_S:
            self._goal = min(CHUNK_JOBS, self._goal * 2)

    def _read(self, looked: list[Entry]) -> Plan[int]:
        """Read these, and give how many have ended."""
        jobs = yield from statuses(self._session, [entry.job_id for entry in looked])
        lost: list[Entry] = []
        slow: list[Entry] = []
        overtaken = ended = 0
        for entry, job in zip(looked, jobs, strict=True):
            if job is None:
                lost.append(entry)
            elif job.ended:
                overtaken = len(slow)
                ended += 1
                yield from self._finish(entry, job)
            else:
                slow.append(entry)
        for entry in slow[:overtaken]:
            if self._fresh.pop(entry.index, None) is not None:
                self._overtaken[entry.index] = entry
        yield from self._again(lost)
        return ended

    def _finish(self, entry: Entry, job: Job) -> Plan[None]:
        if not job.succeeded:
            self._end(entry, job, error=job_error(job))
            return
        try:
            long = job.result is None and job.result_size is not None
            value = (yield from output(self._session, job)) if long else job.value
        except HeadraceError as error:
            self._end(entry, job, error=error)
        else:
            self._end(entry, job, value=value)

    def _again(self, lost: list[Entry]) -> Plan[None]:
        """Submit again what the server knew and knows no more: Redis has lost data."""
        again = []
        for entry in lost:
            self._forget(entry)
            entry.lost += 1
            if entry.lost > RESUBMITS:
                error = JobNotFound(
                    f"the record of job {entry.job_id} is gone, again",
                    hint="Is its result_ttl long enough, and does Redis keep its data?",
                )
                self._end(entry, None, error=error)
            else:
                again.append(entry)
        yield from self.submit(again)

    def _end(
        self,
        entry: Entry,
        job: Job | None,
        *,
        value: Any = None,
        error: HeadraceError | None = None,
    ) -> None:
        self._forget(entry)
        self._done[entry.index] = Result(
            index=entry.index, input=entry.input, job=job, value=value, error=error
        )

    def _forget(self, entry: Entry) -> None:
        self._fresh.pop(entry.index, None)
        self._overtaken.pop(entry.index, None)
