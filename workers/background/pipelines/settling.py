"""The end of a pipeline's job: its settlement, and the callbacks that are sent before it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from headrace.config.model.pipelines import PipelineConfig
from headrace.errors import HeadraceError
from headrace.jobs.values.encoding import kombu_bytes
from headrace.jobs.values.media_types import JSON_TYPE
from headrace.payloads.store import PayloadEntry
from headrace.payloads.stores import read_bytes, read_parts
from headrace.redis.outages import MAX_S
from headrace.redis.scripts.jobs import DEAD, Run
from workers.background.pipelines.execution import PipelineExecution, StageFailed, about
from workers.background.pipelines.stage_jobs import StageJobs
from workers.background.pipelines.values import BinaryValue, StoredValue, Value, parts_of
from workers.canvas.notifier import send_end, send_orphaned
from workers.canvas.sender import TRY_AGAIN, CanvasSender, ChordBusy, Malformed, SendProgress
from workers.jobs.settlement import (
    Settlement,
    began,
    failed,
    stages,
    stored,
    succeeded,
    timings,
)
from workers.models.held import STOCK_RESULT_MAX_BYTES, OrphanedEnd, UnsentCallbacks

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds between two attempts to send callbacks.
AGAIN_S: Final = MAX_S / 4
_LATER: Final = (*TRY_AGAIN, ChordBusy, Malformed)


async def success(jobs: StageJobs, execution: PipelineExecution, value: Value) -> Settlement:
    """Return the settlement of a success, and store a long result; or raise HeadraceError."""
    job, message = execution.job, execution.message
    run = _run(execution)
    if isinstance(value, BinaryValue):
        job.result = kombu_bytes(value.base64)
        return succeeded(job, job.result, value.type, 1, run)
    limit = jobs.inline_limit_bytes if message.ours else STOCK_RESULT_MAX_BYTES
    if isinstance(value, StoredValue) and value.whole and value.at.length > limit:
        at = value.at
        if message.has_callbacks:
            job.result = await jobs.in_thread(read_parts, jobs.stores, [at])
        await _hand_over(jobs, execution, at.ref)
        return stored(job, at.ref, at.length, at.type or JSON_TYPE, 1, run)
    if isinstance(value, StoredValue) and value.at.type:
        body = await jobs.in_thread(read_bytes, jobs.stores, value.at)
        job.result = kombu_bytes(body)
        return succeeded(job, job.result, value.at.type, 1, run)
    job.result = await jobs.in_thread(read_parts, jobs.stores, parts_of(value))
    if len(job.result) <= limit or message.ignore_result:
        return succeeded(job, job.result, "", 1, run)
    entry = jobs.stores.new_entry(job.id, execution.pipeline.name, "r")
    await jobs.in_thread(lambda: jobs.stores.put(entry, job.result, bounded=False))
    return stored(job, entry.ref, len(job.result), JSON_TYPE, 1, run)


def failure(execution: PipelineExecution, error: StageFailed) -> Settlement:
    """Return the settlement of an execution that has failed."""
    settlement = failed(
        execution.job,
        error.job_code,
        error.message,
        traceback=error.traceback,
        batch=1,
        run=_run(execution),
    )
    return settlement._replace(retry_us=DEAD) if error.dead else settlement


async def _hand_over(jobs: StageJobs, execution: PipelineExecution, ref: str) -> None:
    """Make the stored result of the last stage the pipeline's own payload."""
    for job_id, (stage, job) in execution.ended.items():
        if job.stored is not None and job.stored.ref == ref:
            old = PayloadEntry(ref, job_id, stage.model, "r")
            new = PayloadEntry(ref, execution.job.id, execution.pipeline.name, "r")
            await jobs.in_thread(jobs.stores.index.hand_over, old, new)
            return


def _run(execution: PipelineExecution) -> Run:
    job = execution.job
    ran = stages([0.0, (time.monotonic() - job.claimed_at) * 1000, 0.0])
    return Run(*began(job, job.claimed_at, 0.0), timings(job, 0.0, ran))


class PipelineCanvas:
    """Sends callbacks, with a connection for each job, as few pipeline jobs have callbacks."""

    def __init__(self, redis_url: str, result_ttl_s: int, jobs: StageJobs) -> None:
        self._url = redis_url
        self._ttl_s = result_ttl_s
        self._jobs = jobs

    async def send_end(self, execution: PipelineExecution, settlement: Settlement) -> Settlement:
        """Send a job's callbacks, and retry until they are sent; return its settlement."""
        progress, end = SendProgress(), UnsentCallbacks(execution.job, settlement)
        while True:
            try:
                return await self._send(partial(send_end, end), progress)
            except _LATER as error:
                logger.warning("callbacks not sent yet: %s", error, extra=about(execution))
                progress.tries += 1
            await asyncio.sleep(AGAIN_S)

    async def end_orphaned(
        self, pipeline: PipelineConfig, queue: str, pairs: Sequence[bytes]
    ) -> None:
        """Cancel the stages' jobs of jobs that scripts have ended, and send their callbacks.

        A job that was cancelled between two attempts, or while its background worker died, is one.
        An end that cannot be handled now stays there, and a later sweep returns it again.

        Args:
            pairs: ids, each with its entry.
        """
        for name, entry in zip(pairs[::2], pairs[1::2], strict=True):
            end = OrphanedEnd(queue, name, entry)
            job = {"job": name.decode("utf-8", "replace")}
            try:
                await self._jobs.cancel_orphaned(pipeline, job["job"])
                await self._send(partial(send_orphaned, end), SendProgress())
            except (*_LATER, HeadraceError) as error:
                logger.warning("an ended job waits for a next try: %s", error, extra=job)
            except Exception:
                logger.exception("stages or callbacks of an ended job are left", extra=job)

    async def _send(
        self, send: Callable[[CanvasSender, SendProgress], T], progress: SendProgress
    ) -> T:
        def connected() -> T:
            sender = CanvasSender(self._url, self._ttl_s)
            try:
                return send(sender, progress)
            finally:
                sender.close()

        return await self._jobs.in_thread(connected)
