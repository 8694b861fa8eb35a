"""Sends the Celery callbacks of ended jobs, in a thread, so that the consumer never waits for it.

A job with callbacks stays leased until its callbacks are sent; only then it is settled. Failed
sends are retried until they succeed. After a crash everything is sent again with the same task ids.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import msgspec

from headrace.errors import BY_CODE, HeadraceError
from headrace.jobs.job import State, read_error, read_meta
from headrace.redis.scripts.jobs import CANCELLED, FENCED, Run
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
    as_json,
    value_of,
)
from workers.jobs.canvas import read_canvas
from workers.jobs.leased_job import LeasedJob
from workers.jobs.settlement import (
    REVOKED_JSON,
    Settlement,
    cancelled,
    failed,
    with_children,
)
from workers.leases.manager import LeaseManager
from workers.models.held import OrphanedEnd, UnsentCallbacks
from workers.models.served_model import ServedModel
from workers.threads import BackgroundThreads

logger = logging.getLogger(__name__)

AGAIN_MIN_S: Final = 0.2
AGAIN_MAX_S: Final = 5.0
#: How often a malformed send is retried, over a new connection.
MALFORMED_TRIES: Final = 2
#: How long a stop waits for the sends that have begun.
CLOSE_MAX_S: Final = 2.0


class TaskOutcome(NamedTuple):
    """A job that may be settled now; without a job, an orphaned end that was handled."""

    model: ServedModel
    job: LeasedJob | None = None
    settlement: Settlement | None = None


@dataclass(slots=True)
class _Task:
    """The callbacks of a job.

    Attributes:
        send: sends them, and returns the settlement of a job that is not settled.
        outcome: also counts if they can never be sent.
    """

    send: Callable[[CanvasSender, SendProgress], Settlement | None]
    outcome: TaskOutcome
    progress: SendProgress = field(default_factory=SendProgress)

    def pause_s(self) -> float:
        """Return how long to wait before the next try."""
        self.progress.tries += 1
        return min(AGAIN_MIN_S * 2.0 ** min(self.progress.tries - 1, 10), AGAIN_MAX_S)


class CanvasNotifier:
    """Sends callbacks for the consumer; `build` connects to the broker when the first are sent."""

    def __init__(self, build: Callable[[], CanvasSender]) -> None:
        self._build = build
        self._sender: CanvasSender | None = None
        self._thread: BackgroundThreads[_Task, TaskOutcome]
        self._thread = BackgroundThreads(self._work, "headrace-canvas")

    def fileno(self) -> int:
        """Return the descriptor for a selector: readable when callbacks were sent."""
        return self._thread.fileno()

    def begin(self, model: ServedModel) -> None:
        """Begin to send the callbacks that a model has pending."""
        ends, orphaned = model.take_callback_work()
        for end in ends:
            self._thread.submit(_Task(partial(send_end, end), TaskOutcome(model, *end)))
        for entry in orphaned:
            self._thread.submit(_Task(partial(send_orphaned, entry), TaskOutcome(model)))

    def deliver(self, leases: LeaseManager) -> None:
        """Settle the jobs whose callbacks were sent since the last call."""
        for model, job, settlement in self._thread.take_results():
            if job is None or settlement is None:
                model.orphaned_end_handled()
            elif model.callbacks_sent(job):
                leases.settle(model, [settlement])

    def close(self) -> None:
        """Abandon the callbacks that were not sent: their jobs are released, or swept again."""
        if self._thread.close(CLOSE_MAX_S):
            self._drop_sender()

    def _work(self, task: _Task) -> float | None:
        try:
            if self._sender is None:
                self._sender = self._build()
            settlement = task.send(self._sender, task.progress)
            task.outcome = task.outcome._replace(settlement=settlement)
        except ChordBusy as error:
            logger.info("%s; checked again later", error)
            return task.pause_s()
        except (*TRY_AGAIN, Malformed) as error:
            logger.warning("callbacks not sent, next try soon: %s", error)
            self._drop_sender()
            return task.pause_s()
        except Exception:
            logger.exception("callbacks cannot be sent")
        self._thread.deliver(task.outcome)
        return None

    def _drop_sender(self) -> None:
        """Close the connection, which may be broken; the next task opens another."""
        sender, self._sender = self._sender, None
        if sender is not None:
            with contextlib.suppress(Exception):
                sender.close()


def send_end(end: UnsentCallbacks, sender: CanvasSender, progress: SendProgress) -> Settlement:
    """Send the callbacks of an ended job; return its settlement. After an error try again."""
    job, settlement = end
    canvas = job.canvas
    verdict = sender.begin(job.id, job.token)
    if canvas is None or verdict == FENCED:
        # Another worker has the job and will send them; jobs/settle.lua discards this settlement.
        return settlement
    if verdict == CANCELLED:
        sender.report(canvas, _outcome(job, cancelled(job)), progress)
        return settlement
    try:
        outcome = _outcome(job, settlement)
        sender.send(canvas, outcome, progress)
    except Malformed as error:
        if progress.tries < MALFORMED_TRIES:
            raise
        logger.warning("callbacks cannot be sent: %s", error, extra={"job": job.id})
        why = f"the job's callbacks cannot be sent: {error}"
        run = Run(settlement.started, settlement.device_wait, settlement.timings)
        settlement = failed(job, "invalid-request", why, batch=settlement.batch, run=run)
        outcome = _outcome(job, settlement)
    if progress.children:
        settlement = with_children(settlement, as_json(progress.children))
        outcome = outcome._replace(meta=settlement.meta)
    sender.report(canvas, outcome, progress)
    return settlement


def send_orphaned(entry: OrphanedEnd, sender: CanvasSender, progress: SendProgress) -> None:
    """Send callbacks of a job that a script, which reads none, has ended; on error try again."""
    length, _, rest = entry.entry.partition(b":")
    canvas = read_canvas(rest[int(length) :]) if length.isdigit() else None
    if canvas is not None:
        meta = read_meta(rest[: int(length)])
        value = msgspec.json.decode(meta.result)
        sender.report(canvas, CanvasOutcome(meta.status, value, meta.traceback, b""), progress)
    sender.remove_orphan(entry.queue, entry.name)


def _outcome(job: LeasedJob, settlement: Settlement) -> CanvasOutcome:
    """Return the outcome in Celery's terms."""
    if settlement.state == State.SUCCEEDED:
        return CanvasOutcome(SUCCESS, value_of(job.result), None, settlement.meta)
    if settlement.state == State.CANCELLED:
        return CanvasOutcome(REVOKED, msgspec.json.decode(REVOKED_JSON), None, settlement.meta)
    text = settlement.value
    error = read_error(text if isinstance(text, bytes) else str(text))
    cls = BY_CODE.get(error.type, HeadraceError)
    value = {
        "exc_type": cls.__name__,
        "exc_message": [error.message],
        "exc_module": cls.__module__,
    }
    traceback = read_meta(settlement.meta).traceback if settlement.meta else None
    return CanvasOutcome(FAILURE, value, traceback, settlement.meta)
