"""Settlements of pipeline jobs: the result of an execution, or the reason of its failure."""

from __future__ import annotations

import time

from headrace.jobs.encoding import kombu_bytes
from headrace.jobs.media_types import JSON_TYPE
from headrace.payloads.ranges import read_bytes, read_parts
from headrace.payloads.store import PayloadEntry
from headrace.redis.scripts.jobs import DEAD
from workers.background.pipelines.execution import PipelineExecution, StageFailed
from workers.background.pipelines.stage_jobs import StageJobs
from workers.background.pipelines.values import BinaryValue, StoredValue, Value, parts_of
from workers.jobs.settlement import (
    Settlement,
    date_done,
    failed,
    stages,
    stored_as,
    succeeded,
    timings,
)
from workers.models.pending_payloads import STOCK_RESULT_MAX_BYTES


async def success(jobs: StageJobs, execution: PipelineExecution, value: Value) -> Settlement:
    """Return the settlement of an execution that has succeeded, and store a long result.

    Raises:
        HeadraceError: the result cannot be read or stored.
    """
    job, message = execution.job, execution.message
    took, done = _took(execution), date_done()
    if isinstance(value, BinaryValue):
        job.result = kombu_bytes(value.base64)
        return succeeded(job, job.result, value.type, 1, took, done)
    limit = jobs.inline_limit_bytes if message.ours else STOCK_RESULT_MAX_BYTES
    if isinstance(value, StoredValue) and value.whole and value.at.length > limit:
        at = value.at
        if message.has_callbacks:
            job.result = await jobs.in_thread(read_parts, jobs.stores, [at])
        await _hand_over(jobs, execution, at.ref)
        return stored_as(job, at.ref, at.length, at.type or JSON_TYPE, 1, took, done)
    if isinstance(value, StoredValue) and value.at.type:
        body = await jobs.in_thread(read_bytes, jobs.stores, value.at)
        job.result = kombu_bytes(body)
        return succeeded(job, job.result, value.at.type, 1, took, done)
    job.result = await jobs.in_thread(read_parts, jobs.stores, parts_of(value))
    if len(job.result) <= limit or message.ignore_result:
        return succeeded(job, job.result, "", 1, took, done)
    entry = jobs.stores.new_entry(job.id, execution.pipeline.name, "r")
    await jobs.in_thread(lambda: jobs.stores.put(entry, job.result, bounded=False))
    return stored_as(job, entry.ref, len(job.result), JSON_TYPE, 1, took, done)


def failure(execution: PipelineExecution, error: StageFailed) -> Settlement:
    """Return the settlement of an execution that has failed."""
    settlement = failed(
        execution.job,
        error.job_code,
        error.message,
        traceback=error.traceback,
        batch=1,
        timings=_took(execution),
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


def _took(execution: PipelineExecution) -> str:
    return timings(
        execution.job, stages([0.0, (time.monotonic() - execution.job.claimed_at) * 1000, 0.0])
    )
