"""Tells what follows a job of its end, in a thread beside the consumer, which never waits for it.

A job that is followed by others is held, and its lease renewed, until this has told them; only then
it is settled. What cannot be told now (Redis is away) is tried again, for as long as it takes, and
after a crash all of it is said again under the same ids.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from headrace.errors import BY_CODE, HeadraceError
from headrace.jobs.failure import read_error
from headrace.jobs.job import State
from workers.canvas.sender import (
    FAILURE,
    REVOKED,
    SUCCESS,
    TRY_AGAIN,
    CanvasOutcome,
    CanvasSender,
    ChordBusy,
    Malformed,
    SendProgress,
    SendVerdict,
    as_json,
    value_of,
)
from workers.jobs.canvas import read_canvas
from workers.jobs.leased_job import LeasedJob
from workers.jobs.settlement import REVOKED_JSON, Settlement, cancelled, failed, with_children
from workers.leases.manager import LeaseManager
from workers.models.pending_callbacks import EndedJob, OrphanedEnd
from workers.models.served_model import ServedModel

logger = logging.getLogger(__name__)

AGAIN_MIN_S: Final = 0.2
AGAIN_MAX_S: Final = 5.0
#: What is thought to be impossible is tried again so often, over a new connection.
MALFORMED_TRIES: Final = 2
#: How long a stop waits for what is being told.
CLOSE_MAX_S: Final = 2.0


class TaskOutcome(NamedTuple):
    """What was told: a job that may be settled now, or an end that a script had left."""

    model: ServedModel
    job: LeasedJob | None = None
    settlement: Settlement | None = None


@dataclass(slots=True)
class _Task:
    """One telling.

    Attributes:
        what: does it.
        anyway: what is heard where it can never be done.
    """

    what: Callable[[CanvasSender, SendProgress], TaskOutcome]
    anyway: TaskOutcome
    progress: SendProgress = field(default_factory=SendProgress)

    def pause_s(self) -> float:
        """How long to wait before the next try."""
        self.progress.tries += 1
        return min(AGAIN_MIN_S * 2.0 ** min(self.progress.tries - 1, 10), AGAIN_MAX_S)


class CanvasNotifier:
    """Tells, for the consumer.

    Args:
        build: connects to the broker; first called when there is something to tell.
    """

    def __init__(self, build: Callable[[], CanvasSender]) -> None:
        self._build = build
        self._sender: CanvasSender | None = None
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._done: deque[TaskOutcome] = deque()
        self._out, self._in = os.pipe()
        os.set_blocking(self._out, False)
        os.set_blocking(self._in, False)
        self._thread: threading.Thread | None = None

    def fileno(self) -> int:
        """For selectors: readable when something was told."""
        return self._out

    def take(self, model: ServedModel) -> None:
        """Take over what a lane has to be told."""
        sequels = model.callbacks
        ends, sequels.ends = sequels.ends, []
        untold, sequels.orphaned = sequels.orphaned, []
        for end in ends:
            self._start(_Task(partial(_tell, model, end), TaskOutcome(model, *end)))
        for entry in untold:
            self._start(_Task(partial(_left, model, entry), TaskOutcome(model)))

    def deliver(self, leases: LeaseManager) -> None:
        """Settle what was told since the last call."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._out, 4096):
                pass
        while self._done:
            model, job, settlement = self._done.popleft()
            if job is None or settlement is None:
                model.callbacks.orphaned_pending -= 1
                continue
            model.callbacks.notified(job)
            if model.held.get(job.id) is job:
                leases.settle(model, [settlement])

    def close(self) -> None:
        """Let go of what was not told: its jobs are given back, or swept again."""
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join(CLOSE_MAX_S)
            if self._thread.is_alive():
                return  # Redis keeps it waiting; it ends with the process
        os.close(self._out)
        os.close(self._in)

    def _start(self, task: _Task) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="headrace-herald", daemon=True)
            self._thread.start()
        self._tasks.put(task)

    def _work(self) -> None:
        later: list[tuple[float, int, _Task]] = []
        order = itertools.count()
        while (task := self._next(later)) is not None:
            if not self._tried(task):
                due_at = time.monotonic() + task.pause_s()
                heapq.heappush(later, (due_at, next(order), task))
        self._drop()

    def _next(self, later: list[tuple[float, int, _Task]]) -> _Task | None:
        """What is due again, else what is new; None when it is time to end."""
        while True:
            now = time.monotonic()
            if later and later[0][0] <= now:
                return heapq.heappop(later)[2]
            with contextlib.suppress(queue.Empty):
                return self._tasks.get(timeout=later[0][0] - now if later else None)

    def _tried(self, task: _Task) -> bool:
        """Whether the task is over."""
        try:
            if self._sender is None:
                self._sender = self._build()
            heard = task.what(self._sender, task.progress)
        except ChordBusy as error:
            logger.info("%s; looked at again", error)
            return False
        except (*TRY_AGAIN, Malformed) as error:
            logger.warning("what follows a job cannot be told, tried again: %s", error)
            self._drop()
            return False
        except Exception:
            logger.exception("what follows a job cannot be told")
            heard = task.anyway
        self._done.append(heard)
        # So full a pipe wakes the consumer anyway.
        with contextlib.suppress(BlockingIOError):
            os.write(self._in, b"x")
        return True

    def _drop(self) -> None:
        """Connect anew for the next; who knows what this connection is good for."""
        sender, self._sender = self._sender, None
        if sender is not None:
            with contextlib.suppress(Exception):
                sender.close()


