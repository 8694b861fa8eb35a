"""The webhook deliveries of jobs in Redis."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Literal

import msgspec

from headrace.queue.job_queue import JobQueue
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.scripts import script
from headrace.webhooks.task_message import WebhookTask, message

PREFIX: Final = "msg_"
#: A field of `hr:hook:<id>` with how the job of an API key has ended; the key follows.
_END: Final = b"e:"
#: The counter of tries in `hr:stats:`; the outcome follows.
COUNTER: Final = "webhooks"
OUTCOMES: Final = ("delivered", "retried", "failed")
#: A job that is requeued again and again ends as often. This many of its deliveries are kept, ...
DELIVERIES_MAX: Final = 20
#: ... and this many tries of each, the newest.
ATTEMPTS_MAX: Final = 30

DeliveryState = Literal["pending", "delivered", "failed"]


class Attempt(msgspec.Struct, frozen=True):
    """One try: its HTTP status, 0 without an answer, and what failed, "" if nothing did."""

    at_us: int
    ms: int
    status: int = 0
    error: str = ""


class Delivery(msgspec.Struct, frozen=True):
    """One delivery of a webhook, until it succeeds or fails.

    Attributes:
        id: the header `webhook-id`, the same for each try.
        type: as `job.succeeded`.
        owner: the API key that owns the job; "" for none.
        at_us: when the event happened.
        until_us: no try begins after this.
        created_us: when its first try was due.
        next_us: when it is tried again; 0 for never.
        turn: counts the background tasks that were made for it; an earlier one does nothing.
        by_hand: its next try was requested, so it waits for no pause of its receiver.
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
    turn: int = 0
    by_hand: bool = False

    @property
    def failing(self) -> bool:
        """Whether its last try failed."""
        return self.state != "delivered" and any(one.error for one in self.attempts[-1:])

    def tried(self, attempt: Attempt) -> Delivery:
        """Return the delivery after one more try."""
        kept = (*self.attempts, attempt)[-ATTEMPTS_MAX:]
        return msgspec.structs.replace(self, tries=self.tries + 1, attempts=kept, by_hand=False)

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
        begins: it is sent now. If the sender dies, it is tried again before `delay_s` is over.
    """

    delivery: Delivery
    delay_s: float | None = None
    body: bytes | None = b""
    counted: str = ""
    begins: bool = False


class DeliveryLog(msgspec.Struct, frozen=True):
    """All webhook deliveries of one job id, which API keys may have used in turn.

    Attributes:
        ends: by API key ("" for none), how its job last ended, if a webhook wants it: the letter of
            the state, and when.
    """

    ends: dict[str, tuple[str, int]] = {}
    deliveries: dict[str, PendingDelivery] = {}

    def surplus(self, owner: str) -> list[str]:
        """Deliveries to delete when the owner saves one more: its oldest that have ended."""
        over = [
            pending.delivery
            for pending in self.deliveries.values()
            if pending.delivery.owner == owner
        ]
        over.sort(key=lambda delivery: (delivery.state == "pending", delivery.created_us))
        return [delivery.id for delivery in over[: max(0, len(over) + 1 - DELIVERIES_MAX)]]


def delivery_id(event: str, at_us: int) -> str:
    """Return the id of a delivery: the same for a repeat, another for another end of the job."""
    digest = hashlib.blake2b(f"{event} {at_us}".encode(), digest_size=16)
    return PREFIX + digest.hexdigest()


def read_log(fields: Mapping[bytes, bytes]) -> DeliveryLog:
    """Read `hr:hook:<id>`; unreadable deliveries, as of another version, are left out."""
    deliveries: dict[str, PendingDelivery] = {}
    for raw, text in fields.items():
        name = raw.decode("utf-8", "replace")
        if not name.startswith(PREFIX):
            continue
        try:
            delivery = msgspec.json.decode(text, type=Delivery)
        except msgspec.MsgspecError:
            continue
        deliveries[name] = PendingDelivery(delivery, text, fields.get(b"b:" + raw, b""))
    ends = {
        name[len(_END) :].decode("utf-8", "replace"): end
        for name, text in fields.items()
        if name.startswith(_END) and (end := _read_end(text)) is not None
    }
    return DeliveryLog(ends, deliveries)


def _read_end(text: bytes) -> tuple[str, int] | None:
    """Return the letter and the time of `<letter><time>`; None if it cannot be read."""
    letter, ended = text[:1].decode("ascii", "replace"), text[1:]
    return (letter, int(ended)) if letter and ended.isdigit() else None


class DeliveryStore:
    """Reads and keeps deliveries.

    Args:
        sender: the background worker that sends them; empty for a process that only changes them.
    """

    def __init__(self, queue: JobQueue, sender: str = "") -> None:
        self._queue = queue
        self._sender = sender

    async def read(self, job_id: str) -> DeliveryLog:
        """Read the deliveries of a job; raise BrokerError if Redis does not answer."""
        return read_log(await self._queue.fields(keys.deliveries(job_id)))

    async def save(
        self, kept: PendingDelivery, change: Change, *, ttl_s: int, surplus: tuple[str, ...] = ()
    ) -> PendingDelivery | bytes:
        """Save a delivery, unless another process has changed it.

        Returns:
            As it is kept now, or its text by now if another process has changed it.

        Raises:
            BrokerError: Redis does not answer; it may have been saved.
        """
        new, delay_s = change.delivery, change.delay_s
        again = b""
        if delay_s is not None:
            new = msgspec.structs.replace(new, turn=kept.delivery.turn + 1)
            again = message(WebhookTask(new.job, delivery=new.id, turn=new.turn))
        text = msgspec.json.encode(new)
        delay_us = "" if delay_s is None else max(0, int(delay_s * US_PER_S))
        body = b"-" if change.body is None else change.body
        sending = f"{'+' if change.begins else '-'}{self._sender}" if self._sender else ""
        save = script("webhooks/save").call(
            [], new.job, new.id, kept.text, text, ttl_s, delay_us, again, body,
            change.counted, sending, *_lists(new), *surplus,
        )  # fmt: skip
        answer = await self._queue.call_once(save)
        # Our own text is there if the reply to an earlier try was lost.
        saved = answer[0] == 1 or bytes(answer[1]) == text
        return PendingDelivery(new, text) if saved else bytes(answer[1])

    async def newest(self, limit: int, *, failing: bool) -> list[Delivery]:
        """Return the deliveries of all jobs that were saved last, the newest first.

        Args:
            failing: those whose last try failed, or the others.

        Raises:
            BrokerError: Redis does not answer.
        """
        key = keys.FAILING_DELIVERIES if failing else keys.RECENT_DELIVERIES
        (members,) = await self._queue.read_all([("ZREVRANGE", key, 0, limit - 1)])
        places = [member.decode().partition(" ") for member in members]
        texts = await self._queue.read_all(
            [("HGET", keys.deliveries(job_id), name) for job_id, _, name in places]
        )
        found = []
        for text in filter(None, texts):  # the record of a job has a TTL
            with suppress(msgspec.MsgspecError):  # of another version
                found.append(msgspec.json.decode(text, type=Delivery))
        return found

    async def send_due(self, limit: int) -> tuple[int, int]:
        """Send the background tasks of up to `limit` deliveries that are due and have their turn.

        Returns:
            How many deliveries were due, and how many tasks wait for their turn.

        Raises:
            BrokerError: Redis does not answer.
        """
        due, waiting = await self._queue.call_once(script("webhooks/due").call([], limit))
        return int(due), int(waiting)


def _lists(delivery: Delivery) -> tuple[str, str]:
    """Return the list of all jobs' deliveries that has this one, and the other one."""
    lists = (keys.FAILING_DELIVERIES, keys.RECENT_DELIVERIES)
    return lists if delivery.failing else lists[::-1]
