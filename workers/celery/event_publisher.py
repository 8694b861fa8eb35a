"""Publishes task events about a worker's jobs, for Flower and other Celery monitors.

An event about a job's end follows Redis' reply. A job that was cancelled while it ran is reported
as revoked, whatever its handler returned. A job whose lease was lost is left to the worker that
holds it now.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from headrace.errors import BY_CODE, HeadraceError
from headrace.jobs.failure import read_error
from headrace.jobs.job import State, iso
from headrace.jobs.message import arguments_repr
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.fields import JobField
from headrace.redis.scripts import Command
from headrace.redis.scripts.jobs import CANCELLED, FENCED, POSTPONED
from workers.celery.celery_internals import count_started
from workers.celery.task_events import (
    Failed,
    Received,
    Retried,
    Revoked,
    Started,
    Succeeded,
    TaskEventLog,
    result_text,
    traceback_text,
)
from workers.jobs.batch import Batch
from workers.jobs.leased_job import NEVER, LeasedJob
from workers.jobs.settlement import Settlement
from workers.models.served_model import ServedModel

if TYPE_CHECKING:
    from workers.observability.job_spans import JobSpans

#: Events wait for at most this many seconds, ...
EVENTS_S: Final = 0.1
#: ... or until there are this many.
EVENTS_MAX: Final = 1000
NOT_YET: Final = (None, None)


class EventDispatcher(Protocol):
    """The used part of Celery's event dispatcher; no groups means all of them."""

    enabled: bool
    groups: set[str]


