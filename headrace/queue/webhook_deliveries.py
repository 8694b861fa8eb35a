"""The webhook deliveries of jobs in Redis."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from headrace.queue.job_queue import JobQueue
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.scripts import webhooks as webhook_scripts
from headrace.webhooks.task_message import WebhookTask, message

PREFIX: Final = "msg_"
#: The counter of tries in `hr:stats:`; the outcome follows.
COUNTER: Final = "webhooks"
OUTCOMES: Final = ("delivered", "retried", "failed")
#: A job that is requeued again and again ends as often. This many of its deliveries are kept, ...
DELIVERIES_MAX: Final = 20
#: ... and this many tries of each, the newest.
ATTEMPTS_MAX: Final = 30

DeliveryState = Literal["pending", "delivered", "failed"]


class Attempt(msgspec.Struct, frozen=True):
    """One try.

    Attributes:
        at_us: when it began.
        ms: how long it took.
        status: the HTTP status; 0 without an answer.
        error: what failed; "" if nothing did.
    """

    at_us: int
    ms: int
    status: int = 0
    error: str = ""


class Delivery(msgspec.Struct, frozen=True):
    """One delivery of a webhook, until it succeeds or fails.

    Attributes:
        id: the header `webhook-id`, the same for each try.
        type: as `job.succeeded`.
        job: the job.
        url: the receiver.
        owner: the API key that owns the job; "" for none.
        model: the job's model.
        at_us: when the event happened.
        until_us: no try begins after this.
        created_us: when its first try was due.
        next_us: when it is tried again; 0 for never.
        tries: how many tries there were.
        attempts: the newest tries.
    """

    id: str
    type: str
    job: str
    url: str
    owner: str
    model: str
    at_us: int
    until_us: int
    created_us: int
    state: DeliveryState = "pending"
    next_us: int = 0
    tries: int = 0
    attempts: tuple[Attempt, ...] = ()

    def tried(self, attempt: Attempt) -> Delivery:
        """Return the delivery after one more try."""
        kept = (*self.attempts, attempt)[-ATTEMPTS_MAX:]
        return msgspec.structs.replace(self, tries=self.tries + 1, attempts=kept)

    def becoming(self, state: DeliveryState, next_us: int = 0) -> Delivery:
        """Return the delivery in another state."""
        return msgspec.structs.replace(self, state=state, next_us=next_us)


class PendingDelivery(msgspec.Struct, frozen=True):
    """One delivery, as it was read from Redis.

    Attributes:
        text: its JSON as it was read, to detect changes by others; b"" for a new one.
        body: what it sends; b"" if that is made from the job's record.
    """

    delivery: Delivery
    text: bytes = b""
    body: bytes = b""


class Change(msgspec.Struct, frozen=True):
    """A change of a delivery.

    Attributes:
        delay_s: after how long it is tried again; None for never.
        body: what it sends, to be saved; b"" keeps the saved one, None removes it.
        counted: a counter that grows by one.
    """

    delivery: Delivery
    delay_s: float | None = None
    body: bytes | None = b""
    counted: str = ""


class DeliveryLog(msgspec.Struct, frozen=True):
    """All webhook deliveries of one job.

    Attributes:
        state: the letter of the state in which the job last ended, if a webhook wants it; else "".
        ended_us: when that was.
    """

    state: str = ""
    ended_us: int = 0
    deliveries: dict[str, PendingDelivery] = {}

    @property
    def surplus(self) -> list[str]:
        """Deliveries to delete when one more is saved: the oldest that have ended."""
        over = [one.delivery for one in self.deliveries.values()]
        over.sort(key=lambda delivery: (delivery.state == "pending", delivery.created_us))
        return [delivery.id for delivery in over[: max(0, len(over) + 1 - DELIVERIES_MAX)]]


def delivery_id(event: str, at_us: int) -> str:
    """Return the id of a delivery: the same for a repeat, another for another end of the job."""
    digest = hashlib.blake2b(f"{event} {at_us}".encode(), digest_size=16)
    return PREFIX + digest.hexdigest()


def read_log(fields: Mapping[bytes, bytes]) -> DeliveryLog:
    """Read `hr:hook:<id>`; unreadable deliveries, as of another version, are left out."""
    found: dict[str, PendingDelivery] = {}
    for raw, text in fields.items():
        name = raw.decode("utf-8", "replace")
        if not name.startswith(PREFIX):
            continue
        try:
            delivery = msgspec.json.decode(text, type=Delivery)
        except msgspec.MsgspecError:
            continue
        found[name] = PendingDelivery(delivery, text, fields.get(b"b:" + raw, b""))
    ended = fields.get(b"en", b"0")
    state = fields.get(b"s", b"").decode("ascii", "replace")
    return DeliveryLog(state, int(ended) if ended.isdigit() else 0, found)


class DeliveryStore:
    """Reads and keeps deliveries.

    Args:
        queue: calls the scripts.
    """

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue

    async def read(self, job_id: str) -> DeliveryLog:
        """Read the deliveries of a job.

        Raises:
            BrokerError: Redis does not answer.
        """
        return read_log(await self._queue.fields(keys.deliveries(job_id)))

    async def save(
        self, kept: PendingDelivery, change: Change, *, ttl_s: int, surplus: tuple[str, ...] = ()
    ) -> bytes | None:
        """Save a delivery, unless another process has changed it.

        Args:
            kept: as it was read.
            change: the change.
            ttl_s: how long the job's deliveries are kept.
            surplus: deliveries of the job to delete.

        Returns:
            None, or its text by now if another process has changed it.

        Raises:
            BrokerError: Redis does not answer; it may have been saved.
        """
        new, delay_s = change.delivery, change.delay_s
        again = b"" if delay_s is None else message(WebhookTask(new.job, delivery=new.id))
        delay_us = None if delay_s is None else max(0, int(delay_s * US_PER_S))
        save = webhook_scripts.save(
            new.job, new.id, old=kept.text, new=msgspec.json.encode(new), ttl_s=ttl_s,
            delay_us=delay_us, task=again, body=change.body, counter=change.counted,
            forgotten=surplus,
        )  # fmt: skip
        answer = await self._queue.call_once(save)
        return None if answer[0] == 1 else bytes(answer[1])

    async def send_due(self, most: int) -> int:
        """Send the background tasks of deliveries that are due; return how many.

        Raises:
            BrokerError: Redis does not answer.
        """
        (count,) = await self._queue.call_once(webhook_scripts.due(most))
        return int(count)
