"""Makes settlements of the outcomes that a model process returned for a batch."""

from __future__ import annotations

from typing import Final

from headrace.errors import JobCancelled
from headrace.jobs.job import batch_text
from headrace.jobs.values.encoding import kombu_bytes
from headrace.jobs.values.media_types import JSON_TYPE
from headrace.observability.worker_report import Wait
from headrace.payloads.store import new_entry
from headrace.redis.scripts.jobs import Run
from workers.jobs.leased_job import Batch, LeasedJob
from workers.jobs.settlement import (
    NOT_RUN,
    RetryPolicy,
    Settlement,
    began,
    date_done,
    failed,
    since_claim,
    since_submit,
    stages,
    stored,
    succeeded,
)
from workers.models.held import PendingPayloads, PendingResult
from workers.protocol.frames import Done

UNKNOWN: Final = -1.0


def settle_batch(
    batch: Batch,
    result: Done,
    began_at: float,
    payloads: PendingPayloads,
    retries: RetryPolicy,
    model: str,
) -> tuple[list[Settlement], list[Settlement], list[Wait]]:
    """Return how the jobs of a batch end, and how they waited in the worker.

    Of the ends, the first can be sent now, and the second wait for the payload store.
    """
    text, done = batch_text(len(batch.jobs), result.padding), date_done()
    shared, inline_max = stages(result.times), payloads.inline_limit_bytes
    ready, storing = [], []
    claimed_at, ready_at, rest, start = UNKNOWN, UNKNOWN, "", ("", "")
    # One entry for neighbours that were claimed together.
    waits: list[Wait] = []
    counted, hold_s, wait_s = 0, 0.0, 0.0
    for place, (job, outcome) in enumerate(zip(batch.jobs, result.outcomes, strict=True)):
        if job.claimed_at != claimed_at or job.ready_at != ready_at:
            if place:
                waits.append((place - counted, hold_s, wait_s))
                counted = place
            claimed_at, ready_at = job.claimed_at, job.ready_at
            hold_s = job.hold_s(batch.free_at)
            wait_s = began_at - claimed_at - hold_s
            rest, start = since_claim(hold_s, shared), began(job, began_at, wait_s)
        run = Run(*start, since_submit(job) + rest)
        if job.dropped:
            ready.append(discarded(job, text, run))
        elif not outcome[0]:
            _, code, message, retryable, traceback, *response = outcome
            settlement = failed(
                job, code, message, retryable=retryable, traceback=traceback,
                batch=text, run=NOT_RUN._replace(timings=run.timings) if code == "expired" else run,
                retries=retries, response=response[0] if response else b"",
            )  # fmt: skip
            ready.append(settlement)
        elif len(outcome[1]) > inline_max and payloads.must_store(job, len(outcome[1])):
            entry = new_entry(payloads.store, job.id, model, "r")
            _, body, kind = outcome
            settlement = stored(job, entry.ref, len(body), kind or JSON_TYPE, text, run, done)
            payloads.add_result(PendingResult(job, settlement, entry, body))
            storing.append(settlement)
        else:
            _, body, kind = outcome
            ready.append(succeeded(job, kombu_bytes(body) if kind else body, kind, text, run, done))
    waits.append((len(batch.jobs) - counted, hold_s, wait_s))
    return ready, storing, waits


def discarded(job: LeasedJob, batch: int | str, run: Run) -> Settlement:
    """Return the settlement of a dispatched job whose outcome no longer counts."""
    # `cancelled` would undo the attempt, which this job has used. Redis knows of the cancel.
    return failed(job, JobCancelled.code, "the job was cancelled", batch=batch, run=run)
