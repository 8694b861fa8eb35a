"""What `map` has taken and not given back: said to the server, looked at, and given out.

Nothing is asked once per job. Inputs go in packs; then one long poll waits for the end of one job,
chosen so that about a pack has ended by then, and one lookup reads what has. The choice follows
the model's pace: a quick model is asked for hundreds at a time, a slow one for one. A job that is
overtaken by younger ones is put aside, so that one slow job holds nothing up; every second all that
is in flight is looked at.

A full queue refuses a part of a pack. That waits here for its turn: the server is asked to hold it
back for a moment only, and between two tries what has ended is looked up, so that results come
while the rest waits. The next try is as large as what the last one found room for.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from headrace.client.bulk import CHUNK_JOBS, BulkEntry, next_pack, send, statuses
from headrace.client.calls import POLL_S, output
from headrace.client.errors import job_error
from headrace.client.models import Job, Result
from headrace.client.requests import job_request
from headrace.client.retries import PASSING, Session, exchange
from headrace.client.sansio import Plan
from headrace.errors import (
    BrokerError,
    HeadraceError,
    JobNotFound,
    ServerUnreachable,
    StoreUnavailable,
    Throttled,
)

In = TypeVar("In")

#: All that is in flight is looked at so often, and a wait for one of several lasts no longer.
SWEEP_S: Final = 1.0
#: A round that takes less asks for more at a time, one that takes more for fewer.
QUICK_S: Final = 0.1
SLOW_S: Final = 0.5
#: A full queue may hold a pack back for so long while results are expected.
HOLD_S: Final = 0.5
#: How often a job that Redis has lost is submitted again.
RESUBMITS: Final = 1
#: A full queue is waited for here, between two looks at what has ended.
_PASSING: Final = tuple(kind for kind in PASSING if kind is not Throttled)
#: What says nothing of a job, and would meet every other too.
_OUTAGES: Final = (BrokerError, ServerUnreachable, StoreUnavailable)


class Window(Generic[In]):
    """What is in flight, what waits for room, and what has ended and is not given back yet.

    Args:
        session: the server.
        line: makes the line that submits an entry.
        ordered: results are given in the order of their entries.
    """

    def __init__(
        self, session: Session, line: Callable[[BulkEntry], bytes], *, ordered: bool
    ) -> None:
        self._waiting: deque[BulkEntry] = deque()
        # By index, in the order of their submission, which is about that of their ends.
        self._fresh: dict[int, BulkEntry] = {}
        self._overtaken: dict[int, BulkEntry] = {}
        self._session = session
        self._line = line
        self._ordered = ordered
        self._done: dict[int, Result[In]] = {}
        self._next = 0
        self._goal = 1
        self._swept = time.monotonic()
        # How many a try may take, and whether the last one found the queue full.
        self._try = CHUNK_JOBS
        self._full = False

    @property
    def open(self) -> int:
        """How many jobs are enqueued and not known to have ended."""
        return len(self._fresh) + len(self._overtaken)

    @property
    def waiting(self) -> int:
        """How many are still to be enqueued."""
        return len(self._waiting)

    @property
    def held(self) -> int:
        """How many inputs are taken and not given back."""
        return self.waiting + self.open + len(self._done)

    def add(self, entry: BulkEntry) -> None:
        """Take one in; `submit` is what sends it."""
        self._waiting.append(entry)

    def submit(self, *, glance: bool = False) -> Plan[None]:
        """Submit a pack of what waits; what its queue has no room for waits on.

        Args:
            glance: look at what has ended meanwhile, as after a slow submit or with a full queue.
        """
        pack = next_pack(self._waiting, self._line, self._try)
        # With nothing to look for meanwhile the server may hold the pack back as long as it likes.
        hold_s = None if self._full and not self.open else HOLD_S
        started = time.monotonic()
        outcomes = yield from send(self._session, pack, hold_s=hold_s, passing=_PASSING)
        slow = time.monotonic() - started > QUICK_S
        refused = []
        for entry, outcome in zip(pack, outcomes, strict=True):
            if isinstance(outcome, _OUTAGES):
                raise outcome  # whether there is a job is not known
            if isinstance(outcome, Throttled):
                refused.append(entry)
            elif isinstance(outcome, HeadraceError):
                self._end(entry, None, error=outcome)
            else:
                entry.line = b""
                self._fresh[entry.index] = entry
        self._waiting.extendleft(reversed(refused))
        self._full = bool(refused)
        room = len(pack) - len(refused) if refused else 2 * self._try
        self._try = min(CHUNK_JOBS, max(1, room))
        if self.open and (self._waiting or slow or glance):
            yield from self.look(wait=False)

    def look(self, *, wait: bool = True) -> Plan[None]:
        """Read which have ended, once some have where `wait` is."""
        started = time.monotonic()
        jobs = (self._fresh or self._overtaken).values()
        if wait:
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
        if waited_s > SLOW_S or (not wait and ended < self._goal):
            self._goal = max(1, self._goal // 2)
        elif ended >= self._goal and waited_s < QUICK_S:
            self._goal = min(CHUNK_JOBS, self._goal * 2)

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

    def _read(self, looked: list[BulkEntry]) -> Plan[int]:
        """Read these, and give how many have ended."""
        jobs = yield from statuses(self._session, [entry.job_id for entry in looked])
        lost: list[BulkEntry] = []
        slow: list[BulkEntry] = []
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
        self._again(lost)
        return ended

    def _finish(self, entry: BulkEntry, job: Job) -> Plan[None]:
        if not job.succeeded:
            self._end(entry, job, error=job_error(job))
            return
        try:
            long = job.result is None and job.result_size is not None
            value = (yield from output(self._session, job)) if long else job.value
        except _OUTAGES:
            raise  # its result is there, and a later run finds it
        except HeadraceError as error:
            self._end(entry, job, error=error)
        else:
            self._end(entry, job, value=value)

    def _again(self, lost: list[BulkEntry]) -> None:
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
        self._waiting.extendleft(reversed(again))

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
