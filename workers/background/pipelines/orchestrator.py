"""Runs the jobs of pipelines, in an event loop in a thread of the background worker.

A pipeline's job is leased while it runs, like a job of a model. If its worker dies, the lease
expires and another worker resumes the job: it finds the stages' jobs under the same ids.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from functools import partial
from typing import Final

import msgspec
from redis.exceptions import RedisError

from headrace.config.model.catalog import Catalog
from headrace.config.settings import Settings
from headrace.errors import HeadraceError
from headrace.jobs.job import State
from headrace.observability.worker_report import CLOCK, ModelState
from headrace.payloads.stores import build_stores
from headrace.queue.asyncio_tasks import cancel_and_wait
from headrace.queue.following.subscription import Subscription
from headrace.queue.following.waiters import Waiters
from headrace.queue.job_queue import JobQueue
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.connection import connect, connect_async
from headrace.redis.outages import MAX_S
from headrace.redis.scripts import Arg, script
from headrace.redis.scripts.jobs import CANCEL_REQUESTED, FENCED, read_cancel_notices
from workers.background.pipelines.execution import PipelineExecution, StageFailed, about
from workers.background.pipelines.leases import PipelineLeases, PipelineQueue
from workers.background.pipelines.settling import PipelineCanvas, failure, success
from workers.background.pipelines.stage_jobs import PipelineLeaseLost, StageJobs
from workers.jobs.leased_job import LeasedJob
from workers.jobs.settlement import Settlement, cancelled, read_details, read_message
from workers.leases.notifications import POLL_S, QueueNotifications

logger = logging.getLogger(__name__)

SWEEP_S: Final = 1.0
#: Seconds before the next attempt while Redis is away.
AWAY_S: Final = MAX_S / 4
_AWAY: Final = (RedisError, OSError, HeadraceError)


class PipelineOrchestrator:
    """The pipelines of a background worker; `run` is the body of its thread."""

    def __init__(
        self, settings: Settings, catalog: Catalog, redis_url: str, owner: str, node: str
    ) -> None:
        self._settings = settings
        self._owner = owner
        self._node = node
        self._url = redis_url
        self._catalog = catalog
        self._queues = [
            PipelineQueue(pipeline, catalog.get(name))
            for name, pipeline in catalog.pipelines.items()
        ]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        self._stopping = False
        # The places of queues that may have waiting jobs.
        self._filled: set[int] = set()
        self._renew_at = self._sweep_at = 0.0

    def stop(self) -> None:
        """Claim no more jobs, and release those that run; any thread may call it."""
        self._stopping = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._woken.set)

    def run(self) -> None:
        """Serve until `stop`."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        client = connect_async(self._url)
        watching = connect(self._url)
        self._job_queue = JobQueue(client)
        self._leases = PipelineLeases(self._job_queue, self._settings, self._owner)
        subscription = Subscription(client)
        waiters = Waiters(subscription, self._owner)
        stores = build_stores(self._settings, self._url)
        self._stage_jobs = StageJobs(
            client, self._job_queue, waiters, stores, self._catalog, self._settings
        )
        self._canvas = PipelineCanvas(self._url, self._settings.result_ttl_s, self._stage_jobs)
        lists = [keys.step_keys(queue.name) for queue in self._queues]
        self._notifications = QueueNotifications(watching, lists, keys.cancel_channel(self._owner))
        subscription.start()
        try:
            while not self._stopping:
                await self._turn()
            await self._release_all()
        finally:
            self._notifications.close()
            waiters.stop()
            await subscription.stop()
            await self._job_queue.close()
            self._stage_jobs.close()
            watching.close()
            await client.aclose()

    async def _turn(self) -> None:
        """Keep the leases, claim jobs for which there is room, and wait for the next event."""
        try:
            if self._notifications.socket() is None:
                await asyncio.to_thread(self._notifications.connect)
                self._filled.clear()
                self._leases.connected()
                self._renew_at = self._sweep_at = 0.0
            await self._upkeep()
            self._woken.clear()
            wanted = [
                n
                for n, queue in enumerate(self._queues)
                if queue.rooms and n in self._notifications.unwatched
            ]
            self._filled |= await asyncio.to_thread(self._notifications.watch, wanted)
            self._notifications.check_timeout(time.monotonic())
            self._read_cancel_notices()
            if not await self._claim_next():
                await self._sleep()
        except _AWAY as error:
            logger.warning("Redis is away, or refuses: %s", error)
            self._notifications.close()
            self._leases.disconnected()
            await asyncio.sleep(AWAY_S)

    async def _claim_next(self) -> bool:
        """Claim from queues that may have jobs, until a claim has jobs; return whether it has."""
        for n, queue in enumerate(self._queues):
            rooms = queue.rooms
            if not rooms or not (n in self._filled or (queue.skipped_offline and all(rooms))):
                continue
            self._filled.discard(n)
            queue.skipped_offline = not all(rooms)
            await self._leases.release_unknown(self._queues)
            now_us, claimed = await self._leases.claim(queue)
            jobs = list(claimed)
            for job, raw in jobs:
                self._begin(queue, raw, job, now_us)
            if jobs:
                return True
        return False

    async def _sleep(self) -> None:
        """Wait until something is pushed, an execution ends, or the next upkeep is due."""
        loop, now = asyncio.get_running_loop(), time.monotonic()
        until = min(self._sweep_at, self._renew_at)
        if self._notifications.polls:
            until = min(until, now + POLL_S)
        sock = self._notifications.socket()
        loop.add_reader(sock, self._woken.set)
        try:
            async with asyncio.timeout(max(0.0, until - now)):
                await self._woken.wait()
        except TimeoutError:
            pass
        finally:
            loop.remove_reader(sock)
        # A slow server sends lengths late. Queues that have changed are read again anyway.
        changed = await asyncio.to_thread(self._notifications.read_changes)
        self._filled |= changed - self._notifications.unwatched
        self._read_cancel_notices()

    def _begin(self, queue: PipelineQueue, raw: bytes, job: LeasedJob, now_us: int) -> None:
        wall = time.time()
        job.dispatched_at, job.dispatched_epoch_s = job.claimed_at, wall
        settlement = read_message(job, raw, queue.config.name, queue.name, now_us)
        message = job.message
        if settlement is None:
            settlement = read_details(job, queue.model)
        own_s = message.timeout_s if message is not None else None
        timeout_s = queue.config.timeout_s if own_s is None else own_s
        execution = PipelineExecution(queue.config, job, self._stage_jobs, wall + timeout_s)
        if settlement is None:
            run = self._run(queue, execution)
        else:
            run = self._end(queue, execution, settlement)
        task = asyncio.create_task(run)
        queue.executions[job.id] = (execution, task)
        task.add_done_callback(partial(self._ended, queue, execution))

    async def _run(self, queue: PipelineQueue, execution: PipelineExecution) -> None:
        try:
            settlement = await self._outcome(execution)
        except asyncio.CancelledError:
            if self._stopping or execution.job.dropped == "lost":
                raise
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            settlement = cancelled(execution.job)
        await self._end(queue, execution, settlement)

    async def _outcome(self, execution: PipelineExecution) -> Settlement:
        try:
            value = await execution.run()
            return await self._stage_jobs.patiently(
                lambda: success(self._stage_jobs, execution, value)
            )
        except StageFailed as error:
            return failure(execution, error)
        except TimeoutError:
            late = ", ".join(execution.unfinished()) or "the first stage"
            limit_s = execution.message.timeout_s or execution.pipeline.timeout_s
            why = f"not finished after {limit_s:g} s; still running: {late}"
            return failure(execution, StageFailed("timeout", why))
        except HeadraceError as error:
            return failure(execution, StageFailed(error.code, f"the result: {error.message}"))
        except Exception as error:
            logger.exception("pipeline execution failed", extra=about(execution))
            why = f"internal error: {type(error).__name__}"
            return failure(execution, StageFailed("internal-error", why))

    async def _end(
        self, queue: PipelineQueue, execution: PipelineExecution, settlement: Settlement
    ) -> None:
        """End the job and its running stages, and retry until Redis has replied."""
        execution.ending = True
        try:
            await self._settle(queue, execution, settlement)
        except PipelineLeaseLost:
            self._abandon(execution)

    async def _settle(
        self, queue: PipelineQueue, execution: PipelineExecution, settlement: Settlement
    ) -> None:
        succeeded = settlement.state == State.SUCCEEDED
        cancelled_jobs = await self._stage_jobs.cancel(execution)
        if any(state.began_s for state in execution.states.values()):
            await self._stage_jobs.save_stages(execution, now=True)
        if not succeeded and execution.job.message is not None:
            # Before the settlement, so that a requeued job runs all of its stages again.
            await self._stage_jobs.clear(execution, cancelled_jobs)
        if execution.job.canvas is not None and not settlement.retried:
            settlement = await self._canvas.send_end(execution, settlement)
        if not await self._stage_jobs.patiently(lambda: self._leases.settle(queue, settlement)):
            raise PipelineLeaseLost
        if succeeded:
            await self._stage_jobs.clear(execution, cancelled_jobs, settled=True)
        await self._stage_jobs.settled(execution, settlement)

    def _abandon(self, execution: PipelineExecution) -> None:
        # This process may have been stopped for a while. The stages' jobs have the same ids for
        # the worker with the new lease, so they belong to it.
        execution.job.dropped = "lost"
        logger.warning("lease lost: another worker has resumed the job", extra=about(execution))

    def _ended(
        self, queue: PipelineQueue, execution: PipelineExecution, task: asyncio.Task[None]
    ) -> None:
        if queue.executions.get(execution.job.id, (None,))[0] is execution:
            del queue.executions[execution.job.id]
        if not task.cancelled() and task.exception() is not None:
            # Its lease expires, and another worker resumes it.
            logger.error(
                "pipeline job abandoned", exc_info=task.exception(), extra=about(execution)
            )
        self._woken.set()

    async def _upkeep(self) -> None:
        now = time.monotonic()
        if now >= self._renew_at:
            self._renew_at = now + self._settings.lease_ttl_s / 3
            for queue in self._queues:
                await self._renew(queue)
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_S
            for queue in self._queues:
                await self._sweep(queue)
            # Resuming a queue changes no list, so nothing else wakes its claim.
            self._filled |= {n for n, queue in enumerate(self._queues) if queue.paused}
            await self._report()

    async def _renew(self, queue: PipelineQueue) -> None:
        for execution, code in await self._leases.renew(queue):
            if code == CANCEL_REQUESTED:
                self._cancel(queue, execution)
            elif code == FENCED and execution.job.dropped != "lost" and not execution.ending:
                # An execution that is ending may have been settled during this call.
                self._abandon(execution)
                self._stop(queue, execution)

    async def _sweep(self, queue: PipelineQueue) -> None:
        now = time.monotonic()
        reply = await self._leases.sweep(queue)
        if reply.orphaned:
            ending = self._canvas.end_orphaned(queue.config, queue.name, reply.orphaned)
            queue.orphans = asyncio.create_task(ending)
        if reply.due_in_us is not None:
            self._sweep_at = min(self._sweep_at, now + reply.due_in_us / US_PER_S + 0.001)

    async def _report(self) -> None:
        """Report that this worker serves its pipelines, as workers report their models."""
        state = ModelState("ready", 1, 1, "", "", self._node, [])
        fields: list[Arg] = [
            "", msgspec.json.encode({"node": self._node, "pid": os.getpid()}),
            CLOCK, f"{time.time():.3f}",
        ]  # fmt: skip
        for queue in self._queues:
            fields += (queue.model.name, msgspec.json.encode(state))
        report = script("workers/report").call([], self._owner, len(fields), *fields)
        await self._job_queue.call_once(report)

    def _read_cancel_notices(self) -> None:
        """Cancel the executions of jobs that were cancelled."""
        for message in self._notifications.take_messages():
            for _, job_id, token in read_cancel_notices(message):
                for queue in self._queues:
                    execution = queue.find(job_id, token)
                    if execution is not None:
                        self._cancel(queue, execution)

    def _cancel(self, queue: PipelineQueue, execution: PipelineExecution) -> None:
        # The settlement of an execution that is ending finds the cancellation in its record.
        if not execution.job.dropped and not execution.ending:
            execution.job.dropped = "cancelled"
            self._stop(queue, execution)

    @staticmethod
    def _stop(queue: PipelineQueue, execution: PipelineExecution) -> None:
        running = queue.executions.get(execution.job.id)
        if running is not None and running[0] is execution:
            running[1].cancel()

    async def _release_all(self) -> None:
        """Stop the executions and release their jobs, which another worker resumes."""
        for queue in self._queues:
            held = list(queue.executions.values())
            await cancel_and_wait(*(task for _, task in held))
            await self._leases.release(queue, [execution.job for execution, _ in held])
