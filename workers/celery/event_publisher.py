"""What a worker says of itself: events of its jobs, model states for /ready, counters.

Of a job's end it tells only what Redis has confirmed: a job that was cancelled while it ran is
revoked, whatever its handler gave, and a job that another worker holds by now is for that to tell.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
from celery.worker import state as celery_state

from headrace.errors import BY_CODE, HeadraceError
from headrace.jobs.job import State, iso
from headrace.jobs.message import arguments_repr
from headrace.observability.host_figures import FIELD as FIGURES
from headrace.observability.versions import running
from headrace.observability.worker_report import CLOCK
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.scripts import Arg, Command
from headrace.redis.scripts import workers as worker_scripts
from headrace.redis.scripts.jobs import CANCELLED, FENCED, POSTPONED
from headrace.redis.traffic import TRAFFIC
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
from workers.observability.host_metrics import NOTHING
from workers.protocol.phases import BEST_FIRST, Phase

if TYPE_CHECKING:
    from workers.observability.job_spans import JobSpans

#: Events leave at least this often, in seconds, ...
EVENTS_S: Final = 0.1
#: ... or as soon as there are this many.
EVENTS_MAX: Final = 1000
NOT_YET: Final = (None, None)
_encode: Final = msgspec.json.encode


class EventDispatcher(Protocol):
    """Celery's event dispatcher, as far as it is used here; no groups means all of them."""

    enabled: bool
    groups: set[str]


class EventPublisher:
    """Speaks for one worker.

    Args:
        owner: this incarnation.
        hostname: Celery's node name, such as gpu0@host.
        channel: the pub/sub channel of lists of task events.
        ticks: advances Celery's logical clock by so many and gives the first of them.
        dispatcher: gives Celery's event dispatcher, or None while there is none.
        figures: what was measured last of host, devices and model processes, as JSON.

    Attributes:
        spans: hears the same, where spans are sent.
    """

    def __init__(
        self,
        owner: str,
        hostname: str,
        channel: str,
        ticks: Callable[[int], int],
        dispatcher: Callable[[], EventDispatcher | None],
        figures: Callable[[], bytes] = lambda: NOTHING,
    ) -> None:
        self.owner = owner
        self.hostname = hostname
        self._channel = channel
        self._dispatcher = dispatcher
        self._figures = figures
        self._own = _encode({"node": hostname, "pid": os.getpid(), "versions": running()})
        self._log = TaskEventLog(hostname, ticks)
        self._asked_for = False
        # Jobs whose start was told, by token, with when their batch ended and how long it ran. Only
        # of these is the end told, so that a monitor sees no job without a name.
        self._told: dict[str, tuple[float | None, float | None]] = {}
        self.events_at = NEVER
        self.spans: JobSpans | None = None

    def close(self) -> None:
        """The worker ends: send what is left of spans."""
        if self.spans is not None:
            self.spans.close()

    @property
    def _listening(self) -> bool:
        """Whether task events are asked for: by `-E`, or by a monitor's `enable_events`."""
        dispatcher = self._dispatcher()
        # There is none while Celery's own connection is down, and once the worker drains.
        if dispatcher is not None:
            groups = dispatcher.groups
            self._asked_for = dispatcher.enabled and (not groups or "task" in groups)
        return self._asked_for

    def started(self, model: ServedModel, batch: Batch) -> None:
        """A batch of the lane went to its model process."""
        celery_state.all_total_count[0] += len(batch.jobs)
        celery_state.total_count[keys.TASK_NAME] += len(batch.jobs)
        if batch.traced and self.spans is not None:
            self.spans.started(batch)
        if not self._listening:
            return
        head, add = self._log.head, self._log.events.append
        for job in model.event_sampler.sample(batch.jobs, time.monotonic()):
            if job.token in self._told:
                continue  # its first batch gave way
            started_s = job.dispatched_epoch_s
            self._told[job.token] = NOT_YET
            self._received(job, started_s - (job.dispatched_at - job.claimed_at))
            add(Started(*head(job.id, started_s)))
        self._due()

    def finished(self, batch: Batch, settlements: Iterable[Settlement]) -> None:
        """A batch left its model process; without settlements its jobs went back to the queue."""
        if batch.traced and self.spans is not None:
            self.spans.finished(batch)
        ended = (time.time(), time.monotonic() - batch.started_at)
        for settlement in settlements if self._told else ():
            if settlement.token in self._told:
                self._told[settlement.token] = ended

    def preempted(self, batch: Batch) -> None:
        """A batch came back as another model's was to run first; its jobs leave in others."""
        if batch.traced and self.spans is not None:
            self.spans.preempted(batch)
        celery_state.all_total_count[0] -= len(batch.jobs)
        celery_state.total_count[keys.TASK_NAME] -= len(batch.jobs)
        for job in batch.jobs:
            if job.dropped == "lost":
                self._told.pop(job.token, None)

    def settled(
        self, model: ServedModel, settlements: Sequence[Settlement], codes: Sequence[Any]
    ) -> None:
        """Redis has answered how these jobs of the lane, which still holds them, have ended."""
        if self.spans is not None:
            self.spans.settled(settlements)
        listening, now_s, left_out = self._listening, time.time(), 0
        if not (listening or self._told):
            return
        for settlement, code in zip(settlements, codes, strict=True):
            told = self._told.pop(settlement.token, None)
            if int(code) == FENCED or (told is None and not listening):
                continue
            if told is None:
                # Left out until now; or refused, expired or put off as soon as it was claimed.
                job = model.held.get(settlement.id)
                if job is None or not self._worth_telling(model, job, settlement):
                    left_out += int(code) != POSTPONED
                    continue
                self._received(job, now_s)
                told = NOT_YET
            self._ended(settlement, int(code), *told)
        model.event_sampler.count_omitted(left_out)
        self._due()

    def _worth_telling(self, model: ServedModel, job: LeasedJob, settlement: Settlement) -> bool:
        """Whether to tell of a job at its end of which nothing was told when it began."""
        telling = model.event_sampler
        if job.dispatched_at and (telling.mode is True or settlement.state == State.SUCCEEDED):
            return False
        return telling.take_notable(time.monotonic())

    def released(self, jobs: Sequence[LeasedJob], outcomes: Sequence[Any]) -> None:
        """Redis has answered what became of jobs that were given back."""
        if self.spans is not None:
            self.spans.released(jobs)
        for job, outcome in zip(jobs, outcomes, strict=True):
            told = self._told.pop(job.token, None)
            head = self._log.head(job.id, time.time())
            if told is not None and outcome == b"cancelled":
                self._log.events.append(Revoked(*head, terminated=True))
            elif told is not None and outcome == b"delayed":
                lost = "ReplicaLost('its model process died while it ran alone')"
                self._log.events.append(Retried(*head, lost, None))
            elif told is not None and outcome == b"dead":
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
            # A worker itself ends as cancelled only what has not run.
            add(Revoked(*head, terminated=settlement.state != State.CANCELLED))
        elif code == POSTPONED:
            # Without an error it only waits for its eta.
            if settlement.value:
                add(Retried(*head, *_error(settlement)))
        elif settlement.state == State.SUCCEEDED:
            kind = str(settlement.value) if settlement.extra == keys.F.RESULT_TYPE else ""
            add(Succeeded(*head, result_text(settlement.meta, kind), runtime_s))
        else:
            add(Failed(*head, *_error(settlement)))

    def _due(self) -> None:
        if self._log.events and self.events_at == NEVER:
            self.events_at = time.monotonic() + EVENTS_S

    def events(self, now: float) -> list[Command]:
        """The events that are to leave now, as one publication."""
        waiting = len(self._log.events)
        if not waiting or (now < self.events_at and waiting < EVENTS_MAX):
            return []
        self.events_at = NEVER
        return [("PUBLISH", self._channel, self._log.message())]

    def states(self, models: list[ServedModel]) -> list[Command]:
        """Model states, figures and counters, for /ready and /metrics."""
        clock = f"{time.time():.3f}"
        fields: list[Arg] = ["", self._own, FIGURES, self._figures(), CLOCK, clock]
        for model in models:
            fields += (model.config.name, _encode({"node": self.hostname, **model_report(model)}))
        counted: list[Arg] = []
        for model in models:
            stats = keys.stats(model.config.name)
            for name, by in model.stats.drain():
                counted += (stats, name, by)
        for name, count in TRAFFIC.take("worker").items():
            counted += (keys.SHARED_STATS, name, repr(count))
        return [worker_scripts.report(self.owner, fields, counted)]

    def offline(self) -> list[Command]:
        """The worker is about to end."""
        return [
            ("DEL", keys.worker(self.owner)),
            ("ZREM", keys.WORKERS, self.owner),
            *self.events(NEVER),
        ]


