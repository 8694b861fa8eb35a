"""Reads a claimed pipeline job: its execution, or the settlement of a job that cannot run now."""

from __future__ import annotations

import time

from headrace.config.pipelines import PipelineConfig
from headrace.redis.keys import queue_name
from workers.background.pipelines.execution import PipelineExecution, StageBackend
from workers.jobs.claim_reply import read_message
from workers.jobs.leased_job import LeasedJob
from workers.jobs.settlement import Settlement


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
    settlement = read_message(job, raw, pipeline.name, queue_name(pipeline.name), now_us)
    if job.message is not None and job.message.timeout_s is not None:
        execution.deadline = wall + job.message.timeout_s
    return execution, settlement
