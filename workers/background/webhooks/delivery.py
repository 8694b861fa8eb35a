"""Delivers webhooks: runs the task `headrace.webhook`, in an event loop of its own.

A task reads how its job has ended, notes in Redis that an attempt begins, and ends. The attempt
continues in the event loop, and stores its outcome. A delivery that has not arrived waits in Redis
for its next attempt: `hr:hooks` has the time, and a sweep sends the task again. So no delivery
waits in memory, and no thread waits for a receiver. An attempt that its worker does not survive is
made again, under the same `webhook-id`. throttling.py limits the attempts per receiver and per API
key.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import msgspec

from headrace.config.settings import Settings
from headrace.errors import BrokerError
from headrace.jobs.job import Job, State, iso
from headrace.jobs.options import ENDS
from headrace.queue.asyncio_tasks import RunningTasks
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
from headrace.redis.outages import OutageLog
from headrace.schema.serialization import job_object
from headrace.webhooks.signing import secrets_of, signature
from headrace.webhooks.task_message import STARTED, WebhookTask, event_type
from workers.background.webhooks.http import (
    BODY_MAX_S,
    Resolve,
    WebhookResponse,
    WebhookSender,
    look_up,
)
from workers.background.webhooks.throttling import ATTEMPTS_MAX, EndpointKey, EndpointThrottle
from workers.threads import run_critical

logger = logging.getLogger(__name__)

#: The wait before a retry is drawn from 0 to this many seconds. The limit grows fourfold with each
#: retry, up to the maximum.
RETRY_FIRST_S: Final = 5.0
RETRY_FACTOR: Final = 4.0
RETRY_MAX_S: Final = 4 * 3600.0
SWEEP_S: Final = 1.0
#: The same while tasks wait for their turn.
TURNS_S: Final = 0.05
SWEEP_MAX: Final = 200
#: Seconds beyond the longest attempt after which its worker counts as dead, and it is made again.
LOST_S: Final = 5.0
#: Seconds between two attempts to store an outcome while Redis is away, and how many are made.
SAVE_AGAIN_S: Final = 1.0
SAVE_TRIES: Final = 30
#: A result whose Celery message is longer is left out; the receiver fetches it by its link.
RESULT_MAX_BYTES: Final = 256 * 1024
DELIVERED, RETRIED, FAILED = (f"{COUNTER}:{outcome}" for outcome in OUTCOMES)


class WebhookDeliverer:
    """Delivers the webhooks of a background worker.

    Args:
        resolve: replaces the system's resolver.

    Attributes:
        outage: logs when Redis is away, and when it is back.

    Raises:
        ConfigError: webhook_ca_file cannot be read.
    """

    def __init__(
        self, settings: Settings, redis_url: str, resolve: Resolve = look_up, owner: str = ""
    ) -> None:
        self.outage = OutageLog(logger, "deliveries")
        self._settings = settings
        self._owner = owner
        self._url = redis_url
        self._sender = WebhookSender(settings, resolve)
        self._ready = threading.Event()
        self._throttle = EndpointThrottle()
        self._running = RunningTasks()
        self._attempt_max_s = settings.webhook_timeout_s + BODY_MAX_S
        self._loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        """Start to serve, in a thread that ends with the process."""
        run = partial(asyncio.run, self._serve())
        threading.Thread(
            target=run_critical, args=(run, "the webhooks'"), name="headrace-webhooks", daemon=True
        ).start()

    def stop(self) -> None:
        """Wait for the attempts under way; call it from any other thread."""
        if self._ready.is_set():
            asyncio.run_coroutine_threadsafe(self._drained(), self._loop).result()

    def deliver(self, task: WebhookTask) -> None:
        """Begin an attempt, or delay it; call it from any other thread.

        Raises:
            BrokerError: Redis does not answer; run the task again.
        """
        self._ready.wait()
        asyncio.run_coroutine_threadsafe(self._deliver(task), self._loop).result()

    async def _drained(self) -> None:
        if self._running:
            await asyncio.wait(self._running, timeout=self._attempt_max_s + LOST_S)

    async def _serve(self) -> None:
        self._queue = JobQueue(connect_async(self._url))
        self._store = DeliveryStore(self._queue, self._owner)
        self._loop = asyncio.get_running_loop()
        # Look-ups of names; a look-up that hangs holds its thread.
        self._loop.set_default_executor(ThreadPoolExecutor(ATTEMPTS_MAX, "headrace-names"))
        with contextlib.suppress(BrokerError):
            await self._queue.read_clock()
        self._ready.set()
        while True:
            try:
                await self._queue.read_clock()
                due, waiting = await self._store.send_due(SWEEP_MAX)
            except BrokerError as error:
                self.outage.began(error.message)
                due = waiting = 0
            else:
                self.outage.ended()
            self._throttle.prune(time.monotonic())
            if due < SWEEP_MAX:
                await asyncio.sleep(TURNS_S if waiting else SWEEP_S)

    async def _deliver(self, task: WebhookTask) -> None:
        log = await self._store.read(task.job)
        pending = await self._pending(task, log)
        if pending is None or pending.delivery.state != "pending":
            return
        delivery, body = pending.delivery, pending.body
        surplus = tuple([] if pending.text else log.surplus(delivery.owner))
        endpoint, now = _endpoint(delivery), time.monotonic()
        wait_s = self._throttle.wait_s(endpoint, now, by_hand=delivery.by_hand)
        if wait_s > 0 and (not delivery.tries or self._in_time(delivery, wait_s)):
            # The throttle's wait is no attempt.
            waiting = delivery.becoming("pending", self._in_us(wait_s))
            await self._save(pending, Change(waiting, wait_s, body), surplus)
            return
        self._throttle.begin(endpoint)
        began = delivery.becoming("pending", self._now_us())
        kept = None
        try:
            change = Change(began, self._attempt_max_s + LOST_S, begins=True)
            kept = await self._save(pending, change, surplus)
        finally:
            if kept is None:
                self._throttle.leave(endpoint)
        if kept is not None:
            kept = msgspec.structs.replace(kept, body=body)
            self._running.begin(self._attempt(kept, endpoint))

    async def _pending(self, task: WebhookTask, log: DeliveryLog) -> PendingDelivery | None:
        """Return the task's delivery with its body; None if there is nothing to do."""
        if task.delivery:
            pending = log.deliveries.get(task.delivery)
            if pending is None:
                logger.warning("webhook delivery has expired", extra={"webhook": task.delivery})
                return None
            delivery = pending.delivery
            if task.turn != delivery.turn:
                # A repeat of a task that has begun an attempt.
                return None
            state = ENDS.get(delivery.type.removeprefix("job."))
            event = WebhookEvent(delivery.type, delivery.at_us, state)
            job = None
        else:
            job = own_job(await self._queue.read(task.job), task.owner)
            known = event_of(task, log, job)
            if known is None:
                logger.warning("webhook dropped: the job's end is unknown", extra={"job": task.job})
                return None
            event = known
            pending = self._begun(task, event, log)
            if pending.text:
                # A repeat: the delivery has its time in `hr:hooks`, or has ended.
                return None
        if pending.delivery.state != "pending" or pending.body:
            return pending
        # A delivery that is sent again on request is made of the job's record once more.
        if task.delivery:
            delivery, record = pending.delivery, await self._queue.read(task.job)
            job = own_job(record, delivery.owner, before_us=delivery.at_us)
        return msgspec.structs.replace(pending, body=body_of(pending.delivery, event, job))

    def _begun(self, task: WebhookTask, event: WebhookEvent, log: DeliveryLog) -> PendingDelivery:
        name = delivery_id(task.message_id, 0 if event.state is None else event.at_us)
        if name in log.deliveries:
            return log.deliveries[name]
        now_us = self._now_us()
        at_us = event.at_us or now_us
        return PendingDelivery(
            Delivery(
                id=name, type=event.type, job=task.job, url=task.url, owner=task.owner,
                model=task.model, at_us=at_us, created_us=now_us,
                until_us=at_us + self._settings.webhook_retry_s * US_PER_S,
            )
        )  # fmt: skip

    async def _attempt(self, pending: PendingDelivery, endpoint: EndpointKey) -> None:
        delivery, body = pending.delivery, pending.body
        try:
            response, attempt = await self._send(pending, endpoint)
        finally:
            self._throttle.leave(endpoint)
        tried = delivery.tried(attempt)
        # A long Retry-After leaves time for more attempts.
        left_s = (delivery.until_us - self._now_us()) / US_PER_S
        retry_s = max(backoff_s(tried.tries), min(response.retry_after_s, left_s / 2))
        if not response.error:
            change = Change(tried.becoming("delivered"), None, None, DELIVERED)
        elif not response.final and self._in_time(delivery, retry_s):
            change = Change(tried.becoming("pending", self._in_us(retry_s)), retry_s, body, RETRIED)
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
        try:
            await self._save(pending, change)
        except BrokerError as error:
            self.outage.began(error.message)
            fields = {"webhook": delivery.id, "reason": error.message}
            logger.info("outcome of a webhook not stored; it is sent again", extra=fields)

    async def _send(
        self, pending: PendingDelivery, endpoint: EndpointKey
    ) -> tuple[WebhookResponse, Attempt]:
        delivery = pending.delivery
        began, at_us = time.monotonic(), self._now_us()
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
        response = await self._sender.send(
            delivery.url, headers, pending.body, owner=delivery.owner
        )
        now = time.monotonic()
        self._throttle.ended(
            endpoint, now, now - began, answers=response.answers, hold_s=response.retry_after_s
        )
        attempt = Attempt(at_us, round((now - began) * 1000), response.status, response.error)
        return response, attempt

    async def _save(
        self, pending: PendingDelivery, change: Change, surplus: tuple[str, ...] = ()
    ) -> PendingDelivery | None:
        """Store a change, and retry while Redis is away.

        Returns:
            As it is stored; None if another worker has the delivery.
        """
        ttl_s = self._settings.webhook_log_ttl_s
        if change.delay_s is not None:
            ttl_s += int(change.delay_s) + self._settings.webhook_retry_s
        for left in reversed(range(SAVE_TRIES)):
            try:
                saved = await self._store.save(pending, change, ttl_s=ttl_s, surplus=surplus)
            except BrokerError:
                if not left:
                    raise
                await asyncio.sleep(SAVE_AGAIN_S)
                continue
            if isinstance(saved, PendingDelivery):
                return saved
            if not _replaces(change.delivery, saved):
                return None
            pending = PendingDelivery(pending.delivery, saved)
        return None

    def _now_us(self) -> int:
        # By Redis' clock, as the end of the job is.
        return int(self._queue.clock.now_s() * US_PER_S)

    def _in_us(self, delay_s: float) -> int:
        return self._now_us() + int(delay_s * US_PER_S)

    def _in_time(self, delivery: Delivery, delay_s: float) -> bool:
        return self._in_us(delay_s) <= delivery.until_us