def _tell(
    model: ServedModel, end: EndedJob, sender: CanvasSender, progress: SendProgress
) -> TaskOutcome:
    return TaskOutcome(model, end.job, tell_end(end, sender, progress))


def tell_end(end: EndedJob, sender: CanvasSender, progress: SendProgress) -> Settlement:
    """Tell what follows a job of its end; the settlement that is to be said then.

    Args:
        end: the job, with its `result` where it has succeeded.
        sender: the connection.
        progress: what an earlier try has told.

    Raises:
        Malformed, TRY_AGAIN, ChordBusy: it is to be tried again.
    """
    job, settlement = end
    canvas = job.canvas
    verdict = sender.verdict(job.id, job.token)
    if canvas is None or verdict == SendVerdict.FENCED:
        # Another worker's by now, which will tell; jobs/settle.lua says so too, and this is
        # dropped.
        return settlement
    if verdict == SendVerdict.CANCELLED:
        sender.tell(canvas, _outcome(job, cancelled(job)), progress)
        return settlement
    try:
        outcome = _outcome(job, settlement)
        sender.send(canvas, outcome, progress)
    except Malformed as error:
        if progress.tries < MALFORMED_TRIES:
            raise
        logger.warning("what follows the job cannot be sent: %s", error, extra={"job": job.id})
        settlement = _unsendable(job, settlement, error)
        outcome = _outcome(job, settlement)
    if progress.children:
        settlement = with_children(settlement, as_json(progress.children))
        outcome = outcome._replace(meta=settlement.meta)
    sender.tell(canvas, outcome, progress)
    return settlement


def _unsendable(job: LeasedJob, settlement: Settlement, error: Malformed) -> Settlement:
    why = f"what follows the job cannot be sent: {error}"
    return failed(job, "invalid-request", why, batch=settlement.batch, timings=settlement.timings)


def _left(
    model: ServedModel, entry: OrphanedEnd, sender: CanvasSender, progress: SendProgress
) -> TaskOutcome:
    tell_left(entry, sender, progress)
    return TaskOutcome(model)


def tell_left(entry: OrphanedEnd, sender: CanvasSender, progress: SendProgress) -> None:
    """Tell of an end that a script has left; only a worker can read what follows.

    Args:
        entry: what it has left.
        sender: the connection.
        progress: what an earlier try has told.

    Raises:
        Malformed, TRY_AGAIN, ChordBusy: it is to be tried again.
    """
    length, _, rest = entry.entry.partition(b":")
    canvas = read_canvas(rest[int(length) :]) if length.isdigit() else None
    if canvas is not None:
        meta = msgspec.json.decode(rest[: int(length)], type=_Meta)
        sender.tell(canvas, CanvasOutcome(meta.status, meta.result, meta.traceback, b""), progress)
    sender.done(entry.queue, entry.name)


class _Meta(msgspec.Struct):
    status: str
    result: Any
    traceback: str | None = None


def _outcome(job: LeasedJob, settlement: Settlement) -> CanvasOutcome:
    """How the settlement ends the job, in Celery's words."""
    if settlement.state == State.SUCCEEDED:
        return CanvasOutcome(SUCCESS, value_of(job.result), None, settlement.meta)
    if settlement.state == State.CANCELLED:
        return CanvasOutcome(REVOKED, msgspec.json.decode(REVOKED_JSON), None, settlement.meta)
    told = settlement.value
    error = read_error(told if isinstance(told, bytes) else str(told))
    cls = BY_CODE.get(error.type, HeadraceError)
    value = {
        "exc_type": cls.__name__,
        "exc_message": [error.message],
        "exc_module": cls.__module__,
    }
    traceback = msgspec.json.decode(settlement.meta)["traceback"] if settlement.meta else None
    return CanvasOutcome(FAILURE, value, traceback, settlement.meta)
