"""What this extension adds to a deployment: the batch runner.

Without it batches wait, and everything else serves.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final

from extensions.openai.redis import keys as batch_keys
from headrace.errors import HeadraceError
from headrace.redis import keys
from headrace.redis.light_client import Asks
from headrace.server.extension import Process, ServerPart
from headrace.server.supervisor.proc import start_time_ticks

RUNNER: Final = "runner"
#: A runner that stops waits for answers to its requests, then releases its batches.
_STOP_S: Final = 25.0


def live_runners(client: Asks) -> dict[str, tuple[str, int]]:
    """Return host and pid of each live runner, by its name."""
    members = client.execute_command("ZRANGE", batch_keys.RUNNERS, 0, -1)
    named = (member.decode().split(" ") for member in members)
    return {owner: (host, int(pid)) for owner, host, pid in named}


def _check(client: Asks) -> str:
    host = socket.gethostname()
    found = live_runners(client).values()
    pids = [pid for at, pid in found if at == host and start_time_ticks(pid) is not None]
    if not pids:
        raise HeadraceError(f"no runner of this host was seen in the last {keys.WORKER_TTL_S} s")
    return f"running: {', '.join(map(str, pids))}"


def _release(redis_url: str, runner: str, report: Callable[[str], None]) -> None:
    """Release the batches of a dead runner, so that another continues them at once."""
    # Imported here because `headrace health` needs none of it.
    import redis.exceptions

    from extensions.openai.batches.store import BatchStore
    from headrace.redis.connection import connect
    from headrace.redis.script_client import ScriptClient

    try:
        with connect(redis_url) as client:
            released = BatchStore(ScriptClient(client), 0, 0).release(runner)
    except (HeadraceError, redis.exceptions.RedisError, OSError) as error:
        report(f"batches of {runner} not released, their leases expire by themselves: {error}")
        return
    if released:
        report(f"released {released} batches of {runner}")


PART: Final = ServerPart(
    processes=(
        Process(
            name=RUNNER,
            command=["runner"],
            is_ready=lambda client, incarnation: incarnation in live_runners(client),
            release=_release,
            check=_check,
            stop_timeout_s=_STOP_S,
        ),
    )
)
