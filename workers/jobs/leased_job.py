"""A leased job: one claimed job inside a worker."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headrace.jobs.message import Message, arguments_repr
from headrace.redis.clock import US_PER_S
from headrace.redis.keys import TASK_NAME
from workers.jobs.canvas import Canvas

NEVER: Final = float("inf")


class LeasedJob(msgspec.Struct, eq=False, weakref=True):
    """One leased job. Times that end in `_at` are the worker's monotonic seconds.

    Attributes:
        token: the fencing token of this claim.
        message: its message; None until it is read, or if it cannot be read.
        created_us: when it was submitted, by Redis' clock.
        attempts: how often it was claimed, this time included.
        isolated: it was in a batch that was lost, so it runs alone.
        dispatched_at: when it was sent to a model process; 0 before.
        cost: its share of `max_batch_cost`.
        key: only jobs of the same key share a batch.
        step: its priority, one of `headrace.redis.keys.STEPS`.
        overdue_at: from then on it no longer yields to better priorities.
        content_type: of an input that was fetched and is not JSON; else empty.
        canvas: the tasks that follow it; None for most jobs.
        result: its result as JSON text, kept only if tasks follow it.
        dropped: why its outcome no longer counts here: "cancelled", or "lost" to another worker.
        expires_at: until when it must have begun; NEVER without an `expires`.
        retries: how often it was tried again after an error.
    """

    id: str
    token: str
    message: Message | None
    created_us: int
    enqueued_at: float
    claimed_at: float
    attempts: int
    isolated: bool
    dispatched_at: float = 0.0
    dispatched_epoch_s: float = 0.0
    cost: int = 0
    key: str | None = None
    step: int = 0
    overdue_at: float = NEVER
    content_type: str = ""
    canvas: Canvas | None = None
    result: bytes = b"null"
    dropped: str = ""
    expires_at: float = NEVER
    retries: int = 0

    def set_deadlines(self, message: Message, now: float, now_us: int) -> float:
        """Set `expires_at`, and return how many seconds before its eta the job was claimed.

        The message has both times by its sender's clock. They are compared with Redis' clock, which
        all workers share, and from then on measured by the monotonic clock.

        Args:
            message: its message.
            now: the time of its claim.
            now_us: the same by Redis' clock.
        """
        ahead_s = now - now_us / US_PER_S
        if message.expires_s is not None:
            self.expires_at = message.expires_s + ahead_s
        return 0.0 if message.eta_s is None else max(0.0, message.eta_s + ahead_s - now)

    @property
    def input(self) -> bytes:
        """The input's JSON text, or its bytes if it was fetched."""
        return self.message.input if self.message is not None else b"null"

    def info(self) -> dict[str, Any]:
        """Return what `celery inspect active` and Flower's worker page show of a running job."""
        message = self.message
        kwargs = "{}"
        if message is not None:
            kwargs = arguments_repr(message.model, message.input, message.source)
        return {
            "id": self.id,
            "name": TASK_NAME,
            "type": TASK_NAME,
            "args": [],
            "kwargs": kwargs,
            "time_start": self.dispatched_epoch_s or None,
            "acknowledged": False,
            "hostname": None,
            "delivery_info": {"redelivered": self.attempts > 1},
            "worker_pid": None,
        }
