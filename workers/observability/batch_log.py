"""Log lines about batches, and the fields of lines about a model or its batches."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from headrace.jobs.trace_context import Trace
from headrace.observability.logs import about_jobs
from workers.jobs.batch import Batch
from workers.models.served_model import ServedModel

logger = logging.getLogger(__name__)


def about(model: ServedModel) -> dict[str, str]:
    """Return the log fields of a model."""
    return {"model": model.config.name}


def about_batches(model: ServedModel, batches: Sequence[Batch]) -> dict[str, Any]:
    """Return the log fields of batches and all of their jobs."""
    ids = [job.id for batch in batches for job in batch.jobs]
    names = " ".join(batch.id for batch in batches)
    return {
        **about(model), "batch": names, "size": len(ids), **about_jobs(ids), **_trace(batches, ids),
    }  # fmt: skip


def _trace(batches: Sequence[Batch], ids: Sequence[str]) -> dict[str, str]:
    """Return the trace fields of batches with a single job."""
    if len(ids) != 1:
        return {}
    parents = [parent for batch in batches for parent in batch.traces.values()]
    if not parents:
        return {}
    trace = Trace(parents[0])
    return {"trace_id": trace.trace_id, "span_id": trace.span_id}


def log_left(model: ServedModel, batch: Batch) -> None:
    """Log that a batch was sent to a model process."""
    if logger.isEnabledFor(logging.DEBUG):
        fields = {**about_batches(model, [batch]), "reason": batch.reason}
        logger.debug("batch dispatched", extra=fields)


def log_ended(model: ServedModel, batch: Batch, outcomes: Sequence[Any], now: float) -> None:
    """Log that a batch has ended, without its results."""
    if logger.isEnabledFor(logging.DEBUG):
        failed = sum(not outcome[0] for outcome in outcomes)
        fields = {"failed": failed, "duration_ms": round((now - batch.started_at) * 1000, 3)}
        logger.debug("batch ended", extra={**about_batches(model, [batch]), **fields})
