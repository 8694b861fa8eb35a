"""Reading the replies of jobs/claim.lua, for workers and for the pipeline orchestrator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from headrace.redis.clock import US_PER_S
from headrace.redis.scripts import CLAIM_HEAD, CLAIM_ROW
from workers.jobs.leased_job import LeasedJob

#: The best priority step, as the reply writes it; its jobs never yield.
BEST_STEP: Final = b"0"


class ClaimReply(NamedTuple):
    """One reply, whose jobs are read only when they are needed.

    Attributes:
        raw: the reply: a head, then a row for each job.
        now_us: Redis' clock.
        left: how many messages are left at each step; the first is -1 if the queue is paused.
        taken: how many jobs it leased.
    """

    raw: Sequence[Any]
    now_us: int
    left: list[int]
    taken: int

    def jobs(self, now: float, yield_s: float) -> Iterator[tuple[LeasedJob, bytes]]:
        """Return the jobs, each with its raw message, which is not read yet.

        Args:
            now: the current time.
            yield_s: for how long the model's jobs yield to better priorities.
        """
        raw = self.raw
        for at in range(CLAIM_HEAD, len(raw), CLAIM_ROW):
            yield _leased_job(raw[at + 1 : at + CLAIM_ROW], now, self.now_us, yield_s), raw[at]


def read_claim_reply(raw: Sequence[Any]) -> ClaimReply:
    """Read the head of a reply."""
    left = [int(left) for left in raw[1 : CLAIM_HEAD - 1]]
    return ClaimReply(raw, int(raw[0]), left, (len(raw) - CLAIM_HEAD) // CLAIM_ROW)


def _leased_job(row: Sequence[Any], now: float, now_us: int, yield_s: float) -> LeasedJob:
    job_id, token, created, attempts, isolated, retries, waits = row
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
