"""Delivers webhooks: runs the task `headrace.webhook`, in an event loop of its own.

A task reads how its job has ended, makes one attempt, and stores the outcome in Redis. A delivery
that has not arrived waits there for its next attempt: `hr:hooks` has the time, and a sweep sends
the task again. So no delivery waits in memory, and no thread sleeps. An attempt that its worker
does not survive is made again, under the same `webhook-id`.
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
from workers.background.webhooks.payload import WebhookEvent, body_of, event_of, event_of_delivery
from workers.background.webhooks.throttling import EndpointKey, EndpointState, EndpointThrottle
from workers.threads import run_critical

logger = logging.getLogger(__name__)

#: The wait before a retry is drawn from 0 to this many seconds. The limit grows fourfold with each
#: retry, up to the maximum.
RETRY_FIRST_S: Final = 5.0
RETRY_FACTOR: Final = 4.0
RETRY_MAX_S: Final = 4 * 3600.0
SWEEP_S: Final = 1.0
SWEEP_MAX: Final = 200
#: Seconds between two attempts to store an outcome while Redis is away, and how many are made.
SAVE_AGAIN_S: Final = 1.0
SAVE_TRIES: Final = 30
DELIVERED, RETRIED, FAILED = (f"{COUNTER}:{outcome}" for outcome in OUTCOMES)


class WebhookDeliverer:
    """Delivers the webhooks of one background worker.

    Args:
        settings: the deployment's settings.
        redis_url: its Redis.
        resolve: replaces the system's resolver.

    Raises:
        ConfigError: webhook_ca_file cannot be read.
    """

    def __init__(self, settings: Settings, redis_url: str, resolve: Resolve = look_up) -> None:
        self._settings = settings
        self._url = redis_url
        self._sender = WebhookSender(settings, resolve)
        self._ready = threading.Event()
        self._throttle = EndpointThrottle()
        self._loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        """Start to serve, in a thread that ends with the process."""
        run = partial(asyncio.run, self._serve())
        threading.Thread(
            target=run_critical, args=(run, "the webhooks'"), name="headrace-webhooks", daemon=True
        ).start()

    def deliver(self, task: WebhookTask) -> None:
        """Make one attempt; call it from any other thread.

        Raises:
            BrokerError: Redis does not answer; run the task again.
        """
        self._ready.wait()
        asyncio.run_coroutine_threadsafe(self._deliver(task), self._loop).result()

    async def _serve(self) -> None:
        self._queue = JobQueue(connect_async(self._url))
        self._store = DeliveryStore(self._queue)
        self._loop = asyncio.get_running_loop()
        self._ready.set()
        while True:
            try:
                due = await self._store.send_due(SWEEP_MAX)
            except BrokerError as error:
                logger.warning("due webhooks wait for Redis", extra={"reason": error.message})
                due = 0
            self._throttle.forget(time.monotonic())
            if due < SWEEP_MAX:
                await asyncio.sleep(SWEEP_S)

    async def _deliver(self, task: WebhookTask) -> None:
        log = await self._store.read(task.job)
        pending = await self._pending(task, log)
        if pending is not None and pending.delivery.state == "pending":
            await self._attempt(pending, tuple(log.surplus) if not pending.text else ())

    async def _pending(self, task: WebhookTask, log: DeliveryLog) -> PendingDelivery | None:
        """Return the task's delivery with its body; None if there is nothing to do."""
        if task.delivery:
            found = log.deliveries.get(task.delivery)
            if found is None:
                logger.warning("webhook delivery has expired", extra={"webhook": task.delivery})
                return None
            event = event_of_delivery(found.delivery)
            job = None
        else:
            job = await self._queue.read(task.job)
            known = event_of(task, log, job)
            if known is None:
                logger.warning("webhook dropped: the job's end is unknown", extra={"job": task.job})
                return None
            event = known
            found = self._begun(task, event, log)
        if found.delivery.state != "pending" or found.body:
            return found
        # A delivery that is sent again on request is made of the job's record once more.
        job = job if not task.delivery else await self._queue.read(task.job)
        return msgspec.structs.replace(found, body=body_of(found.delivery, event, job))

    def _begun(self, task: WebhookTask, event: WebhookEvent, log: DeliveryLog) -> PendingDelivery:
        name = delivery_id(task.message_id, 0 if event.state is None else event.at_us)
        if name in log.deliveries:
            return log.deliveries[name]
        now_us = _now_us()
        at_us = event.at_us or now_us
        return PendingDelivery(
            Delivery(
                id=name, type=event.type, job=task.job, url=task.url, owner=task.owner,
                model=task.model, at_us=at_us, created_us=now_us,
                until_us=at_us + self._settings.webhook_retry_s * US_PER_S,
            )
        )  # fmt: skip

    async def _attempt(self, pending: PendingDelivery, surplus: tuple[str, ...]) -> None:
        delivery, body = pending.delivery, pending.body
        endpoint = self._throttle.of(_endpoint(delivery))
        wait_s = endpoint.wait_s(time.monotonic())
        if wait_s > 0 and (not delivery.tries or _in_time(delivery, wait_s)):
            # The throttle's wait is no attempt.
            waiting = delivery.becoming("pending", _in_us(wait_s))
            await self._save(pending, Change(waiting, wait_s, body), surplus)
            return
        response, attempt = await self._send(pending, endpoint)
        tried = delivery.tried(attempt)
        retry_s = max(backoff_s(tried.tries), response.retry_after_s)
        if not response.error:
            change = Change(tried.becoming("delivered"), None, None, DELIVERED)
        elif not response.final and _in_time(delivery, retry_s):
            change = Change(tried.becoming("pending", _in_us(retry_s)), retry_s, body, RETRIED)
        else:
            change = Change(tried.becoming("failed"), None, body, FAILED)
        if response.error:
            # Without the URL, any part of which may be a secret.
            then = "given up" if change.delay_s is None else f"again in {retry_s:.0f} s"
            fields = {
                "job": delivery.job, "webhook": delivery.id, "duration_ms": attempt.ms,
                "reason": f"{_endpoint(delivery)[1]}: {response.error}; {then}",
            }  # fmt: skip
            logger.warning("webhook attempt failed", extra=fields)
        await self._save(pending, change, surplus)

    async def _send(
        self, pending: PendingDelivery, endpoint: EndpointState
    ) -> tuple[WebhookResponse, Attempt]:
        delivery = pending.delivery
        began, at_us = time.monotonic(), _now_us()
        secrets = secrets_of(self._settings.webhook_secrets, delivery.owner)
        if not secrets:
            error = "not signed: set webhook_secrets on this server"
            return WebhookResponse(error=error), Attempt(at_us, 0, error=error)
        timestamp_s = at_us // US_PER_S
        headers = {
            "content-type": "application/json",
            "user-agent": "Headrace-Webhooks",
            "webhook-id": delivery.id,
            "webhook-timestamp": str(timestamp_s),
            "webhook-signature": signature(secrets, delivery.id, timestamp_s, pending.body),
        }
        endpoint.running += 1
        try:
            response = await self._sender.send(delivery.url, headers, pending.body)
        finally:
            endpoint.running -= 1
        now = time.monotonic()
        endpoint.ended(now, now - began, answers=response.answers, hold_s=response.retry_after_s)
        attempt = Attempt(at_us, round((now - began) * 1000), response.status, response.error)
        return response, attempt

    async def _save(
        self, pending: PendingDelivery, change: Change, surplus: tuple[str, ...]
    ) -> None:
        """Store an outcome, and retry while Redis is away."""
        ttl_s = self._settings.webhook_log_ttl_s
        if change.delay_s is not None:
            ttl_s += int(change.delay_s) + self._settings.webhook_retry_s
        for left in reversed(range(SAVE_TRIES)):
            try:
                stored = await self._store.save(pending, change, ttl_s=ttl_s, surplus=surplus)
            except BrokerError:
                if not left:
                    raise
                await asyncio.sleep(SAVE_AGAIN_S)
                continue
            if stored is None or not _replaces(change.delivery, stored):
                return
            pending = PendingDelivery(pending.delivery, stored)


