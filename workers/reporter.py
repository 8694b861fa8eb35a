"""What a worker says of itself: Celery's events and state, model states for /ready, counters.

Events of jobs leave as one ordered list: sent one by one, from another thread than Celery's own, a
`started` could overtake its `received`, and Flower would show a job without a name.
"""

from __future__ import annotations

import base64
import os
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import msgspec
from celery.utils.time import utcoffset
from celery.worker import state as celery_state

from headrace import keys
from headrace.messages import arguments_repr
from headrace.scripts import Command
from workers.items import Batch, Settlement
from workers.lane import Lane

#: Events leave at least this often, in seconds, ...
EVENTS_S: Final = 0.1
#: ... or as soon as there are this many.
EVENTS_MAX: Final = 1000
RESULT_REPR_MAX_CHARS: Final = 128
_encode: Final = msgspec.json.encode


class Dispatcher(Protocol):
    """Celery's event dispatcher, as far as it is used here."""

    enabled: bool


class Reporter:
    """Speaks for one worker.

    Args:
        owner: this incarnation.
        hostname: Celery's node name, such as gpu0@host.
        channel: the pub/sub channel of lists of task events.
        clock: ticks Celery's logical clock.
        dispatcher: gives Celery's event dispatcher, or None while there is none.
    """

    def __init__(
        self,
        owner: str,
        hostname: str,
        channel: str,
        clock: Callable[[], int],
        dispatcher: Callable[[], Dispatcher | None],
    ) -> None:
        self.owner = owner
        self.hostname = hostname
        self._channel = channel
        self._clock = clock
        self._dispatcher = dispatcher
        self._events: list[dict[str, Any]] = []
        self.events_at = float("inf")

    @property
    def _listening(self) -> bool:
        dispatcher = self._dispatcher()
        return dispatcher is not None and dispatcher.enabled

    def started(self, batch: Batch) -> None:
        """A batch went to its model process."""
        celery_state.active_requests.update(batch.items)
        celery_state.all_total_count[0] += len(batch.items)
        celery_state.total_count[keys.TASK_NAME] += len(batch.items)
        if not self._listening:
            return
        for item in batch.items:
            message = item.message
            if message is None:
                continue
            self._event(
                "task-received", item.id, name=keys.TASK_NAME, args="()",
                kwargs=arguments_repr(message.model, message.input), root_id=message.root_id,
                parent_id=message.parent_id, retries=item.attempts - 1, eta=None, expires=None,
            )  # fmt: skip
            self._event("task-started", item.id)

    def finished(self, batch: Batch, settlements: Iterable[Settlement]) -> None:
        """A batch left its model process; without settlements its jobs went back to the queue."""
        celery_state.active_requests.difference_update(batch.items)
        if not self._listening:
            return
        runtime_s = time.monotonic() - batch.started_at
        for settlement in settlements:
            if settlement.retry_us:
                self._event(
                    "task-retried", settlement.id, exception=_text(settlement.value), traceback=None
                )
            elif settlement.state == "s":
                result = settlement.meta[33 : 33 + RESULT_REPR_MAX_CHARS].decode("utf-8", "replace")
                self._event("task-succeeded", settlement.id, result=result, runtime=runtime_s)
            else:
                self._event(
                    "task-failed", settlement.id, exception=_text(settlement.value), traceback=""
                )

    def _event(self, kind: str, job_id: str, **fields: Any) -> None:
        if not self._events:
            self.events_at = time.monotonic() + EVENTS_S
        self._events.append(
            {
                "type": kind,
                "uuid": job_id,
                "hostname": self.hostname,
                "timestamp": time.time(),
                "utcoffset": utcoffset(),
                "pid": os.getpid(),
                "clock": self._clock(),
                **fields,
            }
        )

    def events(self, now: float) -> list[Command]:
        """The events that are to leave now, as one publication."""
        if not self._events or (now < self.events_at and len(self._events) < EVENTS_MAX):
            return []
        events, self._events = self._events, []
        self.events_at = float("inf")
        message = {
            "body": base64.b64encode(_encode(events)).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {"hostname": self.hostname},
            "properties": {
                "delivery_mode": 1,
                "delivery_info": {"exchange": "celeryev", "routing_key": "task.multi"},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": str(uuid.uuid4()),
            },
        }
        return [("PUBLISH", self._channel, _encode(message))]

    def states(self, lanes: list[Lane]) -> list[Command]:
        """Model states and counters, for /ready and /metrics."""
        key = keys.worker(self.owner)
        fields: list[str | bytes] = ["", _encode({"node": self.hostname, "pid": os.getpid()})]
        for lane in lanes:
            fields += (lane.model.name, _encode({"node": self.hostname, **lane.report()}))
        now_s = int(time.time())
        commands: list[Command] = [
            ("HSET", key, *fields),
            ("EXPIRE", key, keys.WORKER_TTL_S),
            ("ZREMRANGEBYSCORE", keys.WORKERS, 0, now_s - keys.WORKER_TTL_S),
            ("ZADD", keys.WORKERS, now_s, self.owner),
        ]
        for lane in lanes:
            stats = keys.stats(lane.model.name)
            commands += (("HINCRBYFLOAT", stats, name, repr(by)) for name, by in lane.stats.drain())
        return commands

    def offline(self) -> list[Command]:
        """The worker is about to end."""
        return [
            ("DEL", keys.worker(self.owner)),
            ("ZREM", keys.WORKERS, self.owner),
            *self.events(float("inf")),
        ]


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
