"""`headrace health`: does the part that runs beside us serve?

For the health checks of containers, whose images hold no curl. Each check looks at the part itself
and at no other, except that workers of all kinds are seen through Redis.
"""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec
import redis
import redis.exceptions
from typing_extensions import override

from headrace.config.settings import Settings, load_settings
from headrace.errors import ConfigError, HeadraceError
from headrace.redis import keys
from headrace.redis.connection import connect, redact_url
from headrace.server import background_workers, components
from headrace.server.gpus import worker_devices
from headrace.server.ports import http_connection, http_url
from headrace.server.supervisor.proc import start_time_ticks

#: A loaded machine answers late; the container's own limit must be longer than this.
TIMEOUT_S: Final = 4.0


class Component(StrEnum):
    """What can be asked for."""

    API = "api"
    WORKER = "worker"
    BACKGROUND = "background"
    RUNNER = "runner"
    FLOWER = "flower"
    REDIS = "redis"

    @classmethod
    @override
    def _missing_(cls, value: object) -> Component | None:
        """Accept `errands`, the old name of the background worker."""
        return cls.BACKGROUND if value == "errands" else None


def run_check(part: str, workers: int | None, environ: Mapping[str, str]) -> str:
    """`headrace health PART`.

    Raises:
        HeadraceError: it does not serve, or the settings do not say where it is: Docker knows
            only status 0 and 1.
        ConfigError: there is no such part.
    """
    try:
        component = Component(part)
    except ValueError:
        raise ConfigError(
            f"unknown component {part!r}", hint=f"use one of {', '.join(Component)}"
        ) from None
    try:
        return check(component, load_settings(None, environ, {}), workers, environ)
    except ConfigError as error:
        raise HeadraceError(error.message, hint=error.hint) from error


def check(
    part: Component, settings: Settings, workers: int | None, environ: Mapping[str, str]
) -> str:
    """Look at one part, from the environment that it was started with.

    Args:
        part: which.
        settings: where it is.
        workers: as `headrace worker` was given it.
        environ: as `headrace worker` has it, for the GPUs that it may use.

    Returns:
        What was seen, in a line.

    Raises:
        HeadraceError: it does not serve.
        ConfigError: no Redis is named, and the part is seen through it.
    """
    if part is Component.WORKER:
        return check_workers(_redis_url(settings), workers, environ)
    if part is Component.BACKGROUND:
        return check_background(_redis_url(settings))
    if part is Component.RUNNER:
        return check_runner(_redis_url(settings))
    if part is Component.REDIS:
        return check_redis(_redis_url(settings))
    if part is Component.FLOWER:
        return check_http("Flower", settings.flower_host, settings.flower_port, "/healthcheck")
    return check_http("API", settings.host, settings.port, "/ready", tls=settings.tls)


def check_http(what: str, host: str, port: int, path: str, *, tls: bool = False) -> str:
    """A server answers a GET with 2xx.

    Raises:
        HeadraceError: it does not, or not in time.
    """
    where = f"{what}: GET {http_url(host, port, tls=tls)}{path}"
    connection = http_connection(host, port, timeout_s=TIMEOUT_S, tls=tls)
    try:
        connection.request("GET", path)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise HeadraceError(f"{where}: {str(error) or type(error).__name__}") from error
    finally:
        connection.close()
    if not 200 <= status < 300:
        raise HeadraceError(f"{where}: answered {status}")
    return f"{where}: {status}"


def check_redis(url: str) -> str:
    """Redis answers PING, which it does not while it loads its data.

    Raises:
        HeadraceError: it does not.
    """
    _ask(url, lambda client: client.ping())
    return f"Redis at {redact_url(url)}: PONG"


def check_background(url: str) -> str:
    """The background worker of this host has lately said that it lives.

    Raises:
        HeadraceError: it has not.
    """
    node = background_workers.node_name()
    if node not in {alive.node for alive in _ask(url, background_workers.living)}:
        raise HeadraceError(f"not seen in the last {keys.ERRANDS_TTL_S} s: {node}")
    return f"serving: {node}"


def check_workers(url: str, workers: int | None, environ: Mapping[str, str]) -> str:
    """Each worker that `headrace worker` runs on this host has lately said that it serves.

    Whether its models could be loaded is another question: `GET /ready?models=all` answers it.

    Raises:
        HeadraceError: one of them has not.
    """
    wanted = [components.node_name(device) for device in worker_devices(environ, workers)]
    seen = _ask(url, _living_nodes)
    missing = [node for node in wanted if node not in seen]
    if missing:
        raise HeadraceError(f"not seen in the last {keys.WORKER_TTL_S} s: {', '.join(missing)}")
    return f"serving: {', '.join(wanted) or 'no worker was asked for'}"


def check_runner(url: str) -> str:
    """A runner of this host has lately said that it lives, and has a process.

    Raises:
        HeadraceError: none has.
    """
    host = socket.gethostname()
    found = _ask(url, components.living_runners).values()
    pids = [pid for at, pid in found if at == host and start_time_ticks(pid) is not None]
    if not pids:
        raise HeadraceError(f"no runner of this host was seen in the last {keys.WORKER_TTL_S} s")
    return f"running: {', '.join(map(str, pids))}"


def _living_nodes(client: redis.Redis) -> set[str]:
    """The nodes that have an entry in Redis and, where they are of this host, a process."""
    suffix = f"@{socket.gethostname()}"
    found = set()
    owners: Any = client.zrange(keys.WORKERS, 0, -1)
    for owner in owners:
        raw: Any = client.hget(keys.worker(owner.decode()), "")
        if raw is None:
            continue  # it has run out
        said = msgspec.json.decode(raw)
        # The entry of a worker that was killed stands for some seconds more.
        if said["node"].endswith(suffix) and start_time_ticks(said["pid"]) is not None:
            found.add(said["node"])
    return found


def _ask(url: str, question: Callable[[redis.Redis], Any]) -> Any:
    client = connect(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)
    try:
        return question(client)
    except (redis.exceptions.RedisError, OSError) as error:
        raise HeadraceError(f"Redis at {redact_url(url)}: {error}") from error
    finally:
        client.close()


def _redis_url(settings: Settings) -> str:
    if settings.redis_url is not None:
        return settings.redis_url
    # Late: a container, which is asked every few seconds, has it named.
    from headrace.server.embedded_redis import prepared_url

    url = prepared_url(settings.state_dir)
    if url is None:
        raise ConfigError(
            f"no Redis is named, and `headrace up` has none in {settings.state_dir}",
            hint="set HEADRACE_REDIS_URL, or go to where `headrace up` runs",
        )
    return url
