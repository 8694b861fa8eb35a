"""Reads a claimed pipeline job: its execution, or the settlement of a job that cannot run now."""

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


def read_execution(
    pipeline: PipelineConfig, raw: bytes, job: LeasedJob, now_us: int, backend: StageBackend
) -> tuple[PipelineExecution, Settlement | None]:
    """Return the execution of a claimed job, and its settlement if it cannot run now.

    Args:
        pipeline: the pipeline.
        raw: the job's message.
        job: the job; its message and callbacks are set here.
        now_us: the time of the claim by Redis' clock, in microseconds.
        backend: runs the stages' jobs.
    """
    wall = time.time()
    job.dispatched_at, job.dispatched_epoch_s = job.claimed_at, wall
    execution = PipelineExecution(pipeline, job, backend, wall + pipeline.timeout_s)
    try:
        message = job.message = read_envelope(raw)
    except InvalidRequest as error:
        job.canvas = read_canvas(raw)
        return execution, unreadable_message(job, raw, error)
    if message.timeout_s is not None:
        execution.deadline = wall + message.timeout_s
    if message.followed:
        job.canvas = read_canvas(raw)
        if job.canvas is None:
            problem = "the job's callbacks cannot be read: invalid signatures"
            return execution, failed(job, InvalidRequest.code, problem)
    if message.model != pipeline.name:
        wrong = f"the queue {queue_name(pipeline.name)} is not the queue of {message.model[:64]!r}"
        return execution, failed(job, InvalidRequest.code, wrong)
    wait_s = job.set_deadlines(message, job.claimed_at, now_us)
    if job.expires_at <= job.claimed_at:
        return execution, failed(job, "expired", "the job expired before it started")
    return execution, postponed(job, wait_s) if wait_s else None
