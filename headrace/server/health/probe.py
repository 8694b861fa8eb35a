"""`headrace health`: whether a component on this host serves.

For the health checks of containers, whose images have no curl. A check sends a request to the
component; workers and processes of extensions are looked up in Redis. It returns a line about what
it found, and raises a HeadraceError if the component does not serve.

A check runs every few seconds in each container, so it imports only what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from headrace.config.settings import Settings, load_settings
from headrace.errors import ConfigError, HeadraceError
from headrace.redis import keys
from headrace.redis.url import read_url, redact_url

if TYPE_CHECKING:
    from headrace.redis.light_client import Asks
    from headrace.server.extension import Process

#: A loaded machine answers late. The timeout of the container's check must be longer.
TIMEOUT_S: Final = 4.0


class Component(StrEnum):
    """A component of the core."""

    API = "api"
    WORKER = "worker"
    BACKGROUND = "background"
    FLOWER = "flower"
    REDIS = "redis"


def run_check(
    name: str, workers: int | None, environ: Mapping[str, str], *, models: bool = False
) -> str:
    """Run `headrace health COMPONENT`; return a line about what was found.

    Args:
        models: the models of a worker must be loaded too.

    Raises:
        HeadraceError: the component does not serve, or the settings are wrong. Docker allows only
            status 0 and 1.
        ConfigError: the component is unknown.
    """
    if name not in [*Component] and name not in (others := _processes()):
        known = [*Component, *others]
        raise ConfigError(f"unknown component {name!r}", hint=f"use one of {', '.join(known)}")
    if models and name != Component.WORKER:
        raise ConfigError("--models is for the component worker", hint="leave it out")
    try:
        return check(name, load_settings(None, environ, {}), workers, environ, models=models)
    except ConfigError as error:
        raise HeadraceError(error.message, hint=error.hint) from error


def check(
    component: str,
    settings: Settings,
    workers: int | None,
    environ: Mapping[str, str],
    *,
    models: bool = False,
) -> str:
    """Check a component in its environment; raise ConfigError if it lacks the URL of Redis."""
    if component == Component.API:
        return check_http("API", settings.host, settings.port, "/ready", tls=settings.tls)
    if component == Component.FLOWER:
        return check_http("Flower", settings.flower_host, settings.flower_port, "/healthcheck")
    url = settings.redis_url or _embedded_url(settings)
    if component == Component.WORKER:
        return check_workers(url, workers, environ, models=models)
    if component == Component.BACKGROUND:
        return check_background(url)
    if component == Component.REDIS:
        _ask(url, lambda client: client.execute_command("PING"))
        return f"Redis at {redact_url(url)}: PONG"
    return str(_ask(url, _processes()[component].check))


def check_http(what: str, host: str, port: int, path: str, *, tls: bool = False) -> str:
    """Check that a server answers a GET with 2xx in time."""
    import http.client

    from headrace.server.ports import http_get, http_url

    where = f"{what}: GET {http_url(host, port, tls=tls)}{path}"
    try:
        status, _, _ = http_get(host, port, path, timeout_s=TIMEOUT_S, tls=tls)
    except (OSError, http.client.HTTPException) as error:
        raise HeadraceError(f"{where}: {str(error) or type(error).__name__}") from error
    if not 200 <= status < 300:
        raise HeadraceError(f"{where}: answered {status}")
    return f"{where}: {status}"


def check_background(url: str) -> str:
    """Check that the background worker of this host is alive."""
    from headrace.server.health.liveness import background_node_name, live_background_workers

    node = background_node_name()
    if node not in {alive.node for alive in _ask(url, live_background_workers)}:
        raise HeadraceError(f"not seen in the last {keys.BACKGROUND_TTL_S} s: {node}")
    return f"serving: {node}"


def check_workers(
    url: str, workers: int | None, environ: Mapping[str, str], *, models: bool = False
) -> str:
    """Check that each worker of this host lives; with `models`, also that its models are loaded."""
    from headrace.server.gpus import worker_devices
    from headrace.server.health.liveness import live_reports, node_name, unready_models

    wanted = [node_name(device) for device in worker_devices(environ, workers)]
    reports = _ask(url, live_reports)
    missing = [node for node in wanted if node not in reports]
    if missing:
        raise HeadraceError(f"not seen in the last {keys.WORKER_TTL_S} s: {', '.join(missing)}")
    unready = unready_models(list(reports.values())) if models else {}
    if unready:
        listed = ", ".join(f"{name} ({state})" for name, state in sorted(unready.items()))
        raise HeadraceError(f"no loaded replica on this host of: {listed}")
    return f"serving: {', '.join(wanted) or 'no worker'}"


def _processes() -> Mapping[str, Process]:
    from headrace.server.extension import processes

    return processes()


def _embedded_url(settings: Settings) -> str:
    from headrace.server.embedded_redis import redis_url_here

    return redis_url_here(settings)


def _ask(url: str, question: Callable[[Asks], Any]) -> Any:
    import hiredis

    from headrace.redis.light_client import LightClient, is_light

    address = read_url(url)
    if is_light(address):
        try:
            with LightClient(address, TIMEOUT_S) as client:
                return question(client)
        except TimeoutError as error:
            raise HeadraceError(
                f"Redis at {redact_url(url)}: no answer in {TIMEOUT_S:g} s"
            ) from error
        except (OSError, hiredis.HiredisError):
            pass  # the errors of redis-py have the reason
    return _ask_redis_py(url, question)


def _ask_redis_py(url: str, question: Callable[[Asks], Any]) -> Any:
    import redis.exceptions

    from headrace.redis.connection import connect

    with connect(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S) as client:
        try:
            return question(client)
        except (redis.exceptions.RedisError, OSError) as error:
            raise HeadraceError(f"Redis at {redact_url(url)}: {error}") from error
