"""Logs failed jobs: a line for each job, and fewer lines while many fail.

A process may write `BURST` lines at once and `LINES_PER_S` for a longer time. The jobs beyond that
are gathered, and a line each second names them for each error.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from headrace.errors import ReplicaLost
from headrace.jobs.job import ErrorRecord, State, read_error_record
from headrace.observability.logs import JOBS_MAX
from headrace.redis.scripts.jobs import POSTPONED, SETTLED, Settlement

logger = logging.getLogger(__name__)

BURST: Final = 200
LINES_PER_S: Final = 20.0
GATHERED_S: Final = 1.0
#: Kinds of errors that are gathered apart from each other.
KINDS_MAX: Final = 50
MESSAGE_MAX_CHARS: Final = 500


class _Kind(NamedTuple):
    model: str
    error: str
    raised: str


class TokenBucket:
    """A rate of `per_s` tokens a second, of which `burst` may be saved up."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = self._left = burst
        self._at: float | None = None

    def take(self, count: int, now: float) -> int:
        """Take `count` tokens or as many as are left; return how many were taken."""
        if self._at is not None:
            self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
        self._at = now
        taken = min(count, int(self._left))
        self._left -= taken
        return taken


class FailureLog:
    """The log of the failed jobs of a process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lines = TokenBucket(LINES_PER_S, BURST)
        # By kind, how many jobs have no line of their own, and the first of them.
        self._gathered: dict[_Kind, tuple[int, list[str]]] = {}
        self._write_at = 0.0

    def settled(self, model: str, settlements: Sequence[Settlement], codes: Sequence[Any]) -> None:
        """Log the jobs that failed, and those tried again after an error; `codes` by settle.lua."""
        for settlement, code in zip(settlements, codes, strict=True):
            if settlement.state == State.FAILED and int(code) in (SETTLED, POSTPONED):
                self._settled(model, settlement, again=int(code) == POSTPONED)
        self.flush()

    def _settled(self, model: str, settlement: Settlement, *, again: bool) -> None:
        error = error_record(settlement)
        raised = f"{error.exception} at {error.where}" if error.where else ""
        kind = _Kind(model, error.type, raised)
        if again:
            fields = _extra(kind, job=settlement.id)
            logger.info("job is tried again: %s", _short(error.message), extra=fields)
        else:
            self._add(kind, settlement.id, error.message)

    def lost(self, model: str, job_id: str) -> None:
        """Log a job that has failed because its model process died each time."""
        why = "the model process died each time that it ran this input alone"
        self._add(_Kind(model, ReplicaLost.code, ""), job_id, why)

    def flush(self, *, last: bool = False) -> None:
        """Write the lines of gathered jobs, if they are due, or if they are the last."""
        if not self._gathered or (self._clock() < self._write_at and not last):
            return
        gathered, self._gathered = self._gathered, {}
        for kind, (count, ids) in gathered.items():
            logger.warning("%d more jobs failed", count, extra=_extra(kind, failed=count, jobs=ids))

    def _add(self, kind: _Kind, job_id: str, message: str) -> None:
        now = self._clock()
        if self._lines.take(1, now):
            logger.warning("job failed: %s", _short(message), extra=_extra(kind, job=job_id))
            return
        if not self._gathered:
            self._write_at = now + GATHERED_S
        if kind not in self._gathered and len(self._gathered) >= KINDS_MAX:
            kind = _Kind(kind.model, "", "")
        count, ids = self._gathered.get(kind, (0, []))
        if len(ids) < JOBS_MAX:
            ids.append(job_id)
        self._gathered[kind] = (count + 1, ids)


def _extra(kind: _Kind, **fields: Any) -> dict[str, Any]:
    return {**{name: value for name, value in kind._asdict().items() if value}, **fields}


def error_record(settlement: Settlement) -> ErrorRecord:
    """Return the error of a job that did not succeed; the default if it has none."""
    value = settlement.value
    return read_error_record(value if isinstance(value, bytes) else str(value))


def _short(message: str) -> str:
    return message if len(message) <= MESSAGE_MAX_CHARS else message[:MESSAGE_MAX_CHARS] + "…"
