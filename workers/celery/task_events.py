"""Task events about a worker's jobs, for Flower and other Celery monitors.

The events of a batch are one message, which keeps their order. In separate messages a `started`
could overtake its `received`, and Flower would show a job without a name. An event about a job's
end follows Redis' reply. A job that was cancelled while it ran is reported as revoked, whatever its
handler returned. A job whose lease was lost is left to the worker that holds it now.

An event costs the worker more than the rest of a small job, and Flower more than that. So by
default all jobs get events up to a rate, and beyond it a sample of each batch does. Jobs that
failed, were cancelled or are tried again have a rate of their own, because operators look for them.
"""

from __future__ import annotations

import binascii
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
from celery.utils.time import utcoffset

from headrace.errors import BY_CODE, HeadraceError
from headrace.jobs.job import State, iso, read_meta
from headrace.jobs.message import arguments_repr
from headrace.jobs.values.encoding import kombu_size
from headrace.observability.worker_report import UNTOLD, ModelStats
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.fields import JobField
from headrace.redis.scripts import Command
from headrace.redis.scripts.jobs import CANCELLED, FENCED, POSTPONED
from workers.celery.celery_internals import count_started
from workers.jobs.leased_job import NEVER, Batch, LeasedJob
from workers.jobs.settlement import Settlement
from workers.models.served_model import ServedModel
from workers.observability.failure_log import FailureLog, TokenBucket, error_record

if TYPE_CHECKING:
    from workers.observability.job_spans import JobSpans

logger = logging.getLogger(__name__)

#: How many seconds' worth of jobs may get events at once, so that small loads are shown whole.
BURST_S: Final = 10.0
#: Events wait for at most this many seconds, ...
EVENTS_S: Final = 0.1
#: ... or until there are this many.
EVENTS_MAX: Final = 1000
NOT_YET: Final = (None, None)
RESULT_MAX_CHARS: Final = 128
_encode: Final = msgspec.json.encode


# gc=False: no field can lead back to it (CONTRIBUTING.md, Rules).
class TaskEvent(msgspec.Struct, tag_field="type", gc=False):
    """The fields of every event.

    Attributes:
        utcoffset: hours by which local time is behind UTC, as Celery counts them.
        clock: Celery's logical clock, set when the event is sent.
    """

    uuid: str
    hostname: str
    timestamp: float
    utcoffset: float
    pid: int
    clock: int


class Received(TaskEvent, tag="task-received"):
    """A worker has claimed the job."""

    name: str
    args: str
    kwargs: str
    root_id: str
    parent_id: str | None
    retries: int
    eta: str | None
    expires: str | None


class Started(TaskEvent, tag="task-started"):
    """The job's batch was sent to a model process."""


class Succeeded(TaskEvent, tag="task-succeeded"):
    """The job ended with a result."""

    result: str
    runtime: float | None


class Failed(TaskEvent, tag="task-failed"):
    """The job ended with an error."""

    exception: str
    traceback: str | None


class Retried(TaskEvent, tag="task-retried"):
    """The job waits for another attempt."""

    exception: str
    traceback: str | None


class Revoked(TaskEvent, tag="task-revoked"):
    """The job was cancelled."""

    terminated: bool = False
    signum: str | None = None
    expired: bool = False


def result_text(meta: bytes, content_type: str) -> str:
    """Return the beginning of a result's JSON, else its type and size; `meta` may be empty."""
    if not meta:
        return ""
    raw = memoryview(read_meta(meta).result)
    if content_type:
        return f"<{content_type}, {kombu_size(raw)} bytes>"
    # A character has at most four bytes, so more are never shown.
    text = str(raw[: RESULT_MAX_CHARS * 4], "utf-8", "replace")
    return text if len(text) <= RESULT_MAX_CHARS else text[: RESULT_MAX_CHARS - 1] + "…"


class EventDispatcher(Protocol):
    """The used part of Celery's event dispatcher; no groups means all of them."""

    enabled: bool
    groups: set[str]


