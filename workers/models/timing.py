"""When something must be done for a model next."""

from __future__ import annotations

from workers.models.served_model import ServedModel


def batch_ends_in_s(model: ServedModel, now: float) -> float:
    """Return in how many seconds the first running batch should end; 0 if none runs."""
    usual_s = model.batcher.latency_model.usual_s or float("inf")
    started = [replica.batch.started_at for replica in model.replicas if replica.batch is not None]
    return min((at + usual_s - now for at in started), default=0.0)


def due_times(model: ServedModel, *, may_run: bool) -> list[float]:
    """Return the times at which a job or a batch of the model needs attention.

    Args:
        model: the model.
        may_run: a batch could run now, so `hold_until` counts.
    """
    times = [model.deadlines.next_at]
    if may_run and model.hold_until is not None:
        times.append(model.hold_until)
    if model.next_due_at is not None:
        times.append(model.next_due_at)
    times += [replica.batch.deadline for replica in model.replicas if replica.batch is not None]
    return times