def _replaces(ours: Delivery, stored: bytes) -> bool:
    """Return whether our outcome replaces one that another worker has stored meanwhile.

    Both may have made an attempt after a lost connection. A delivery that has arrived stays
    delivered; in every other case the other worker continues.
    """
    if ours.state != "delivered":
        return False
    try:
        return msgspec.json.decode(stored, type=Delivery).state != "delivered"
    except msgspec.MsgspecError:
        return True


def backoff_s(tries: int) -> float:
    """Return the seconds to wait after `tries` attempts: exponential, with full jitter."""
    limit_s = min(RETRY_MAX_S, RETRY_FIRST_S * RETRY_FACTOR ** min(tries - 1, 16))
    return random.uniform(0, limit_s)  # noqa: S311 - no secret


def _endpoint(delivery: Delivery) -> EndpointKey:
    # Per API key, so that a receiver that refuses one key does not delay another's webhooks.
    parts = urlsplit(delivery.url)
    return (delivery.owner, parts.hostname or "", parts.port or 0)


def _now_us() -> int:
    return time.time_ns() // 1000


def _in_us(delay_s: float) -> int:
    return _now_us() + int(delay_s * US_PER_S)


def _in_time(delivery: Delivery, delay_s: float) -> bool:
    return _in_us(delay_s) <= delivery.until_us
