"""The account of the background workers: who lives, and whose errands are to be done again.

An errand is a Celery message in `headrace:errands`. Knows no Celery; workers/background/app.py does
them.
"""

from __future__ import annotations

import socket
from typing import Any, Final

import msgspec
import redis

from headrace.redis import keys
from headrace.redis.connection import connect
from headrace.redis.script_client import call_script
from headrace.redis.scripts import background as background_scripts
from headrace.server.supervisor.proc import start_time_ticks

#: How a background worker's node begins.
NODE: Final = "errands"


class WorkerLiveness(msgspec.Struct, frozen=True):
    """What a background worker says of itself.

    Attributes:
        node: its Celery node name.
        pid: its process.
    """

    node: str
    pid: int


def node_name() -> str:
    """The Celery node name of this host's background worker."""
    return f"{NODE}@{socket.gethostname()}"


def tell(client: redis.Redis, owner: str, alive: WorkerLiveness, *gone: str) -> int:
    """Say that a background worker lives, and give back what those held that do not.

    Args:
        client: a connection.
        owner: the worker that lives.
        alive: what it says of itself.
        gone: who is known to be gone besides; `owner` itself, where its connection was lost.

    Returns:
        How many errands will be done again.

    Raises:
        redis.RedisError: Redis does not answer.
    """
    requeue = background_scripts.requeue_dead(owner, msgspec.json.encode(alive), gone)
    return int(call_script(client, requeue))


def give_back(redis_url: str, owner: str) -> int:
    """Let others do at once what a background worker held that is gone; how many errands it was.

    Raises:
        redis.RedisError: Redis does not answer; the others see it in ERRANDS_TTL_S.
    """
    with connect(redis_url) as client:
        return int(call_script(client, background_scripts.requeue_dead("", b"", [owner])))


def living(client: redis.Redis) -> list[WorkerLiveness]:
    """List the live background workers; one of this host must also have a process."""
    owners: Any = client.smembers(keys.ERRAND_OWNERS)
    if not owners:
        return []
    found: Any = client.mget([keys.errands_alive(owner.decode()) for owner in owners])
    said = [msgspec.json.decode(raw, type=WorkerLiveness) for raw in found if raw is not None]
    here = f"@{socket.gethostname()}"
    return [
        one for one in said if not one.node.endswith(here) or start_time_ticks(one.pid) is not None
    ]
