"""What a model process gave for a batch, as settlements. Knows no Redis and no process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from headrace.errors import JobCancelled
from headrace.jobs.job import batch_text
from headrace.payloads.store import new_entry
from workers.jobs.batch import Batch
from workers.jobs.leased_job import LeasedJob
from workers.jobs.retries import RetryPolicy
from workers.jobs.settlement import (
    Settlement,
    date_done,
    failed,
    since_claim,
    since_submit,
    stages,
    stored,
    succeeded,
)
from workers.models.pending_payloads import PendingPayloads, PendingResult

UNKNOWN: Final = -1.0


def settle_batch(
    batch: Batch,
    outcomes: Sequence[Any],
    times: Sequence[float],
    padding: int,
    cargo: PendingPayloads,
    policy: RetryPolicy,
    model: str,
) -> list[Settlement]:
    """How the jobs of a batch end; what is too long for that is left as cargo.

    Args:
        batch: the jobs.
        outcomes: one per job, as of `workers.model_process.outcomes`.
        times: of the three stages, in ms.
        padding: how many inputs were added to reach an allowed size.
        cargo: where long results are left.
        policy: when jobs that have failed are tried again.
        model: its name.
    """
    told, done, shared = batch_text(len(batch.jobs), padding), date_done(), stages(times)
    inline_max, settled = cargo.inline_limit_bytes, []
    claimed_at, rest = UNKNOWN, ""
    for job, outcome in zip(batch.jobs, outcomes, strict=True):
        if job.claimed_at != claimed_at:
            claimed_at, rest = job.claimed_at, since_claim(job, shared)
        took = since_submit(job) + rest
        if job.dropped:
            settled.append(discarded(job, told, took))
        elif not outcome[0]:
            _, code, message, retryable, traceback = outcome
            settlement = failed(
                job, code, message, retryable=retryable, traceback=traceback,
                batch=told, timings=took, retries=policy,
            )  # fmt: skip
            settled.append(settlement)
        elif len(outcome[1]) > inline_max and cargo.must_store(job, outcome[1]):
            entry = new_entry(cargo.store, job.id, model, "r")
            _, result, kind = outcome
            settlement = stored(job, entry.ref, result, kind, told, took, done)
            cargo.add_result(PendingResult(job, settlement, entry, result, kind))
        else:
            settled.append(succeeded(job, outcome[1], outcome[2], told, took, done))
    return settled


def discarded(job: LeasedJob, batch: int | str, took: str) -> Settlement:
    """What a job ends with that was handed over and that nobody wants any more from here."""
    # Not as `cancelled`, which takes the attempt back. Redis knows of the cancel.
    return failed(job, JobCancelled.code, "the job was cancelled", batch=batch, timings=took)
