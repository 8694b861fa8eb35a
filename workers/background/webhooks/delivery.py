"""Delivers webhooks: the errand `headrace.webhook`, in an event loop of its own.

An errand reads how its job has ended, tries once, and keeps what came of it in Redis, where a
delivery that has not arrived also waits for its next try: `hr:hooks` has by when, and a sweep sends
the errand again. So nothing that waits is in anybody's memory, and no thread waits for a time. What
dies with the worker in the midst of a try is tried again, under the same `webhook-id`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import msgspec

from headrace.config.settings import Settings
from headrace.errors import BrokerError
from headrace.queue.job_queue import JobQueue
from headrace.queue.webhook_deliveries import (
    COUNTER,
    OUTCOMES,
    Attempt,
    Change,
    Delivery,
    DeliveryLog,
    DeliveryStore,
    PendingDelivery,
    delivery_id,
)
from headrace.redis.clock import US_PER_S
from headrace.redis.connection import connect_async
from headrace.webhooks.signing import secrets_of, signature
from headrace.webhooks.task_message import WebhookTask
from workers.background.webhooks.http import Resolve, WebhookResponse, WebhookSender, look_up
from workers.background.webhooks.payload import JobWebhook, body_of, told_by, what_is_told
from workers.background.webhooks.throttling import EndpointState, EndpointThrottle, Place
from workers.threads import run_critical

logger = logging.getLogger(__name__)

#: The wait before the n-th retry is drawn from 0 to this, which grows fourfold, up to the most.
RETRY_FIRST_S: Final = 5.0
RETRY_FACTOR: Final = 4.0
RETRY_MAX_S: Final = 4 * 3600.0
SWEEP_S: Final = 1.0
SWEEP_MAX: Final = 200
#: Until Redis hears what came of a try it is told again so often, in seconds.
SAVE_AGAIN_S: Final = 1.0
SAVE_TRIES: Final = 30
DELIVERED, RETRIED, FAILED = (f"{COUNTER}:{outcome}" for outcome in OUTCOMES)


class WebhookDelivery:
    """Delivers the webhooks of one background worker.

    Args:
        settings: the deployment's.
        redis_url: its Redis.
        resolve: in place of the system's resolver.

    Raises:
        ConfigError: webhook_ca_file cannot be read.
    """

    def __init__(self, settings: Settings, redis_url: str, resolve: Resolve = look_up) -> None:
        self._settings = settings
        self._url = redis_url
        self._sender = WebhookSender(settings, resolve)
        self._ready = threading.Event()
        self._endpoints = EndpointThrottle()
        self._loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        """Begin to serve, in a thread that ends with the process."""
        run = partial(asyncio.run, self._serve())
        threading.Thread(
            target=run_critical, args=(run, "the webhooks'"), name="headrace-webhooks", daemon=True
        ).start()

    def deliver(self, errand: WebhookTask) -> None:
        """Try once; from any other thread.

        Raises:
            BrokerError: Redis does not answer; the errand is to be done again.
        """
        self._ready.wait()
        asyncio.run_coroutine_threadsafe(self._deliver(errand), self._loop).result()

    async def _serve(self) -> None:
        self._queue = JobQueue(connect_async(self._url))
        self._store = DeliveryStore(self._queue)
        self._loop = asyncio.get_running_loop()
        self._ready.set()
        while True:
            try:
                due = await self._store.send_due(SWEEP_MAX)
            except BrokerError as error:
                logger.warning("webhooks that are due wait", extra={"reason": error.message})
                due = 0
            self._endpoints.forget(time.monotonic())
            if due < SWEEP_MAX:
                await asyncio.sleep(SWEEP_S)

    async def _deliver(self, errand: WebhookTask) -> None:
        log = await self._store.read(errand.job)
        kept = await self._kept(errand, log)
        if kept is not None and kept.delivery.state == "pending":
            await self._try(kept, tuple(log.surplus) if not kept.text else ())

    async def _kept(self, errand: WebhookTask, log: DeliveryLog) -> PendingDelivery | None:
        """The delivery that an errand is for, with its body; None where there is nothing to do."""
        if errand.delivery:
            found = log.deliveries.get(errand.delivery)
            if found is None:
                logger.warning("a webhook is not kept any more", extra={"webhook": errand.delivery})
                return None
            told = told_by(found.delivery)
        else:
            job = await self._queue.read(errand.job)
            said = what_is_told(errand, log, job)
            if said is None:
                logger.warning("nobody knows how the job has ended", extra={"job": errand.job})
                return None
            told = said
            found = self._begun(errand, told, log)
        if found.delivery.state != "pending" or found.body:
            return found
        # What has arrived and is asked for again is made of the record once more.
        job = job if not errand.delivery else await self._queue.read(errand.job)
        return msgspec.structs.replace(found, body=body_of(found.delivery, told, job))

    def _begun(self, errand: WebhookTask, told: JobWebhook, log: DeliveryLog) -> PendingDelivery:
        name = delivery_id(errand.said, 0 if told.state is None else told.at_us)
        if name in log.deliveries:
            return log.deliveries[name]
        now_us = _now_us()
        at_us = told.at_us or now_us
        return PendingDelivery(
            Delivery(
                id=name, type=told.type, job=errand.job, url=errand.url, owner=errand.owner,
                model=errand.model, at_us=at_us, created_us=now_us,
                until_us=at_us + self._settings.webhook_retry_s * US_PER_S,
            )
        )  # fmt: skip

    async def _try(self, kept: PendingDelivery, surplus: tuple[str, ...]) -> None:
        delivery, body = kept.delivery, kept.body
        endpoint = self._endpoints.of(_place(delivery))
        wait_s = endpoint.wait_s(time.monotonic())
        if wait_s > 0 and (not delivery.tries or _in_time(delivery, wait_s)):
            # It counts as no try.
            waiting = delivery.becoming("pending", _in_us(wait_s))
            await self._save(kept, Change(waiting, wait_s, body), surplus)
            return
        sent, attempt = await self._attempt(kept, endpoint)
        tried = delivery.tried(attempt)
        retry_s = max(backoff_s(tried.tries), sent.retry_after_s)
        if not sent.error:
            change = Change(tried.becoming("delivered"), None, None, DELIVERED)
        elif not sent.final and _in_time(delivery, retry_s):
            change = Change(tried.becoming("pending", _in_us(retry_s)), retry_s, body, RETRIED)
        else:
            change = Change(tried.becoming("failed"), None, body, FAILED)
        if sent.error:
            # Not the URL, of which any part may be a secret.
            then = "given up" if change.delay_s is None else f"again in {retry_s:.0f} s"
            told = {
                "job": delivery.job, "webhook": delivery.id, "duration_ms": attempt.ms,
                "reason": f"{_place(delivery)[1]}: {sent.error}; {then}",
            }  # fmt: skip
            logger.warning("a webhook has not arrived", extra=told)
        await self._save(kept, change, surplus)

    async def _attempt(
        self, kept: PendingDelivery, endpoint: EndpointState
    ) -> tuple[WebhookResponse, Attempt]:
        delivery = kept.delivery
        began, at_us = time.monotonic(), _now_us()
        found = secrets_of(self._settings.webhook_secrets, delivery.owner)
        if not found:
            error = "this server has no webhook_secrets to sign it with"
            return WebhookResponse(error=error), Attempt(at_us, 0, error=error)
        timestamp_s = at_us // US_PER_S
        headers = {
            "content-type": "application/json",
            "user-agent": "Headrace-Webhooks",
            "webhook-id": delivery.id,
            "webhook-timestamp": str(timestamp_s),
            "webhook-signature": signature(found, delivery.id, timestamp_s, kept.body),
        }
        endpoint.running += 1
        try:
            sent = await self._sender.send(delivery.url, headers, kept.body)
        finally:
            endpoint.running -= 1
        now = time.monotonic()
        endpoint.ended(now, now - began, answers=sent.answers, hold_s=sent.retry_after_s)
        return sent, Attempt(at_us, round((now - began) * 1000), sent.status, sent.error)

    async def _save(self, kept: PendingDelivery, change: Change, surplus: tuple[str, ...]) -> None:
        """Keep what came of it, also where Redis is away for a while."""
        ttl_s = self._settings.webhook_log_ttl_s
        if change.delay_s is not None:
            ttl_s += int(change.delay_s) + self._settings.webhook_retry_s
        for left in reversed(range(SAVE_TRIES)):
            try:
                known = await self._store.save(kept, change, ttl_s=ttl_s, surplus=surplus)
            except BrokerError:
                if not left:
                    raise
                await asyncio.sleep(SAVE_AGAIN_S)
                continue
            if known is None or not _wins(change.delivery, known):
                return
            kept = PendingDelivery(kept.delivery, known)


def _wins(ours: Delivery, known: bytes) -> bool:
    """Whether ours is to stand in place of what another has said, who tried it meanwhile.

    So it is after a lost connection. What has arrived has arrived; else the other sees to it.
    """
    if ours.state != "delivered":
        return False
    try:
        return msgspec.json.decode(known, type=Delivery).state != "delivered"
    except msgspec.MsgspecError:
        return True


def backoff_s(tries: int) -> float:
    """How long to wait after so many tries: exponential, with full jitter."""
    most = min(RETRY_MAX_S, RETRY_FIRST_S * RETRY_FACTOR ** min(tries - 1, 16))
    return random.uniform(0, most)  # noqa: S311 - no secret


def _place(delivery: Delivery) -> Place:
    # Of each API key by itself: one that a receiver turns away is not to hold up another's.
    parts = urlsplit(delivery.url)
    return (delivery.owner, parts.hostname or "", parts.port or 0)


def _now_us() -> int:
    return time.time_ns() // 1000


def _in_us(delay_s: float) -> int:
    return _now_us() + int(delay_s * US_PER_S)


def _in_time(delivery: Delivery, delay_s: float) -> bool:
    return _in_us(delay_s) <= delivery.until_us
