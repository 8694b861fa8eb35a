"""How a pipeline's job ends: the settlement that says what its course gave, or why it failed."""

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


async def success(jobs: StageJobs, course: PipelineExecution, value: Value) -> Settlement:
    """The settlement of a course that has given something; what is long lies in the store then.

    Raises:
        HeadraceError: it cannot be read, or cannot be stored.
    """
    item, message = course.item, course.message
    took, done = _took(course), date_done()
    if isinstance(value, BinaryValue):
        item.result = kombu_bytes(value.base64)
        return succeeded(item, item.result, value.type, 1, took, done)
    limit = jobs.inline_limit_bytes if message.ours else STOCK_RESULT_MAX_BYTES
    if isinstance(value, StoredValue) and value.whole and value.at.length > limit:
        at = value.at
        if message.followed:
            item.result = await jobs.in_thread(read_parts, jobs.stores, [at])
        await _hand_over(jobs, course, at.ref)
        return stored_as(item, at.ref, at.length, at.type or JSON_TYPE, 1, took, done)
    if isinstance(value, StoredValue) and value.at.type:
        body = await jobs.in_thread(read_bytes, jobs.stores, value.at)
        item.result = kombu_bytes(body)
        return succeeded(item, item.result, value.at.type, 1, took, done)
    item.result = await jobs.in_thread(read_parts, jobs.stores, parts_of(value))
    if len(item.result) <= limit or message.ignore_result:
        return succeeded(item, item.result, "", 1, took, done)
    entry = jobs.stores.new_entry(item.id, course.pipeline.name, "r")
    await jobs.in_thread(lambda: jobs.stores.put(entry, item.result, bounded=False))
    return stored_as(item, entry.ref, len(item.result), JSON_TYPE, 1, took, done)


def failure(course: PipelineExecution, error: StageFailed) -> Settlement:
    """The settlement of a course that has failed."""
    settlement = failed(
        course.item,
        error.said,
        error.message,
        traceback=error.traceback,
        batch=1,
        timings=_took(course),
    )
    return settlement._replace(retry_us=DEAD) if error.dead else settlement


async def _hand_over(jobs: StageJobs, course: PipelineExecution, ref: str) -> None:
    """What the last stage gave is what the pipeline gives: the payload is its own from here on."""
    for job_id, (stage, job) in course.ended.items():
        if job.stored is not None and job.stored.ref == ref:
            old = PayloadEntry(ref, job_id, stage.model, "r")
            new = PayloadEntry(ref, course.item.id, course.pipeline.name, "r")
            await jobs.in_thread(jobs.stores.index.hand_over, old, new)
            return


def _took(course: PipelineExecution) -> str:
    return timings(
        course.item, stages([0.0, (time.monotonic() - course.item.claimed_at) * 1000, 0.0])
    )
