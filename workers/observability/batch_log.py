"""What the worker logs of batches, and which fields its lines have."""

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
    """The fields of a line that concerns a lane's model."""
    return {"model": model.config.name}


def about_batches(model: ServedModel, batches: Sequence[Batch]) -> dict[str, Any]:
    """The fields of a line that concerns batches, and all of their jobs."""
    ids = [job.id for batch in batches for job in batch.jobs]
    names = " ".join(batch.id for batch in batches)
    return {
        **about(model), "batch": names, "size": len(ids), **about_jobs(ids), **_trace(batches, ids),
    }  # fmt: skip


def _trace(batches: Sequence[Batch], ids: Sequence[str]) -> dict[str, str]:
    """Where in a trace the one job was submitted that they are about."""
    if len(ids) != 1:
        return {}
    parents = [parent for batch in batches for parent in batch.traces.values()]
    if not parents:
        return {}
    trace = Trace(parents[0])
    return {"trace_id": trace.trace_id, "span_id": trace.span_id}


def log_left(model: ServedModel, batch: Batch) -> None:
    """A batch was handed over to a model process."""
    if logger.isEnabledFor(logging.DEBUG):
        told = {**about_batches(model, [batch]), "reason": batch.reason}
        logger.debug("a batch left", extra=told)


def log_ended(model: ServedModel, batch: Batch, outcomes: Sequence[Any], now: float) -> None:
    """A batch has ended with these outcomes; what they say is not for the log."""
    if logger.isEnabledFor(logging.DEBUG):
        failed = sum(not outcome[0] for outcome in outcomes)
        took = {"failed": failed, "duration_ms": round((now - batch.started_at) * 1000, 3)}
        logger.debug("a batch has ended", extra={**about_batches(model, [batch]), **took})
