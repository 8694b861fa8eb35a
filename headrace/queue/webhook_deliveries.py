"""The deliveries of a job's webhooks, as Redis keeps them."""

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
#: Counts tries, in `hr:stats:`, by what came of them.
COUNTER: Final = "webhooks"
OUTCOMES: Final = ("delivered", "retried", "failed")
#: A job that is put back again and again ends as often; so many of its deliveries are kept, ...
DELIVERIES_MAX: Final = 20
#: ... and so many tries of each, the newest.
ATTEMPTS_MAX: Final = 30

DeliveryState = Literal["pending", "delivered", "failed"]


class Attempt(msgspec.Struct, frozen=True):
    """One try.

    Attributes:
        at_us: when it began.
        ms: how long it took.
        status: what the receiver answered; 0 where it did not.
        error: what was wrong; "" where nothing was.
    """

    at_us: int
    ms: int
    status: int = 0
    error: str = ""


class Delivery(msgspec.Struct, frozen=True):
    """One thing that is told, until it has arrived or is given up.

    Attributes:
        id: the header `webhook-id`, the same for each try.
        type: as `job.succeeded`.
        job: the job.
        url: where to.
        owner: the API key whose job it is; "" for nobody's.
        model: the job's.
        at_us: when what is told happened.
        until_us: no try begins after this.
        created_us: when it was tried first, or was to be.
        next_us: when it is tried again; 0 for not at all.
        tries: how many there were.
        attempts: the newest of them.
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
        """The same after one more try."""
        kept = (*self.attempts, attempt)[-ATTEMPTS_MAX:]
        return msgspec.structs.replace(self, tries=self.tries + 1, attempts=kept)

    def becoming(self, state: DeliveryState, next_us: int = 0) -> Delivery:
        """The same in another state."""
        return msgspec.structs.replace(self, state=state, next_us=next_us)


class PendingDelivery(msgspec.Struct, frozen=True):
    """What Redis has of one delivery.

    Attributes:
        text: as it stands there, by which a change by another is noticed; b"" where it is new.
        body: what it sends; b"" where that is to be made of the job's record.
    """

    delivery: Delivery
    text: bytes = b""
    body: bytes = b""


class Change(msgspec.Struct, frozen=True):
    """What a delivery is to become.

    Attributes:
        delay_s: after how long it is tried again; None for not at all.
        body: what it sends, to be kept; b"" leaves that as it is, None removes it.
        counted: a counter that goes up with it.
    """

    delivery: Delivery
    delay_s: float | None = None
    body: bytes | None = b""
    counted: str = ""


class DeliveryLog(msgspec.Struct, frozen=True):
    """All that Redis has of one job's webhooks.

    Attributes:
        state: the letter of the state in which the job has ended last, where a webhook asked; "".
        ended_us: when that was.
    """

    state: str = ""
    ended_us: int = 0
    deliveries: dict[str, PendingDelivery] = {}

    @property
    def surplus(self) -> list[str]:
        """Deliveries that are to be forgotten when one more is kept: the oldest that are over."""
        over = [one.delivery for one in self.deliveries.values()]
        over.sort(key=lambda delivery: (delivery.state == "pending", delivery.created_us))
        return [delivery.id for delivery in over[: max(0, len(over) + 1 - DELIVERIES_MAX)]]


def delivery_id(said: str, at_us: int) -> str:
    """The id of what an errand tells: the same for a repeat of it, another for another end."""
    digest = hashlib.blake2b(f"{said} {at_us}".encode(), digest_size=16)
    return PREFIX + digest.hexdigest()


def read_log(fields: Mapping[bytes, bytes]) -> DeliveryLog:
    """Read `hr:hook:<id>`; a delivery that cannot be read, as of another version, is left out."""
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
        """What there is of a job's webhooks.

        Raises:
            BrokerError: Redis does not answer.
        """
        return read_log(await self._queue.fields(keys.deliveries(job_id)))

    async def save(
        self, kept: PendingDelivery, change: Change, *, ttl_s: int, surplus: tuple[str, ...] = ()
    ) -> bytes | None:
        """Keep what became of a delivery, if nobody else has changed it.

        Args:
            kept: as it was read.
            change: as it is to be.
            ttl_s: how long the job's deliveries are kept from now.
            surplus: deliveries of the job that are to be forgotten.

        Returns:
            None, or how it stands there by now.

        Raises:
            BrokerError: Redis does not answer; whether it was kept is not known.
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
        """Send the errands of what is due for another try; how many were due.

        Raises:
            BrokerError: Redis does not answer.
        """
        (count,) = await self._queue.call_once(webhook_scripts.due(most))
        return int(count)
