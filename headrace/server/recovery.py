"""What dead workers held goes back at once: jobs of a worker, tasks of a background worker.

`lease_ttl` is for lost hosts only. A background task is a Celery message in
`headrace:background`; workers/background runs it. This module does not import Celery.
"""

from __future__ import annotations

from typing import Any

import msgspec
import redis

from headrace.observability.worker_report import read_report
from headrace.redis import keys
from headrace.redis.connection import connect
from headrace.redis.script_client import call_script
from headrace.redis.scripts import jobs as job_scripts
from headrace.redis.scripts import script
from headrace.server.health.liveness import WorkerLiveness


def release_incarnation(
    redis_url: str, incarnation: str, max_deliveries: int | None = 3, failures_kept: str = ""
) -> int:
    """Release the jobs of a dead worker to the head of their queues; return how many.

    Each then runs isolated, and only a job that ran exclusively when its worker died is charged.

    Args:
        max_deliveries: how many processes may crash while they run the job alone; None: no crash
            is charged.
        failures_kept: `Settings.failures_kept`, for jobs that end here.

    Raises:
        redis.RedisError: Redis does not answer; the leases expire by themselves.
    """
    with connect(redis_url) as client:
        # The worker's last report names its models and the delay after a crash. It expires
        # WORKER_TTL_S after the worker's death.
        report: Any = client.hgetall(keys.worker(incarnation))
        released = 0
        mode = "free" if max_deliveries is None else "lost"
        for model, state in read_report(report).models.items():
            base_us, most_us = state.backoff_us
            losses = f"{max_deliveries or 0} {base_us} {most_us} {failures_kept}".rstrip()
            queues = [keys.queue_name(model)]
            if state.version:
                queues.append(keys.version_queue(model, state.version))
                # Of several versions in one worker, some are reported under both names.
                name = model.partition(keys.VERSION_SEPARATOR)[0]
                leases = keys.replica_leases(f"{name}{keys.VERSION_SEPARATOR}{state.version}")
                client.hdel(leases, incarnation)
            for queue in queues:
                release = job_scripts.release_owner(queue, mode, losses, incarnation)
                released += int(call_script(client, release))
        client.delete(keys.worker(incarnation))
        client.zrem(keys.WORKERS, incarnation)
    return released


def report_alive(client: redis.Redis, owner: str, alive: WorkerLiveness, *dead: str) -> int:
    """Report that a background worker is alive; return how many tasks of dead ones were requeued.

    Args:
        owner: the incarnation of the live worker.
        dead: other incarnations that are known to be dead; `owner` itself after it has lost its
            connection.
    """
    return _requeue_dead(client, owner, msgspec.json.encode(alive), *dead)


def requeue_tasks(redis_url: str, owner: str) -> int:
    """Requeue the tasks of a dead background worker at once; return how many.

    Raises:
        redis.RedisError: Redis does not answer; a live worker requeues them after BACKGROUND_TTL_S.
    """
    with connect(redis_url) as client:
        return _requeue_dead(client, "", b"", owner)


def _requeue_dead(client: redis.Redis, living: str, state: bytes, *dead: str) -> int:
    requeue = script("background/requeue_dead").call([], living, state, *dead)
    return int(call_script(client, requeue))