def _replaces(ours: Delivery, stored: bytes) -> bool:
    """Return whether our outcome replaces that which another worker has stored meanwhile.

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


class WebhookEvent(msgspec.Struct, frozen=True):
    """The event that a webhook reports.

    Attributes:
        state: the job's final state; None if it has only started.
    """

    type: str
    at_us: int
    state: State | None = None


def own_job(job: Job | None, owner: str, *, before_us: int = 0) -> Job | None:
    """Return the job that an id has now; None if the webhook is about another job.

    Args:
        job: what the id's record holds: once a record is gone, any API key may use its id.
        owner: the API key whose webhook it is; "" for none.
        before_us: the job was created before this time; 0 if that is unknown.
    """
    if job is None or job.key != owner or 0 < before_us < job.created_us:
        return None
    return job


def event_of(task: WebhookTask, log: DeliveryLog, job: Job | None) -> WebhookEvent | None:
    """Return the event that a task reports; None if its job's end is not known any more.

    The last end is stored apart from the job's record. The record may have expired, or the job may
    have been requeued since.
    """
    if task.started:
        began = job.started_us or job.created_us if job is not None else 0
        return WebhookEvent(f"job.{STARTED}", began)
    end = log.ends.get(task.owner)
    if end is not None:
        state = State(end[0])
        return WebhookEvent(event_type(state), end[1], state)
    if job is not None and job.state.final:
        return WebhookEvent(event_type(job.state), job.ended_us, job.state)
    return None


def body_of(delivery: Delivery, event: WebhookEvent, job: Job | None) -> bytes:
    """Return the webhook's body, with a short form of a job whose record has changed since.

    Its form is that of Standard Webhooks: a type, a time and data (here the job).
    """
    if job is not None and (event.state is None or job.ended_us == event.at_us):
        small = len(job.meta) + len(job.recorded) <= RESULT_MAX_BYTES
        # A traceback shows the handler's code, which is not the receiver's.
        # A receiver may be anybody's: it learns no file and no host of the deployment.
        data = job_object(job, with_result=small, with_traceback=False, with_workers=False)
    else:
        short = {
            "id": delivery.job,
            "model": delivery.model,
            "status": (event.state or State.RUNNING).status,
            "finished_at": iso(event.at_us) if event.state is not None else None,
            "record_expired": True,
        }
        data = msgspec.json.encode(short)
    return b'{"type":"%s","timestamp":"%s","data":%s}' % (
        event.type.encode(),
        iso(delivery.at_us).encode(),
        data,
    )
