"""Runs the jobs of pipelines, in the background worker: claims them as a worker claims a model's.

A pipeline's job is leased while it is under way, so that all holds for it that holds for a job:
whoever dies over it loses the lease, and another goes on where it was, as its stages' jobs are
found again under the same ids. asyncio, in a thread of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec
from redis.exceptions import RedisError

from headrace.config.model_catalog import Catalog, ModelConfig
from headrace.config.pipelines import PipelineConfig
from headrace.config.settings import Settings
from headrace.errors import HeadraceError
from headrace.observability.worker_report import CLOCK, ModelState
from headrace.payloads.stores import build_stores
from headrace.queue.job_queue import JobQueue
from headrace.queue.tasks import cancel_and_wait
from headrace.queue.waiters import Waiters
from headrace.redis import keys
from headrace.redis.backoff import MAX_S
from headrace.redis.clock import US_PER_S
from headrace.redis.connection import SOCKET_TIMEOUT_S, connect, connect_async
from headrace.redis.scripts import Arg
from headrace.redis.scripts import jobs as job_scripts
from headrace.redis.scripts import queues as queue_scripts
from headrace.redis.scripts import workers as worker_scripts
from headrace.redis.scripts.jobs import CANCEL_REQUESTED, FENCED, ClaimReply
from workers.background.pipelines.canvas import PipelineCanvas
from workers.background.pipelines.claiming import read_course
from workers.background.pipelines.execution import PipelineExecution, StageFailed, about
from workers.background.pipelines.settling import failure, success
from workers.background.pipelines.stage_jobs import StageJobLost, StageJobs
from workers.jobs.claim_reply import read_jobs
from workers.jobs.leased_job import NEVER, LeasedJob
from workers.jobs.settlement import Settlement, cancelled
from workers.leases.notifications import POLL_S, QueueNotifications
from workers.models.pending_callbacks import UNTOLD_MAX

logger = logging.getLogger(__name__)

SWEEP_S: Final = 1.0
#: A lost conductor is never a job's fault, as it runs nobody's code: it is charged to none, and
#: the job need not wait.
LOSSES: Final = "1000000000 0 0"
_AWAY: Final = (RedisError, OSError, HeadraceError)


@dataclass(slots=True)
class PipelineQueue:
    """One pipeline.

    Attributes:
        config: what it runs.
        model: as it looks from outside.
        courses: its jobs that are under way here, by id, each with the task that runs it.
        telling: tells of the ends that scripts have left, while there are some.
        passed_over: it was last claimed without room for offline jobs, and no push tells of these.
        paused: its queue was paused at its last claim; each sweep claims again.
    """

    config: PipelineConfig
    model: ModelConfig
    courses: dict[str, tuple[PipelineExecution, asyncio.Task[None]]] = field(default_factory=dict)
    telling: asyncio.Task[None] | None = None
    passed_over: bool = False
    paused: bool = False

    @property
    def rooms(self) -> list[int]:
        """How many more it takes, by step; offline jobs leave half of the places to others."""
        room = self.config.max_running - len(self.courses)
        if room <= 0:
            return []
        return [room, room, room, max(0, room - self.config.max_running // 2)]


class PipelineOrchestrator:
    """The pipelines of one background worker; `run` is the body of its thread.

    Args:
        settings: the deployment's.
        catalog: its models and pipelines.
        redis_url: its Redis.
        owner: this incarnation, written into each lease.
        node: the Celery node.
    """

    def __init__(
        self, settings: Settings, catalog: Catalog, redis_url: str, owner: str, node: str
    ) -> None:
        self._settings = settings
        self._owner = owner
        self._node = node
        self._url = redis_url
        self._lines = [
            PipelineQueue(one, catalog.get(name)) for name, one in catalog.pipelines.items()
        ]
        self._catalog = catalog
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        self._stopping = False
        self._doubtful = False
        # Pipelines that have jobs which wait, as far as was read by now.
        self._filled: set[int] = set()
        # Redis' clock at this process' second 0, and from when on others' leases may be reaped.
        self._zero_us: int | None = None
        self._reap_after = NEVER
        self._renew_at = self._sweep_at = 0.0

    def stop(self) -> None:
        """Begin nothing more, and give back what is under way; from any thread."""
        self._stopping = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._woken.set)

    def run(self) -> None:
        """Serve until `stop`."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        client = connect_async(self._url)
        timeouts = {"socket_timeout": SOCKET_TIMEOUT_S, "socket_connect_timeout": SOCKET_TIMEOUT_S}
        watcher = connect(self._url, **timeouts)
        self._queue = JobQueue(client)
        waiters = Waiters(client, self._owner)
        stores = build_stores(self._settings, self._url)
        self._jobs = StageJobs(client, self._queue, waiters, stores, self._catalog, self._settings)
        self._tells = PipelineCanvas(self._url, self._settings.result_ttl_s, self._jobs)
        lists = [keys.step_keys(line.model.queue) for line in self._lines]
        self._notifications = QueueNotifications(watcher, lists, keys.cancel_channel(self._owner))
        await waiters.start()
        try:
            while not self._stopping:
                await self._turn()
            await self._leave()
        finally:
            self._notifications.close()
            await waiters.stop()
            await self._queue.close()
            self._jobs.close()
            watcher.close()
            await client.aclose()

    async def _turn(self) -> None:
        """Claim what there is room for, keep what is held, and wait for what is next."""
        try:
            if self._notifications.socket() is None:
                await asyncio.to_thread(self._notifications.connect)
                self._filled.clear()
                self._reap_after = time.monotonic() + self._settings.lease_ttl_s
                self._renew_at = self._sweep_at = 0.0
            await self._upkeep()
            self._woken.clear()
            wanted = [
                n
                for n, line in enumerate(self._lines)
                if line.rooms and n in self._notifications.unwatched
            ]
            self._filled |= await asyncio.to_thread(self._notifications.watch, wanted)
            self._notifications.check_timeout(time.monotonic())
            self._heard()
            roomy = {n for n, line in enumerate(self._lines) if line.rooms and all(line.rooms)}
            self._filled |= {n for n in roomy if self._lines[n].passed_over}
            for n in sorted(self._filled):
                rooms = self._lines[n].rooms
                if not rooms:
                    continue
                self._filled.discard(n)
                self._lines[n].passed_over = not all(rooms)
                if await self._claim(self._lines[n]):
                    return
            await self._sleep()
        except _AWAY as error:
            logger.warning("Redis is away, or refuses: %s", error)
            self._notifications.close()
            self._doubtful = True
            self._reap_after = NEVER
            await asyncio.sleep(MAX_S / 4)

    async def _sleep(self) -> None:
        """Until something is pushed, a course is over, or the next upkeep is due."""
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
        # A server that is slow gives lengths here. What has changed is asked for again anyway.
        told = await asyncio.to_thread(self._notifications.read_changes)
        self._filled |= told - self._notifications.unwatched
        self._heard()

    async def _claim(self, line: PipelineQueue) -> bool:
        """Whether there was something."""
        settings, model = self._settings, line.model
        if self._doubtful:
            await self._end_doubt()
        claim = job_scripts.claim(
            model.queue, model.name, model.version, line.rooms,
            lease_us=self._lease_us, owner=self._owner, result_ttl_s=settings.result_ttl_s,
            job_index_max=settings.job_index_max, yield_us=int(model.max_yield_s * US_PER_S),
        )  # fmt: skip
        reply = ClaimReply(await self._queue.call_once(claim))
        self._queue.clock.heard(reply.now_us)
        line.paused = reply.waiting[0] < 0
        for job, raw in read_jobs(reply, time.monotonic(), NEVER):
            self._begin(line, raw, job, reply.now_us)
        return bool(reply.jobs)

    @property
    def _lease_us(self) -> int:
        return int(self._settings.lease_ttl_s * US_PER_S)

    async def _end_doubt(self) -> None:
        """A claim may have been answered into a broken connection: give back what nobody knows."""
        for line in self._lines:
            known = [course.item.token for course, _ in line.courses.values()]
            await self._queue.call_once(
                job_scripts.release_owner(line.model.queue, "free", LOSSES, self._owner, *known)
            )
        self._doubtful = False

    def _begin(self, line: PipelineQueue, raw: bytes, item: LeasedJob, now_us: int) -> None:
        course, settlement = read_course(line.config, raw, item, now_us, self._jobs)
        run = self._run(line, course) if settlement is None else self._end(line, course, settlement)
        task = asyncio.create_task(run)
        line.courses[item.id] = (course, task)
        task.add_done_callback(partial(self._over, line, course))

    async def _run(self, line: PipelineQueue, course: PipelineExecution) -> None:
        try:
            settlement = await self._outcome(course)
        except asyncio.CancelledError:
            if self._stopping or course.item.dropped == "lost":
                raise
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            settlement = cancelled(course.item)
        await self._end(line, course, settlement)

    async def _outcome(self, course: PipelineExecution) -> Settlement:
        try:
            value = await course.run()
            return await self._jobs.patiently(lambda: success(self._jobs, course, value))
        except StageFailed as error:
            return failure(course, error)
        except TimeoutError:
            late = ", ".join(course.unfinished()) or "the first"
            limit_s = course.message.timeout_s or course.pipeline.timeout_s
            why = f"not over after {limit_s:g} s; still under way: {late}"
            return failure(course, StageFailed("timeout", why))
        except HeadraceError as error:
            return failure(course, StageFailed(error.code, f"the result: {error.message}"))
        except Exception as error:
            logger.exception("the pipeline could not be run", extra=about(course))
            why = f"the pipeline could not be run: {type(error).__name__}"
            return failure(course, StageFailed("internal-error", why))

    async def _end(
        self, line: PipelineQueue, course: PipelineExecution, settlement: Settlement
    ) -> None:
        """End the job, and what is under way of it; said until Redis has taken it."""
        course.ending = True
        try:
            await self._end_own(line, course, settlement)
        except StageJobLost:
            self._leave_to_another(course)

    async def _end_own(
        self, line: PipelineQueue, course: PipelineExecution, settlement: Settlement
    ) -> None:
        good = settlement.state == "s"
        over = await self._jobs.cancel(course)
        if any(state.began_s for state in course.states.values()):
            await self._jobs.told(course, now=True)
        if not good and course.item.message is not None:
            # Before it is settled: whoever requeues it then runs all of it again.
            await self._jobs.clear(course, over)
        if course.item.canvas is not None and not settlement.retried:
            settlement = await self._tells.ended(course, settlement)
        queue = line.model.queue
        (said,) = await self._jobs.patiently(
            lambda: self._queue.call_once(job_scripts.settle(queue, [settlement]))
        )
        if not int(said):
            raise StageJobLost
        if good:
            await self._jobs.clear(course, over, settled=True)
        await self._jobs.settled(course, settlement)

    def _leave_to_another(self, course: PipelineExecution) -> None:
        # This process may have stood still for long. All that the job has come to is the other's,
        # who has found it under the same ids.
        course.item.dropped = "lost"
        self._jobs.leave(course)
        logger.warning("another has gone on with the job meanwhile", extra=about(course))

    def _over(
        self, line: PipelineQueue, course: PipelineExecution, task: asyncio.Task[None]
    ) -> None:
        if line.courses.get(course.item.id, (None,))[0] is course:
            del line.courses[course.item.id]
        if not task.cancelled() and task.exception() is not None:
            # Its lease runs out, and whoever takes it then goes on with it.
            logger.error("the job was let go", exc_info=task.exception(), extra=about(course))
        self._woken.set()

    async def _upkeep(self) -> None:
        now = time.monotonic()
        if now >= self._renew_at:
            self._renew_at = now + self._settings.lease_ttl_s / 3
            for line in self._lines:
                await self._renew(line)
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_S
            for line in self._lines:
                await self._sweep(line)
            # Resuming a queue changes no list, so nothing else wakes its claim.
            self._filled |= {n for n, line in enumerate(self._lines) if line.paused}
            await self._report()

    async def _renew(self, line: PipelineQueue) -> None:
        held = [course for course, _ in line.courses.values()]
        if not held:
            return
        jobs = [course.item for course in held]
        renew = job_scripts.renew(line.model.queue, self._lease_us, jobs)
        codes = await self._queue.call_once(renew)
        for course, code in zip(held, codes, strict=True):
            if int(code) == CANCEL_REQUESTED:
                self._cancel(course)
            elif int(code) == FENCED and course.item.dropped != "lost" and not course.ending:
                # One that is ending may have been settled while this was asked.
                self._leave_to_another(course)
                self._stop(course)

    async def _sweep(self, line: PipelineQueue) -> None:
        now = time.monotonic()
        reap_until = 0
        if now >= self._reap_after and self._zero_us is not None:
            reap_until = self._zero_us + int((now + self._settings.lease_ttl_s / 3) * US_PER_S)
        telling = line.telling is not None and not line.telling.done()
        room = 0 if telling else UNTOLD_MAX
        sweep = queue_scripts.sweep(
            line.model.queue, reap_until_us=reap_until, losses=LOSSES, orphaned_max=room
        )
        reply = queue_scripts.read_sweep(await self._queue.call_once(sweep))
        if reply.orphaned:
            told = self._tells.left(line.model.queue, reply.orphaned)
            line.telling = asyncio.create_task(told)
        self._zero_us = reply.now_us - int(time.monotonic() * US_PER_S)
        if reply.due_in_us is not None:
            self._sweep_at = min(self._sweep_at, now + reply.due_in_us / US_PER_S + 0.001)

    async def _report(self) -> None:
        """Say that this worker serves its pipelines, as workers say it of their models."""
        state = ModelState("ready", 1, 1, "", "", self._node, [])
        fields: list[Arg] = [
            "", msgspec.json.encode({"node": self._node, "pid": os.getpid()}),
            CLOCK, f"{time.time():.3f}",
        ]  # fmt: skip
        for line in self._lines:
            fields += (line.model.name, msgspec.json.encode(state))
        await self._queue.call_once(worker_scripts.report(self._owner, fields))

    def _heard(self) -> None:
        """Jobs that were cancelled while they are under way here."""
        for data in self._notifications.take_messages():
            for _, job_id, token in job_scripts.read_cancel_notices(data):
                for line in self._lines:
                    found = line.courses.get(job_id)
                    if found is not None and found[0].item.token == token:
                        self._cancel(found[0])

    def _cancel(self, course: PipelineExecution) -> None:
        # The settlement of one that is ending finds the mark in its record.
        if not course.item.dropped and not course.ending:
            course.item.dropped = "cancelled"
            self._stop(course)

    def _stop(self, course: PipelineExecution) -> None:
        for line in self._lines:
            found = line.courses.get(course.item.id)
            if found is not None and found[0] is course:
                found[1].cancel()

    async def _leave(self) -> None:
        """Give back what is under way; whoever takes it goes on with it."""
        for line in self._lines:
            held = list(line.courses.values())
            await cancel_and_wait(*(task for _, task in held))
            jobs = [course.item for course, _ in held]
            if jobs:
                release = job_scripts.release(line.model.queue, "free", LOSSES, jobs)
                await self._queue.call_once(release)
