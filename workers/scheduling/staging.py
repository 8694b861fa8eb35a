"""When a second batch goes to a model process behind the one that runs.

Only where the handler works at both, so that the device need not wait for `preprocess`. As late as
that allows, for a batch that is handed over takes in nobody any more: when the
running one is expected to end within the time that preparing it takes, or, where no other model
shares the device, when it is full. A batch of offline jobs alone would stand before an online job
that comes meanwhile, so that it is handed over as late as can be, and only where no online job has
come for a while.

Where another model then comes to wait for the device, and is next, the staged batch is asked back:
it is given back if its `inference` has not begun, and is the next of its own model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from workers.jobs.batch import Batch
from workers.jobs.leased_job import NEVER
from workers.jobs.settlement import Settlement
from workers.models.served_model import ServedModel
from workers.replicas.replica import Replica

#: Where no online job came for so many seconds, none is expected in the next moment.
QUIET_S: Final = 10.0


def replica_for_second(
    model: ServedModel, models: Iterable[ServedModel], now: float
) -> Replica | None:
    """The process of the lane that is to get a second batch now, if one is.

    Args:
        model: the model.
        models: all models of the worker; where another one waits for the device, it is next.
        now: the time.
    """
    waiting = len(model.batcher)
    if not waiting or model.idle or model.batcher.isolated:
        return None
    replica = _behind(model)
    if replica is None:
        return None
    others = [other for other in models if other is not model and other.device == model.device]
    online = model.batcher.online
    full = online and not others and waiting >= model.batcher.policy.max_batch_size
    if not full and ends_in_s(model, now) > lead_s(model):
        return None
    if not online and not all(_quiet(one, now) for one in (model, *others)):
        return None
    wanted = any(other.wants_turn and other.batcher.online for other in others)
    return None if wanted else replica


def _quiet(model: ServedModel, now: float) -> bool:
    """Whether no online job has come of late, or is known to come."""
    known = model.backlog.online or model.backlog.online_awaited
    return not known and now - model.batcher.online_at > QUIET_S


def ends_in_s(model: ServedModel, now: float) -> float:
    """When the first of the running batches is expected to end, by the batches before."""
    usual_s = model.batcher.latency_model.usual_s or float("inf")
    running = [replica.batch.started_at for replica in model.replicas if replica.batch is not None]
    return min((started + usual_s - now for started in running), default=0.0)


def requeue(model: ServedModel, batch: Batch) -> list[Settlement]:
    """Let the items of a batch that was given back wait again, in front.

    Returns:
        The ends of those that were cancelled meanwhile.
    """
    ended, waiting = [], []
    for job in batch.jobs:
        job.dispatched_at = 0.0
        if job.dropped == "cancelled":
            ended.append(model.cancel(job))
        elif job.dropped:
            model.forget([job])
        elif job.expires_at == NEVER or not model.deadlines.expires_too_soon(job, model.replicas):
            waiting.append(job)
    model.batcher.put_back(waiting)
    return ended


def lead_s(model: ServedModel) -> float:
    """How long it takes to prepare what waits."""
    size = min(len(model.batcher), model.batcher.policy.max_batch_size)
    return model.prepare_s * size


def stage_at(model: ServedModel, now: float) -> float | None:
    """When what waits is to be staged at the latest; None if that is not known, or is over."""
    if not len(model.batcher) or _behind(model) is None:
        return None
    in_s = ends_in_s(model, now) - lead_s(model)
    return now + in_s if 0 < in_s < float("inf") else None


def _behind(model: ServedModel) -> Replica | None:
    """The process that takes a second batch and has begun its first one first."""
    ready = [replica for replica in model.replicas if replica.takes_second]
    return min(ready, key=_started_at, default=None)


def _started_at(replica: Replica) -> float:
    return replica.batch.started_at if replica.batch is not None else 0.0