def _iso(epoch_s: float | None) -> str | None:
    return None if epoch_s is None else iso(int(epoch_s * US_PER_S))


class _Error(msgspec.Struct):
    type: str
    message: str


_ERROR: Final = msgspec.json.Decoder(_Error)


def _error(settlement: Settlement) -> tuple[str, str | None]:
    """The error as Celery shows exceptions, and its traceback."""
    value = settlement.value
    error = _ERROR.decode(value if isinstance(value, bytes) else str(value))
    name = BY_CODE.get(error.type, HeadraceError).__name__
    return f"{name}({error.message!r})", traceback_text(settlement.meta)


def model_report(model: ServedModel) -> dict[str, Any]:
    """What `/ready` and `inspect stats` show of the model."""
    states = [replica.state for replica in model.replicas]
    first_error = next((replica.error for replica in model.replicas if replica.error), "")
    if any(replica.process is None for replica in model.replicas):
        first_error = first_error or model.restart_limit.reason(time.monotonic())
    return {
        "state": min(states, key=BEST_FIRST.index),
        "replicas": model.config.replicas,
        "ready": sum(state is Phase.READY for state in states),
        "device": model.replicas[0].init["device"],
        "error": first_error,
        "recycled": model.recycled,
        "lost": model.restart_limit.lost,
        "starved": round(model.starved, 3),
        "fits": model.memory_limit.limit
        if model.memory_limit.limit < model.memory_limit.max_size
        else 0,
        "pids": [r.process.pid for r in model.replicas if r.process is not None],
        "backoff_us": model.retry_policy.backoff_us,
        "since": max(replica.since for replica in model.replicas),
    }
