"""Leases of pipeline jobs: claim, renew, sweep, settle and release, as a worker does for models."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.config.model.catalog import ModelConfig
from headrace.config.model.pipelines import PipelineConfig
from headrace.config.settings import Settings
from headrace.queue.job_queue import JobQueue
from headrace.redis.clock import US_PER_S
from headrace.redis.scripts import jobs as job_scripts
from headrace.redis.scripts import queues as queue_scripts
from headrace.redis.scripts.jobs import FENCED, ClaimReply
from headrace.redis.scripts.queues import SweepReply
from workers.background.pipelines.execution import PipelineExecution
from workers.jobs.leased_job import NEVER, LeasedJob, read_jobs
from workers.jobs.settlement import Settlement
from workers.leases.manager import ReapClock
from workers.models.held import ORPHANED_MAX
from workers.observability.failure_log import FailureLog

#: A lost orchestrator is never a job's fault, as it runs no user code: no job is charged for it,
#: and none waits.
LOSSES: Final = "1000000000 0 0"


@dataclass(slots=True)
class PipelineQueue:
    """The queue of a pipeline, and its jobs that run here.

    Attributes:
        model: the pipeline as a model of the catalogue.
        executions: the jobs that run here, by id, each with its task.
        orphans: does the remaining work for jobs that scripts have ended.
        skipped_offline: the last claim had no room for offline jobs, which cause no push.
        paused: the queue was paused at its last claim; each sweep claims again.
    """

    config: PipelineConfig
    model: ModelConfig
    executions: dict[str, tuple[PipelineExecution, asyncio.Task[None]]] = field(
        default_factory=dict
    )
    orphans: asyncio.Task[None] | None = None
    skipped_offline: bool = False
    paused: bool = False

    @property
    def name(self) -> str:
        """The queue's name in Redis."""
        return self.model.queue

    @property
    def rooms(self) -> list[int]:
        """How many more jobs may start, by priority step; offline jobs take at most half."""
        room = self.config.max_running - len(self.executions)
        if room <= 0:
            return []
        return [room, room, room, max(0, room - self.config.max_running // 2)]

    @property
    def running(self) -> list[PipelineExecution]:
        """The executions that run here."""
        return [execution for execution, _ in self.executions.values()]

    def find(self, job_id: str, token: str) -> PipelineExecution | None:
        """Return the execution of this lease of a job; None if it does not run here."""
        running = self.executions.get(job_id)
        return running[0] if running is not None and running[0].job.token == token else None


class PipelineLeases:
    """The leases of a background worker's pipeline jobs; without Redis they raise BrokerError."""

    def __init__(self, jobs: JobQueue, settings: Settings, owner: str) -> None:
        self._jobs = jobs
        self._settings = settings
        self._owner = owner
        self._lease_us = int(settings.lease_ttl_s * US_PER_S)
        self._reap = ReapClock(settings.lease_ttl_s)
        self._claim_lost = False
        self._failures = FailureLog()

    def connected(self) -> None:
        """Delay reaping, as the connection is new."""
        self._reap.connected(time.monotonic())

    def disconnected(self) -> None:
        """Note an outage: the reply to a claim may be lost."""
        self._reap.disconnected()
        self._claim_lost = True

    async def release_unknown(self, queues: Sequence[PipelineQueue]) -> None:
        """After an outage, release the jobs of a claim whose reply was lost."""
        if not self._claim_lost:
            return
        for queue in queues:
            known = [execution.job.token for execution in queue.running]
            await self._jobs.call_once(
                job_scripts.release_owner(queue.name, "free", LOSSES, self._owner, *known)
            )
        self._claim_lost = False

    async def claim(self, queue: PipelineQueue) -> tuple[int, Iterator[tuple[LeasedJob, bytes]]]:
        """Claim up to the queue's rooms; return Redis' time in us, and jobs with raw messages."""
        model, settings = queue.model, self._settings
        claim = job_scripts.claim(
            queue.name, model.name, model.version, queue.rooms,
            lease_us=self._lease_us, owner=self._owner, result_ttl_s=settings.result_ttl_s,
            job_index_max=settings.job_index_max, yield_us=int(model.max_yield_s * US_PER_S),
            failures_kept=settings.failures_kept,
        )  # fmt: skip
        reply = ClaimReply(await self._jobs.call_once(claim))
        self._jobs.clock.update(reply.now_us)
        queue.paused = reply.waiting[0] < 0
        return reply.now_us, read_jobs(reply, time.monotonic(), NEVER)

    async def renew(self, queue: PipelineQueue) -> list[tuple[PipelineExecution, int]]:
        """Renew the leases of a queue; return each execution with its code of jobs/renew.lua."""
        held = queue.running
        if not held:
            return []
        jobs = [execution.job for execution in held]
        codes = await self._jobs.call_once(job_scripts.renew(queue.name, self._lease_us, jobs))
        return [(execution, int(code)) for execution, code in zip(held, codes, strict=True)]

    async def sweep(self, queue: PipelineQueue) -> SweepReply:
        """Queue the jobs that are due, and reap expired leases."""
        now = time.monotonic()
        self._failures.flush()
        busy = queue.orphans is not None and not queue.orphans.done()
        sweep = queue_scripts.sweep(
            queue.name, reap_until_us=self._reap.until_us(now), losses=LOSSES,
            orphaned_max=0 if busy else ORPHANED_MAX,
        )  # fmt: skip
        reply = queue_scripts.read_sweep(await self._jobs.call_once(sweep))
        self._reap.set_server_time(reply.now_us, time.monotonic())
        return reply

    async def settle(self, queue: PipelineQueue, settlement: Settlement) -> bool:
        """Settle a job; return whether this worker still had the lease."""
        kept = self._settings.failures_kept
        settle = job_scripts.settle(queue.name, queue.model.version, [settlement], kept)
        (code,) = await self._jobs.call_once(settle)
        self._failures.settled(queue.model.name, [settlement], [code])
        return int(code) != FENCED

    async def release(self, queue: PipelineQueue, jobs: Sequence[LeasedJob]) -> None:
        """Return jobs to the head of their queue, uncharged."""
        if jobs:
            await self._jobs.call_once(job_scripts.release(queue.name, "free", LOSSES, jobs))
