"""Leased jobs from the replies of jobs/claim.lua, for workers and the pipeline orchestrator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headrace.redis.clock import US_PER_S
from headrace.redis.scripts.jobs import ClaimedRow, ClaimReply
from workers.jobs.leased_job import LeasedJob

#: The best priority step, as the reply writes it; its jobs never yield.
BEST_STEP: Final = b"0"


def read_jobs(reply: ClaimReply, now: float, yield_s: float) -> Iterator[tuple[LeasedJob, bytes]]:
    """Return the claimed jobs, each with its raw message, which is not read yet.

    Args:
        reply: the reply to the claim.
        now: the current time.
        yield_s: for how long the model's jobs yield to better priorities.
    """
    for row in reply.jobs:
        yield _leased_job(row, now, reply.now_us, yield_s), row[0]


def _leased_job(row: ClaimedRow, now: float, now_us: int, yield_s: float) -> LeasedJob:
    _, job_id, token, created, attempts, isolated, retries, waits = row
    created_us = int(created) if created else now_us
    enqueued_at = now - (now_us - created_us) / US_PER_S
    # Positional, and fields with default values are set later: a keyword costs as much as a value.
    job = LeasedJob(
        job_id.decode(),
        token.decode(),
        None,
        created_us,
        enqueued_at,
        now,
        int(attempts),
        isolated != b"",
    )
    if retries:
        job.retries = int(retries)
    if waits != BEST_STEP:
        step, _, since = waits.partition(b" ")
        job.step = int(step)
        waited_from = now - (now_us - int(since)) / US_PER_S if since else enqueued_at
        job.overdue_at = yield_s + waited_from
    return job