class EventSampler:
    """Chooses the jobs of a model for which a worker sends events.

    When sampled, `per_s` jobs a second get events, and as many again that end badly or are tried
    again.

    Attributes:
        omitted: how many jobs got no events since the worker started.
    """

    def __init__(self, model: str, mode: bool | str, per_s: float, stats: ModelStats) -> None:
        self.mode = mode
        self.omitted = 0
        self._model = model
        self._per_s = per_s
        self._stats = stats
        burst = max(1.0, per_s * BURST_S)
        self._plain, self._notable = TokenBucket(per_s, burst), TokenBucket(per_s, burst)

    def sample(self, jobs: Sequence[LeasedJob], now: float) -> Sequence[LeasedJob]:
        """Return the jobs of a batch that get events when it begins, in their order."""
        if self.mode is True or not jobs:
            return jobs
        if self.mode is False:
            return ()
        count = self._plain.take(len(jobs), now)
        if count == len(jobs):
            return jobs
        # Spread evenly over the batch: the middle job of each of `count` equal parts.
        chosen = {(2 * n + 1) * len(jobs) // (2 * count) for n in range(count)}
        for place, job in enumerate(jobs):
            if job.attempts > 1 and place not in chosen and self.take_notable(now):
                chosen.add(place)
        return [jobs[place] for place in sorted(chosen)]

    def take_notable(self, now: float) -> bool:
        """Return whether a job outside the sample gets events because operators look for it."""
        return self.mode is True or (bool(self.mode) and self._notable.take(1, now) == 1)

    def count_omitted(self, count: int) -> None:
        """Count jobs that ended without events although a monitor had requested events."""
        if self.mode is False or not count:
            return
        if not self.omitted:
            logger.info(
                "task events are sampled above %g jobs a second; set `events` in the models file "
                "to change this", self._per_s, extra={"model": self._model},
            )  # fmt: skip
        self.omitted += count
        self._stats.count(UNTOLD, count)


class EventPublisher:
    """Publishes the task events of a worker, and starts and ends the spans of its jobs.

    `ticks` advances Celery's logical clock by a count and returns the first of these ticks.
    `dispatcher` returns Celery's event dispatcher, or None while it has none.

    Attributes:
        samplers: by the name of the model.
        spans: the spans of the worker's jobs; None where no spans are sent.
    """

    def __init__(
        self,
        hostname: str,
        channel: str,
        ticks: Callable[[int], int],
        dispatcher: Callable[[], EventDispatcher | None],
        events_per_s: int,
    ) -> None:
        self.samplers: dict[str, EventSampler] = {}
        self._events_per_s = events_per_s
        self._hostname = hostname
        self._channel = channel
        self._ticks = ticks
        self._dispatcher = dispatcher
        self._utcoffset = utcoffset()
        self._pid = os.getpid()
        self._events: list[TaskEvent] = []
        self._enabled = False
        # Jobs whose start was published, by token, with the time at which their batch ended and how
        # long it ran. Only their ends are published, so that a monitor sees no job without a name.
        self._published: dict[str, tuple[float | None, float | None]] = {}
        self.events_at = NEVER
        self.spans: JobSpans | None = None
        self._failures = FailureLog()

    def serve(self, model: ServedModel) -> None:
        """Sample the events of a model, as its configuration has it."""
        config = model.config
        self.samplers[config.name] = EventSampler(
            config.name, config.events, self._events_per_s, model.stats
        )

    def close(self) -> None:
        """Send the remaining spans and lines, as the worker ends."""
        self._failures.flush(last=True)
        if self.spans is not None:
            self.spans.close()

    def report(self, model: ServedModel) -> dict[str, bool | str | int]:
        """Return which of a model's jobs get events, as `inspect stats` shows it."""
        sampler = self.samplers[model.config.name]
        return {"events": sampler.mode, "events_left_out": sampler.omitted}

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
        head, add = self._head, self._events.append
        for job in self.samplers[model.config.name].sample(batch.jobs, time.monotonic()):
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
        self._failures.settled(model.config.name, settlements, codes)
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
                job = model.held_job(settlement.id)
                if job is None or not self._notable(model, job, settlement):
                    left_out += int(code) != POSTPONED
                    continue
                self._received(job, now_s)
                published = NOT_YET
            self._ended(settlement, int(code), *published)
        self.samplers[model.config.name].count_omitted(left_out)
        self._due()

    def _notable(self, model: ServedModel, job: LeasedJob, settlement: Settlement) -> bool:
        """Return whether to publish the end of a job whose start was not published."""
        sampler = self.samplers[model.config.name]
        if job.dispatched_at and (sampler.mode is True or settlement.state == State.SUCCEEDED):
            return False
        return sampler.take_notable(time.monotonic())

    def released(self, jobs: Sequence[LeasedJob], outcomes: Sequence[Any]) -> None:
        """Publish what Redis did with released jobs."""
        if self.spans is not None:
            self.spans.released(jobs)
        for job, outcome in zip(jobs, outcomes, strict=True):
            if outcome == b"dead":
                self._failures.lost("" if job.message is None else job.message.model, job.id)
            published = self._published.pop(job.token, None)
            if published is None:
                continue
            head, add = self._head(job.id, time.time()), self._events.append
            if outcome == b"cancelled":
                add(Revoked(*head, terminated=True))
            elif outcome == b"delayed":
                lost = "ReplicaLost('its model process died while it ran alone')"
                add(Retried(*head, lost, None))
            elif outcome == b"dead":
                lost = "ReplicaLost('its model process died each time that it ran alone')"
                add(Failed(*head, lost, None))
        self._due()

    def _received(self, job: LeasedJob, epoch_s: float) -> None:
        message = job.message
        if message is None:  # a message that cannot be read has no arguments
            shown, root, parent, eta, expires = "{}", job.id, None, None, None
        else:
            shown = arguments_repr(message.model, message.input, message.source)
            root, parent = message.root_id, message.parent_id
            eta, expires = _iso(message.eta_s), _iso(message.expires_s)
        head = self._head(job.id, epoch_s)
        retries = job.attempts - 1
        self._events.append(
            Received(*head, keys.TASK_NAME, "()", shown, root, parent, retries, eta, expires)
        )

    def _ended(
        self, settlement: Settlement, code: int, ended_s: float | None, runtime_s: float | None
    ) -> None:
        head, add = self._head(settlement.id, ended_s or time.time()), self._events.append
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
        if self._events and self.events_at == NEVER:
            self.events_at = time.monotonic() + EVENTS_S

    def events(self, now: float) -> list[Command]:
        """Return the events that are due, as a single publication."""
        self._failures.flush()
        waiting = len(self._events)
        if not waiting or (now < self.events_at and waiting < EVENTS_MAX):
            return []
        self.events_at = NEVER
        return [("PUBLISH", self._channel, self._message())]

    def _head(self, job_id: str, epoch_s: float) -> tuple[str, str, float, float, int, int]:
        """Return the fields of `TaskEvent` for an event."""
        return (job_id, self._hostname, epoch_s, self._utcoffset, self._pid, 0)

    def _message(self) -> bytes:
        """Remove all events, and return them as a message for kombu's channel of event lists."""
        events, self._events = self._events, []
        for clock, event in enumerate(events, self._ticks(len(events))):
            event.clock = clock
        self._utcoffset = utcoffset()
        rest = {
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {"hostname": self._hostname},
            "properties": {
                "delivery_mode": 1,
                "delivery_info": {"exchange": "celeryev", "routing_key": "task.multi"},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": str(uuid.uuid4()),
            },
        }
        # Base64 needs no escaping, so the body is not encoded again.
        body = binascii.b2a_base64(_encode(events), newline=False)
        return b'{"body":"%s",%s' % (body, _encode(rest)[1:])


def _iso(epoch_s: float | None) -> str | None:
    return None if epoch_s is None else iso(int(epoch_s * US_PER_S))


def _error(settlement: Settlement) -> tuple[str, str | None]:
    """Return the error as Celery shows exceptions, and its traceback."""
    error = error_record(settlement)
    name = BY_CODE.get(error.type, HeadraceError).__name__
    traceback = read_meta(settlement.meta).traceback if settlement.meta else None
    return f"{name}({error.message!r})", traceback
