"""Giving back at once what a dead worker held; `lease_ttl` is for lost hosts only."""

from __future__ import annotations

from redis.exceptions import NoScriptError

from headrace import keys
from headrace.connections import connect
from headrace.jobs import US_PER_S
from headrace.model_section import RETRY_BACKOFF_MAX_S, RETRY_BACKOFF_S
from headrace.scripts import script


def release_incarnation(redis_url: str, incarnation: str, max_deliveries: int = 3) -> int:
    """Put the jobs of a dead worker back at the head of their queues; how many there were.

    Each then runs alone, and only one that ran alone when its worker died is charged for it.

    Args:
        redis_url: where the jobs are.
        incarnation: the HEADRACE_INCARNATION that the worker was started with.
        max_deliveries: how many processes a job may take with it while it runs alone.

    Raises:
        redis.RedisError: Redis does not answer; the leases run out by themselves.
    """
    release = script("release_owner")
    # The models' own backoffs are not known here; what a job asked for stands in its record.
    losses = (
        f"{max_deliveries} {int(RETRY_BACKOFF_S * US_PER_S)} {int(RETRY_BACKOFF_MAX_S * US_PER_S)}"
    )
    with connect(redis_url) as client:
        # What the worker last said of itself names its models; it outlives it by WORKER_TTL_S.
        models = [name.decode() for name in client.hkeys(keys.worker(incarnation)) if name]
        released = 0
        for queue in map(keys.queue_name, models):
            call = release.call(keys.queue_keys(queue), queue, "crash", losses, incarnation)
            try:
                released += int(client.execute_command(*call))
            except NoScriptError:
                client.execute_command(*release.load_command())
                released += int(client.execute_command(*call))
        client.delete(keys.worker(incarnation))
        client.zrem(keys.WORKERS, incarnation)
    return released
