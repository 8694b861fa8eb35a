"""A pipeline's job as it was claimed: its course, or why it is not to run now."""

from __future__ import annotations

import time

from headrace.config.pipelines import PipelineConfig
from headrace.errors import InvalidRequest
from headrace.jobs.message import read_envelope
from headrace.redis.keys import queue_name
from workers.background.pipelines.execution import PipelineExecution, StageBackend
from workers.jobs.canvas import read_canvas
from workers.jobs.leased_job import LeasedJob
from workers.jobs.settlement import Settlement, failed, postponed, unreadable_message


def read_course(
    pipeline: PipelineConfig, raw: bytes, item: LeasedJob, now_us: int, tools: StageBackend
) -> tuple[PipelineExecution, Settlement | None]:
    """The course of a claimed job; its settlement where it is not to run now.

    Args:
        pipeline: what it runs.
        raw: its message.
        item: the job; it gets its message, and what follows it.
        now_us: when it was claimed, by Redis' clock.
        tools: what the course works with.
    """
    wall = time.time()
    item.dispatched_at, item.dispatched_epoch_s = item.claimed_at, wall
    course = PipelineExecution(pipeline, item, tools, wall + pipeline.timeout_s)
    try:
        message = item.message = read_envelope(raw)
    except InvalidRequest as error:
        item.canvas = read_canvas(raw)
        return course, unreadable_message(item, raw, error)
    if message.timeout_s is not None:
        course.deadline = wall + message.timeout_s
    if message.followed:
        item.canvas = read_canvas(raw)
        if item.canvas is None:
            problem = "the signatures of what follows the job cannot be read"
            return course, failed(item, InvalidRequest.code, problem)
    if message.model != pipeline.name:
        wrong = f"the queue {queue_name(pipeline.name)} is not that of {message.model[:64]!r}"
        return course, failed(item, InvalidRequest.code, wrong)
    wait_s = item.set_deadlines(message, item.claimed_at, now_us)
    if item.expires_at <= item.claimed_at:
        return course, failed(item, "expired", "its expires passed before it began")
    return course, postponed(item, wait_s) if wait_s else None
