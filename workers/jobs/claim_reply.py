"""Reading claimed jobs and their messages, for workers and for the pipeline orchestrator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headrace.errors import NOT_STARTED, InvalidRequest
from headrace.jobs.message import decode_message
from headrace.redis.clock import US_PER_S
from headrace.redis.scripts.jobs import ClaimedRow, ClaimReply
from workers.jobs.canvas import read_canvas
from workers.jobs.leased_job import LeasedJob
from workers.jobs.settlement import Settlement, failed, postponed, unreadable_message

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


def read_message(
    job: LeasedJob, raw: bytes, model: str, queue: str, now_us: int
) -> Settlement | None:
    """Read the message of a job that was just claimed, and set the job's message and callbacks.

    Args:
        job: the job.
        raw: its message.
        model: the name of the model that is served.
        queue: the queue that the job was claimed from.
        now_us: Redis' clock at the claim.

    Returns:
        The settlement of a job that will not run now; else None.
    """
    try:
        message = job.message = decode_message(raw)
    except InvalidRequest as error:
        job.canvas = read_canvas(raw)
        return unreadable_message(job, raw, error)
    if message.has_callbacks:
        job.canvas = read_canvas(raw)
        if job.canvas is None:
            problem = "the signatures of the job's callbacks cannot be read"
            return failed(job, InvalidRequest.code, problem)
    if message.model != model:
        problem = f"the queue {queue} serves {model!r}, not {message.model[:64]!r}"
        return failed(job, InvalidRequest.code, problem)
    if message.expires_s is None and message.eta_s is None:
        return None
    wait_s = job.set_deadlines(message, job.claimed_at, now_us)
    if job.expires_at <= job.claimed_at:
        return failed(job, "expired", NOT_STARTED)
    return postponed(job, wait_s) if wait_s else None
