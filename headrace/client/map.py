"""`map`: runs any number of inputs through a model, a bounded number of them at a time.

Nothing is requested once per job. Inputs are submitted in chunks. One long poll then waits for the
end of one job, and one lookup reads all jobs that have ended (`AdaptivePageSize`). A job
that younger jobs overtake is set aside, so that one slow job delays nothing; every second all jobs
in flight are looked up.

A full queue refuses part of a chunk. The refused entries wait here, because the server holds them
for a moment only. Between two attempts the client looks up ended jobs, so results arrive meanwhile.
The next attempt is as large as the part that the last one found room for.
If the server knows when a limit ends, the next attempt is then, or when a job has ended.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from typing_extensions import Unpack

from headrace.client.bulk import (
    CHUNK_JOBS,
    GATHER_S,
    BulkEntry,
    Ids,
    id_source,
    next_chunk,
    send,
    statuses,
)
from headrace.client.calls import FIRST_POLL_S, POLL_S, output
from headrace.client.http.retries import (
    TRANSIENT,
    Session,
    exchange,
    job_error,
    known_wait_s,
    limit_of,
    outlasting_limits,
)
from headrace.client.inputs import Options, job_line, job_request, plain_parameters
from headrace.client.models import Job, Result
from headrace.client.sansio import (
    NextInput,
    Pause,
    Plan,
    Stream,
    TakenInput,
    Yield,
    input_iterator,
)
from headrace.errors import (
    BrokerError,
    HeadraceError,
    InvalidRequest,
    JobNotFound,
    ServerUnreachable,
    StoreUnavailable,
    Throttled,
)

#: A shorter wait increases the goal, a longer wait decreases it.
QUICK_S: Final = 0.1
SLOW_S: Final = 0.5
#: All jobs in flight are looked up once per this many seconds.
SWEEP_S: Final = 1.0


class AdaptivePageSize:
    """Decides for how many ended jobs the next round waits.

    Attributes:
        goal: the number of ended jobs to wait for.
        behind: all jobs of the last lookup had ended, so the next round need not wait.
    """

    def __init__(self, *, growth: int, most: int) -> None:
        self.goal = 1
        self.behind = False
        self._growth = growth
        self._most = most
        self._swept = self._started = time.monotonic()
        self._waited_s = 0.0
        self._sweeping = False

    def begin(self) -> None:
        """Start a round."""
        self._started = time.monotonic()

    def waited(self) -> bool:
        """End the round's wait; return whether this round looks up all jobs in flight."""
        now = time.monotonic()
        self._waited_s = now - self._started
        self._sweeping = now - self._swept > SWEEP_S
        return self._sweeping

    def read(self, ended: int, looked: int, *, waited: bool = True) -> None:
        """End the round: `ended` of `looked` jobs had ended."""
        self.behind = ended == looked
        if self._sweeping:
            self._swept = time.monotonic()
        if self._waited_s > SLOW_S or (not waited and ended < self.goal):
            self.goal = max(1, self.goal // 2)
        elif ended >= self.goal and self._waited_s < QUICK_S:
            self.goal = min(self._most, self.goal * self._growth)


In = TypeVar("In")

#: Seconds for which a full queue may hold a chunk while results are expected.
HOLD_S: Final = 0.5
#: How often a job is submitted again after Redis lost it.
RESUBMITS: Final = 1
#: The window retries after Throttled itself, between two lookups.
_TRANSIENT: Final = tuple(kind for kind in TRANSIENT if kind is not Throttled)
#: Errors that are not about one job, so every other job would get them too.
_OUTAGES: Final = (BrokerError, ServerUnreachable, StoreUnavailable)


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
    parameters: Mapping[str, Any] | None = None,
    **options: Unpack[Options],
) -> Stream[Result[In]]:
    """Run every input through a model, also while servers restart; limits (429) are waited for.

    Each input becomes one job with one id, however often it is sent, and gives one result. At most
    `in_flight` inputs are held, so memory does not grow with the number of inputs.

    Args:
        inputs: any number of inputs, also an endless iterator; taken as there is room. An exception
            that it raises is raised again after the results of the earlier inputs.
        in_flight: maximum number of inputs that are taken and not yielded.
        ordered: yield results in the order of the inputs, not as the jobs end.
        return_errors: yield a result with its `error` if an input fails, instead of raising it.
        ids: the id of each job, in the order of the inputs, or a function that makes it from an
            input. A second run with the same ids gets the first run's results while they are kept.
        content_type: media type of every input, if its Python type does not imply it.
        version: required version of the model.
        parameters: the parameters of every job, as for `submit`.
        options: options of every job, as for `submit`.

    Yields:
        A result for every input.

    Raises:
        JobError: a job failed, without `return_errors`.
        RequestError: an input was refused, without `return_errors`.
        ServerUnreachable: the server was unreachable for longer than `retry_s`; jobs continue.
        BrokerError: its Redis was unreachable or full for longer than `retry_s`; jobs continue.
        StoreUnavailable: its payload store failed for longer than `retry_s`; jobs continue.
    """
    if in_flight < 1:
        raise InvalidRequest(f"in_flight is {in_flight}", hint="Give 1 or more.")

    sent = plain_parameters(parameters)

    def line(entry: BulkEntry) -> bytes:
        return job_line(model, entry.input, content_type, version, options, entry.job_id, sent)

    source, next_id = input_iterator(inputs), id_source(ids)
    window: Window[In] = Window(session, line, ordered=ordered)
    chunk = min(CHUNK_JOBS, max(1, in_flight // 4))
    taken, short = TakenInput([], ended=False), False
    index = 0
    while not taken.ended or window.held:
        room = in_flight - window.held
        if window.waiting:
            yield from outlasting_limits(session, window.submit(glance=short))
        elif not taken.ended and (room >= chunk or not window.open):
            count = min(chunk, room)
            taken = yield NextInput(source, count, GATHER_S)
            # A slow source must not delay the results of ended jobs.
            short = len(taken.inputs) < count
            for value in taken.inputs:
                window.waiting.append(BulkEntry(index, value, next_id(value)))
                index += 1
        else:
            yield from outlasting_limits(session, window.look_up())
        results = window.pop_results()
        for at, result in enumerate(() if return_errors else results):
            if result.error is not None:
                yield Yield(results[:at])
                raise result.error
        yield Yield(results)
    if taken.error is not None:
        raise taken.error


class Window(Generic[In]):
    """The inputs that are taken and not yielded: waiting for room, in flight, or ended."""

    def __init__(
        self, session: Session, line: Callable[[BulkEntry], bytes], *, ordered: bool
    ) -> None:
        self.waiting: deque[BulkEntry] = deque()
        # By index, in the order of submission, which is roughly the order of their ends.
        self._fresh: dict[int, BulkEntry] = {}
        self._overtaken: dict[int, BulkEntry] = {}
        self._session = session
        self._line = line
        self._ordered = ordered
        self._done: dict[int, Result[In]] = {}
        self._next = 0
        self._poll_s = FIRST_POLL_S
        self._page = AdaptivePageSize(growth=2, most=CHUNK_JOBS)
        # The size of the next submit, and whether the last one found the queue full.
        self._chunk_size = CHUNK_JOBS
        self._full = False
        # When the limit ends that refused entries, if the server knows it, and its code.
        self._limited_until = 0.0
        self._limit = ""

    @property
    def open(self) -> int:
        """Return the number of jobs that are enqueued and not known to have ended."""
        return len(self._fresh) + len(self._overtaken)

    @property
    def held(self) -> int:
        """Return the number of inputs that are taken and not yielded."""
        return len(self.waiting) + self.open + len(self._done)

    def submit(self, *, glance: bool = False) -> Plan[None]:
        """Submit a chunk of the waiting entries; entries that a full queue refuses stay waiting.

        Args:
            glance: look up ended jobs afterwards, as after a slow submit or with a full queue.
        """
        limited_s = self._limited_until - time.monotonic()
        if limited_s > 0:
            yield from self._wait_for_limit(limited_s)
            return
        chunk = next_chunk(self.waiting, self._line, self._chunk_size)
        # Without jobs to look up meanwhile, the server may hold the chunk as long as it likes.
        hold_s = None if self._full and not self.open else HOLD_S
        started = time.monotonic()
        outcomes = yield from send(self._session, chunk, hold_s=hold_s, transient=_TRANSIENT)
        slow = time.monotonic() - started > QUICK_S
        refused, limits = [], []
        for entry, outcome in zip(chunk, outcomes, strict=True):
            if isinstance(outcome, _OUTAGES):
                raise outcome  # whether a job exists is unknown
            if isinstance(outcome, Throttled):
                refused.append(entry)
                limits.append(outcome)
            elif isinstance(outcome, HeadraceError):
                self._end(entry, None, error=outcome)
            else:
                entry.line = b""
                self._fresh[entry.index] = entry
        self.waiting.extendleft(reversed(refused))
        self._full = bool(refused)
        if (limit := limit_of(limits)) is not None:
            self._limited_until = time.monotonic() + known_wait_s(limit)
            self._limit = limit.code
        room = len(chunk) - len(refused) if refused else 2 * self._chunk_size
        self._chunk_size = min(CHUNK_JOBS, max(1, room))
        looks = self.open and (self.waiting or slow or glance)
        if looks and (yield from self.look_up(wait=False)):
            self._limited_until = 0.0  # what has ended may have made room

    def _wait_for_limit(self, limited_s: float) -> Plan[None]:
        """Wait for a limit, but only until a job ends, which may make room."""
        if not self.open:
            yield Pause(limited_s, self._limit)
        elif (yield from self.look_up(most_s=limited_s)):
            self._limited_until = 0.0

    def look_up(self, *, wait: bool = True, most_s: float = POLL_S) -> Plan[int]:
        """Read the jobs that have ended, and return how many.

        With `wait`, first wait for the end of one, `most_s` seconds at most.
        """
        page = self._page
        page.begin()
        jobs = (self._fresh or self._overtaken).values()
        if wait:
            last = next(islice(jobs, min(page.goal, len(jobs)) - 1, None))
            poll_s = min(most_s, self._poll_s if self.open == 1 else SWEEP_S)
            self._poll_s = POLL_S
            # The lookup reports a lost job too.
            with suppress(JobNotFound):
                yield from exchange(self._session, job_request("GET", last.job_id, wait_s=poll_s))
        if page.waited():
            entries = [*self._fresh.values(), *self._overtaken.values()]
        else:
            entries = list(islice(jobs, 2 * page.goal))
        ended = yield from self._read(entries)
        page.read(ended, len(entries), waited=wait)
        return ended

    def pop_results(self) -> list[Result[In]]:
        """Remove and return the results that can be yielded now."""
        if not self._ordered:
            results = list(self._done.values())
            self._done.clear()
            return results
        results = []
        while self._next in self._done:
            results.append(self._done.pop(self._next))
            self._next += 1
        return results

    def _read(self, entries: list[BulkEntry]) -> Plan[int]:
        """Look up these jobs and return how many have ended."""
        jobs = yield from statuses(self._session, [entry.job_id for entry in entries])
        lost: list[BulkEntry] = []
        slow: list[BulkEntry] = []
        overtaken = ended = 0
        for entry, job in zip(entries, jobs, strict=True):
            if job is None:
                lost.append(entry)
            elif job.ended:
                overtaken = len(slow)
                ended += 1
                yield from self._finish(entry, job)
            else:
                slow.append(entry)
                if job.waiting_reason:
                    self._session.on_waiting(job.waiting_reason)
        for entry in slow[:overtaken]:
            if self._fresh.pop(entry.index, None) is not None:
                self._overtaken[entry.index] = entry
        self._resubmit(lost)
        return ended

    def _finish(self, entry: BulkEntry, job: Job) -> Plan[None]:
        if not job.succeeded:
            self._end(entry, job, error=job_error(job))
            return
        try:
            long = job.result is None and job.result_size is not None
            value = (yield from output(self._session, job)) if long else job.value
        except _OUTAGES:
            raise  # the result exists, and a later run finds it
        except HeadraceError as error:
            self._end(entry, job, error=error)
        else:
            self._end(entry, job, value=value)

    def _resubmit(self, lost: list[BulkEntry]) -> None:
        """Submit jobs again that the server accepted and no longer knows: Redis lost data."""
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
        self.waiting.extendleft(reversed(again))

    def _end(
        self,
        entry: BulkEntry,
        job: Job | None,
        *,
        value: Any = None,
        error: HeadraceError | None = None,
    ) -> None:
        self._forget(entry)
        self._done[entry.index] = Result(
            index=entry.index, input=entry.input, job=job, value=value, error=error
        )

    def _forget(self, entry: BulkEntry) -> None:
        self._fresh.pop(entry.index, None)
        self._overtaken.pop(entry.index, None)
