"""Turning what a model process returned for a batch into settlements."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from headrace.errors import JobCancelled
from headrace.jobs.job import batch_text
from headrace.observability.worker_report import ModelStats
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


class BatchResult(NamedTuple):
    """What a model process returned for a batch.

    Attributes:
        outcomes: one per job, as `workers.model_process.outcomes` writes them.
        times: ms of the three stages, then how long the device waited for the first one.
        padding: how many inputs were added to reach an allowed batch size.
        fits: how many of the jobs fit into memory together; 0 if all did.
    """

    outcomes: list[Any]
    times: list[float]
    padding: int
    fits: int


class BatchSettlements(NamedTuple):
    """How the jobs of a batch end.

    Attributes:
        ready: can be sent now.
        storing: are sent when their result is in the payload store.
    """

    ready: list[Settlement]
    storing: list[Settlement]


def settle_batch(
    batch: Batch, result: BatchResult, payloads: PendingPayloads, retries: RetryPolicy, model: str
) -> BatchSettlements:
    """Return how the jobs of a batch end.

    Args:
        batch: the jobs.
        result: what their model process returned.
        payloads: gets the results that are too long for a settlement.
        retries: when failed jobs are tried again.
        model: the model's name.
    """
    text, done = batch_text(len(batch.jobs), result.padding), date_done()
    shared, inline_max = stages(result.times), payloads.inline_limit_bytes
    ready, storing = [], []
    claimed_at, rest = UNKNOWN, ""
    for job, outcome in zip(batch.jobs, result.outcomes, strict=True):
        if job.claimed_at != claimed_at:
            claimed_at, rest = job.claimed_at, since_claim(job, shared)
        took = since_submit(job) + rest
        if job.dropped:
            ready.append(discarded(job, text, took))
        elif not outcome[0]:
            _, code, message, retryable, traceback = outcome
            settlement = failed(
                job, code, message, retryable=retryable, traceback=traceback,
                batch=text, timings=took, retries=retries,
            )  # fmt: skip
            ready.append(settlement)
        elif len(outcome[1]) > inline_max and payloads.must_store(job, outcome[1]):
            entry = new_entry(payloads.store, job.id, model, "r")
            _, body, content_type = outcome
            settlement = stored(job, entry.ref, body, content_type, text, took, done)
            payloads.add_result(PendingResult(job, settlement, entry, body, content_type))
            storing.append(settlement)
        else:
            ready.append(succeeded(job, outcome[1], outcome[2], text, took, done))
    return BatchSettlements(ready, storing)


def observe_batch(stats: ModelStats, batch: Batch, result: BatchResult, now: float) -> None:
    """Add a batch that has run to the histograms; `now` is when its result came."""
    jobs, times = batch.jobs, result.times
    stats.observe_batch(
        len(jobs),
        [job.claimed_at - job.enqueued_at for job in jobs],
        [job.dispatched_at - job.claimed_at for job in jobs],
        [now - job.enqueued_at for job in jobs],
        [took / 1000 for took in times[:3]],
        result.padding,
        times[3] / 1000,
    )


def discarded(job: LeasedJob, batch: int | str, took: str) -> Settlement:
    """Return the settlement of a dispatched job whose outcome no longer counts."""
    # `cancelled` would undo the attempt, which this job has used. Redis knows of the cancel.
    return failed(job, JobCancelled.code, "the job was cancelled", batch=batch, timings=took)
