"""Giving back at once what a dead worker held; `lease_ttl` is for lost hosts only."""

from __future__ import annotations

from typing import Any

from headrace.observability.worker_report import read_report
from headrace.redis import keys
from headrace.redis.connection import connect
from headrace.redis.script_client import call_script
from headrace.redis.scripts import jobs as job_scripts


def release_incarnation(redis_url: str, incarnation: str, max_deliveries: int | None = 3) -> int:
    """Put the jobs of a dead worker back at the head of their queues; how many there were.

    Each then runs alone, and only one that ran alone when its worker died is charged for it.

    Args:
        redis_url: where the jobs are.
        incarnation: the HEADRACE_INCARNATION that the worker was started with.
        max_deliveries: how many processes a job may take with it while it runs alone; None: it is
            charged for none.

    Raises:
        redis.RedisError: Redis does not answer; the leases run out by themselves.
    """
    with connect(redis_url) as client:
        # What the worker last said of itself names its models, and how long jobs wait that were
        # lost alone; it outlives it by WORKER_TTL_S.
        said: Any = client.hgetall(keys.worker(incarnation))
        released = 0
        mode = "free" if max_deliveries is None else "crash"
        for model, state in read_report(said).models.items():
            base_us, most_us = state.backoff_us
            losses = f"{max_deliveries or 0} {base_us} {most_us}"
            queue = keys.queue_name(model)
            release = job_scripts.release_owner(queue, mode, losses, incarnation)
            released += int(call_script(client, release))
        client.delete(keys.worker(incarnation))
        client.zrem(keys.WORKERS, incarnation)
    return released
