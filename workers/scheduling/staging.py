"""When a second batch is staged behind the batch that a replica runs.

It is staged only if the handler overlaps batches, so that the device need not wait for
`preprocess`. It is staged as late as possible, because a staged batch takes no more jobs. That is
when the running batch should end before the next one could be prepared. A full batch is staged
earlier if no other model of the device had an online job for a while. An offline batch would delay
an online job that comes meanwhile, so it is staged only if no online job came for a while. If
another model then waits for the device and has the next turn, the staged batch is preempted. The
process returns it if its `inference` has not begun. It is then the next batch of its model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from workers.models.served_model import ServedModel
from workers.replicas.replica import Replica

#: If no online job came for this many seconds, none is expected in the next moment.
QUIET_S: Final = 10.0


def replica_for_second(
    model: ServedModel, models: Iterable[ServedModel], now: float
) -> Replica | None:
    """Return the replica that gets a second batch of a model now; None if none does.

    A model of `models` that waits for the device runs first.
    """
    waiting = model.prepared
    if not waiting or model.idle or model.isolated:
        return None
    replica = _takes_second(model)
    if replica is None:
        return None
    others = [other for other in models if other is not model and other.device == model.device]
    online = model.online
    full = online and waiting >= model.batch_limit
    early = full and all(other.quiet_for(QUIET_S, now) for other in others)
    if not early and model.batch_ends_in_s(now) > preparation_s(model):
        return None
    if not online and not all(served.quiet_for(QUIET_S, now) for served in (model, *others)):
        return None
    wanted = any(other.wants_turn and other.online for other in others)
    return None if wanted else replica


def stage_at(model: ServedModel, now: float) -> float | None:
    """Return when the prepared jobs must be staged at the latest; None if unknown or past."""
    if not model.prepared or _takes_second(model) is None:
        return None
    in_s = model.batch_ends_in_s(now) - preparation_s(model)
    return now + in_s if 0 < in_s < float("inf") else None


def preparation_s(model: ServedModel) -> float:
    """Return how long `preprocess` takes for the prepared jobs."""
    return model.prepare_s * min(model.prepared, model.batch_limit)


def _takes_second(model: ServedModel) -> Replica | None:
    """Return the replica that can take a second batch and has begun its first batch first."""
    ready = [replica for replica in model.replicas if replica.takes_second]
    return min(ready, key=_started_at, default=None)


def _started_at(replica: Replica) -> float:
    return replica.batch.started_at if replica.batch is not None else 0.0
