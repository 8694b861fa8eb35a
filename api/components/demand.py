"""The demand for a model: the work that replicas have, or that they could begin at once.

An autoscaler follows it. It counts the jobs that run, so a busy model with an empty queue keeps its
workers. It counts the jobs of a dead worker, and delayed jobs once they are due: without a worker,
nothing moves these into the queue.
"""

from __future__ import annotations

from typing import Final

from headrace.observability.worker_report import BATCH_SIZE, STAGES_S, field_of
from headrace.queue.job_queue import JobQueue
from headrace.redis import keys
from headrace.schema.operation import Demand

#: The counters that `seconds_per_job` takes.
FIELDS: Final = tuple(map(field_of, (BATCH_SIZE, *STAGES_S)))


def demand_of(queued: int, due: int, in_flight: int, paused: bool) -> int:
    """Return the jobs that replicas have, or could begin at once."""
    return in_flight if paused else queued + due + in_flight


def seconds_per_job(batch_sizes: bytes | None, *stages: bytes | None) -> float | None:
    """Return how long the handler's verbs took for a job, by `FIELDS`; None if no batch has run."""
    jobs = _sum(batch_sizes)
    return sum(map(_sum, stages)) / jobs if jobs else None


def _sum(histogram: bytes | None) -> float:
    """Return the sum of all observed values; 0 for a histogram that cannot be read."""
    try:
        return float((histogram or b"0").split()[-1])
    except (ValueError, IndexError):
        return 0.0


def demand_seconds(jobs: int, each_s: float | None) -> float | None:
    """Return how long one replica would run for these jobs; None if no batch has run."""
    if jobs == 0:
        return 0.0
    return None if each_s is None else round(jobs * each_s, 3)


async def read_demand(queue: JobQueue, model: str, ready_replicas: int) -> Demand:
    """Read the demand for a registered model; raise BrokerError if Redis does not answer."""
    name = keys.queue_name(model)
    (depth,) = await queue.depths([name])
    is_paused, counters = await queue.read_all(
        [("SISMEMBER", keys.PAUSED, name), ("HMGET", keys.stats(model), *FIELDS)]
    )
    paused, each_s = bool(is_paused), seconds_per_job(*counters)
    queued = sum(depth.waiting.values())
    demand = demand_of(queued, depth.due, depth.in_flight, paused)
    return Demand(
        model=model,
        demand=demand,
        queued=queued,
        due=depth.due,
        in_flight=depth.in_flight,
        seconds=demand_seconds(demand, each_s),
        oldest_age_s=depth.oldest_age_s,
        ready_replicas=ready_replicas,
        paused=paused,
    )