class EventPublisher:
    """Publishes the task events of one worker, and starts and ends the spans of its jobs.

    Args:
        hostname: Celery's node name, such as gpu0@host.
        channel: the pub/sub channel of lists of task events.
        ticks: advances Celery's logical clock by a count and returns the first of these ticks.
        dispatcher: returns Celery's event dispatcher, or None while it has none.

    Attributes:
        events_at: when the waiting events are due, on the monotonic clock.
        spans: the spans of the worker's jobs; None where no spans are sent.
    """

    def __init__(
        self,
        hostname: str,
        channel: str,
        ticks: Callable[[int], int],
        dispatcher: Callable[[], EventDispatcher | None],
    ) -> None:
        self._channel = channel
        self._dispatcher = dispatcher
        self._log = TaskEventLog(hostname, ticks)
        self._enabled = False
        # Jobs whose start was published, by token, with the time at which their batch ended and how
        # long it ran. Only their ends are published, so that a monitor sees no job without a name.
        self._published: dict[str, tuple[float | None, float | None]] = {}
        self.events_at = NEVER
        self.spans: JobSpans | None = None

    def close(self) -> None:
        """Send the remaining spans, as the worker ends."""
        if self.spans is not None:
            self.spans.close()

    @property
    def _listening(self) -> bool:
        """Whether task events are enabled: by `-E`, or by a monitor's `enable_events`."""
        dispatcher = self._dispatcher()
        # None while Celery's own connection is down, and when the worker drains.
        if dispatcher is not None:
            groups = dispatcher.groups
            self._enabled = dispatcher.enabled and (not groups or "task" in groups)
        return self._enabled

    def started(self, model: ServedModel, batch: Batch) -> None:
        """Publish that a batch was sent to its model process."""
        count_started(keys.TASK_NAME, len(batch.jobs))
        if batch.traced and self.spans is not None:
            self.spans.started(batch)
        if not self._listening:
            return
        head, add = self._log.head, self._log.events.append
        for job in model.event_sampler.sample(batch.jobs, time.monotonic()):
            if job.token in self._published:
                continue  # its first batch was preempted
            started_s = job.dispatched_epoch_s
            self._published[job.token] = NOT_YET
            self._received(job, started_s - (job.dispatched_at - job.claimed_at))
            add(Started(*head(job.id, started_s)))
        self._due()

    def finished(self, batch: Batch, settlements: Iterable[Settlement]) -> None:
        """Note that a batch has ended; without settlements its jobs go back to the queue."""
        if batch.traced and self.spans is not None:
            self.spans.finished(batch)
        ended = (time.time(), time.monotonic() - batch.started_at)
        for settlement in settlements if self._published else ():
            if settlement.token in self._published:
                self._published[settlement.token] = ended

    def preempted(self, batch: Batch) -> None:
        """Note that a batch was preempted by another model's; its jobs run in later batches."""
        if batch.traced and self.spans is not None:
            self.spans.preempted(batch)
        count_started(keys.TASK_NAME, -len(batch.jobs))
        for job in batch.jobs:
            if job.dropped == "lost":
                self._published.pop(job.token, None)

    def settled(
        self, model: ServedModel, settlements: Sequence[Settlement], codes: Sequence[Any]
    ) -> None:
        """Publish the ends that Redis has confirmed, of jobs that the model still holds."""
        if self.spans is not None:
            self.spans.settled(settlements)
        listening, now_s, left_out = self._listening, time.time(), 0
        if not (listening or self._published):
            return
        for settlement, code in zip(settlements, codes, strict=True):
            published = self._published.pop(settlement.token, None)
            if int(code) == FENCED or (published is None and not listening):
                continue
            if published is None:
                # Not sampled until now; or refused, expired or postponed when it was claimed.
                job = model.held.get(settlement.id)
                if job is None or not self._notable(model, job, settlement):
                    left_out += int(code) != POSTPONED
                    continue
                self._received(job, now_s)
                published = NOT_YET
            self._ended(settlement, int(code), *published)
        model.event_sampler.count_omitted(left_out)
        self._due()

    def _notable(self, model: ServedModel, job: LeasedJob, settlement: Settlement) -> bool:
        """Return whether to publish the end of a job whose start was not published."""
        sampler = model.event_sampler
        if job.dispatched_at and (sampler.mode is True or settlement.state == State.SUCCEEDED):
            return False
        return sampler.take_notable(time.monotonic())

    def released(self, jobs: Sequence[LeasedJob], outcomes: Sequence[Any]) -> None:
        """Publish what Redis did with released jobs."""
        if self.spans is not None:
            self.spans.released(jobs)
        for job, outcome in zip(jobs, outcomes, strict=True):
            published = self._published.pop(job.token, None)
            head = self._log.head(job.id, time.time())
            if published is not None and outcome == b"cancelled":
                self._log.events.append(Revoked(*head, terminated=True))
            elif published is not None and outcome == b"delayed":
                lost = "ReplicaLost('its model process died while it ran alone')"
                self._log.events.append(Retried(*head, lost, None))
            elif published is not None and outcome == b"dead":
                lost = "ReplicaLost('its model process died each time that it ran alone')"
                self._log.events.append(Failed(*head, lost, None))
        self._due()

    def _received(self, job: LeasedJob, epoch_s: float) -> None:
        message = job.message
        if message is None:  # a message that cannot be read has no arguments
            shown, root, parent, eta, expires = "{}", job.id, None, None, None
        else:
            shown = arguments_repr(message.model, message.input, message.source)
            root, parent = message.root_id, message.parent_id
            eta, expires = _iso(message.eta_s), _iso(message.expires_s)
        head = self._log.head(job.id, epoch_s)
        retries = job.attempts - 1
        self._log.events.append(
            Received(*head, keys.TASK_NAME, "()", shown, root, parent, retries, eta, expires)
        )

    def _ended(
        self, settlement: Settlement, code: int, ended_s: float | None, runtime_s: float | None
    ) -> None:
        head, add = self._log.head(settlement.id, ended_s or time.time()), self._log.events.append
        if code == CANCELLED or settlement.state == State.CANCELLED:
            # A worker settles a job as cancelled only if it has not run.
            add(Revoked(*head, terminated=settlement.state != State.CANCELLED))
        elif code == POSTPONED:
            # Without an error the job only waits for its eta.
            if settlement.value:
                add(Retried(*head, *_error(settlement)))
        elif settlement.state == State.SUCCEEDED:
            kind = str(settlement.value) if settlement.extra == JobField.RESULT_TYPE else ""
            add(Succeeded(*head, result_text(settlement.meta, kind), runtime_s))
        else:
            add(Failed(*head, *_error(settlement)))

    def _due(self) -> None:
        if self._log.events and self.events_at == NEVER:
            self.events_at = time.monotonic() + EVENTS_S

    def events(self, now: float) -> list[Command]:
        """Return the events that are due, as one publication."""
        waiting = len(self._log.events)
        if not waiting or (now < self.events_at and waiting < EVENTS_MAX):
            return []
        self.events_at = NEVER
        return [("PUBLISH", self._channel, self._log.message())]


def _iso(epoch_s: float | None) -> str | None:
    return None if epoch_s is None else iso(int(epoch_s * US_PER_S))


def _error(settlement: Settlement) -> tuple[str, str | None]:
    """Return the error as Celery shows exceptions, and its traceback."""
    value = settlement.value
    error = read_error(value if isinstance(value, bytes) else str(value))
    name = BY_CODE.get(error.type, HeadraceError).__name__
    return f"{name}({error.message!r})", traceback_text(settlement.meta)
