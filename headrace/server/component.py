"""`headrace api`, `worker`, `background`, `runner`, `flower`: one component, on a given Redis."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import NoReturn

from headrace.config.model_catalog import load_catalog
from headrace.config.paths import ENV_URL
from headrace.config.settings import Settings
from headrace.errors import ConfigError
from headrace.observability import logs
from headrace.redis.compatibility import check_broker
from headrace.redis.connection import redact_url
from headrace.server import background_workers, components, state_dir
from headrace.server.api_processes import api_children, api_command, listen_for_api
from headrace.server.gpus import worker_devices
from headrace.server.ports import close_all, http_url, require_free
from headrace.server.supervisor.console import Console, console_for
from headrace.server.supervisor.supervisor import OWN_NAME, Supervisor


def run_workers(settings: Settings, workers: int | None, environ: Mapping[str, str]) -> None:
    """`headrace worker`: one Celery worker per device on the Redis that is named, supervised.

    Raises:
        ConfigError: no Redis is named, or the models file is wrong.
        BrokerError: that Redis cannot be used.
        HeadraceError: a worker cannot be started.
    """
    url = _named_redis(settings, "worker")
    load_catalog(settings.models_file, timeout_s=settings.timeout_s)
    devices = worker_devices(environ, workers)
    console = _console([device.name for device in devices], settings)

    def say(text: str) -> None:
        console.say(OWN_NAME, text)

    for warning in check_broker(url).warnings():
        say(warning)
    variables = components.environment(settings, url, environ)
    children = [components.worker_child(device, settings, variables, say) for device in devices]
    Supervisor(
        children, console, on_ready=lambda: say(f"{len(children)} workers on {redact_url(url)}")
    ).run()


def run_background(settings: Settings, environ: Mapping[str, str]) -> None:
    """`headrace background`: a background worker on the Redis that is named, supervised.

    Raises:
        ConfigError: no Redis is named, or the models file is wrong.
        BrokerError: that Redis cannot be used.
        HeadraceError: it cannot be started.
    """
    url = _named_redis(settings, "background")
    load_catalog(settings.models_file, timeout_s=settings.timeout_s)
    console = _console([background_workers.NODE], settings)

    def say(text: str) -> None:
        console.say(OWN_NAME, text)

    for warning in check_broker(url).warnings():
        say(warning)
    child = components.background_child(
        settings, components.environment(settings, url, environ), say
    )
    Supervisor(
        [child], console, on_ready=lambda: say(f"background worker on {redact_url(url)}")
    ).run()


def run_api(settings: Settings, environ: Mapping[str, str]) -> None:
    """`headrace api`: the API on the Redis that is named.

    One process is what this process becomes; several are supervised.

    Raises:
        ConfigError: no Redis is named, the models file is wrong, or the port is taken.
        BrokerError: that Redis cannot be used.
        HeadraceError: an API process cannot be started.
    """
    url = _named_redis(settings, "api")
    load_catalog(settings.models_file, timeout_s=settings.timeout_s)
    listeners = listen_for_api(settings)
    try:
        warnings = check_broker(url).warnings()
        variables = components.environment(settings, url, environ)
        if settings.api_processes == 1:
            _become_api(listeners, variables)
        _supervise_api(settings, listeners, variables, warnings)
    finally:
        close_all(listeners)


def _become_api(listeners: list[socket.socket], variables: Mapping[str, str]) -> None:
    for listener in listeners:
        listener.set_inheritable(True)
    command = api_command(listeners)
    os.execve(command[0], command, variables)  # noqa: S606


def _supervise_api(
    settings: Settings,
    listeners: list[socket.socket],
    variables: Mapping[str, str],
    warnings: list[str],
) -> None:
    children = api_children(settings, variables, listeners)
    console = _console([child.name for child in children], settings)
    for warning in warnings:
        console.say(OWN_NAME, warning)
    url = http_url(settings.host, settings.port, tls=settings.tls)
    ready = f"{len(children)} API processes on {url}"
    Supervisor(
        children,
        console,
        on_ready=lambda: console.say(OWN_NAME, ready),
        on_stop=lambda: close_all(listeners),
    ).run()


def run_runner(settings: Settings, environ: Mapping[str, str]) -> None:
    """`headrace runner`: drive batches, until it is told to stop.

    Args:
        settings: the deployment's; where the API is, unless HEADRACE_URL says.
        environ: its environment.

    Raises:
        ConfigError: no Redis is named, or the payload store cannot be used.
        BrokerError: that Redis cannot be used.
    """
    url = _named_redis(settings, "runner")
    logs.configure(
        settings.log_format, settings.log_level, "runner", environ=environ, redis_url=url
    )
    check_broker(url)
    beside = http_url(settings.host, settings.port, tls=settings.tls)
    api_url = environ.get(ENV_URL) or beside
    # Here, as it brings the HTTP client, which no other part needs.
    from headrace.batches.runner import BatchRunner

    BatchRunner(settings, url, api_url, environ.get(components.INCARNATION, "")).run()


def run_flower(
    settings: Settings, published_at: str | None, environ: Mapping[str, str]
) -> NoReturn:
    """`headrace flower`: become Flower on the Redis that is named.

    Args:
        settings: where it listens, and where it keeps its history.
        published_at: where a container's port is published; None: where it listens is where it is
            reached.
        environ: its environment; FLOWER_BASIC_AUTH is the password.

    Raises:
        ConfigError: no Redis is named, the models file is wrong, the port is taken, strangers could
            reach it without a password, or its history cannot be kept.
        BrokerError: that Redis cannot be used.
    """
    url = _named_redis(settings, "flower")
    load_catalog(settings.models_file, timeout_s=settings.timeout_s)
    change = "let it be reached on 127.0.0.1 only"
    components.check_flower(published_at or settings.flower_host, environ, change=change)
    change = "choose another with HEADRACE_FLOWER_PORT"
    require_free("Flower", settings.flower_host, settings.flower_port, change=change)
    check_broker(url)
    state_dir.make(settings.state_dir, change="choose another with HEADRACE_STATE_DIR")
    child = components.flower_child(settings, components.environment(settings, url, environ))
    os.execve(child.command[0], list(child.command), child.environment())  # noqa: S606


def _console(names: Sequence[str], settings: Settings) -> Console:
    as_json = components.log_format(settings) == logs.JSON
    return console_for([OWN_NAME, *names], as_json=as_json)


def _named_redis(settings: Settings, part: str) -> str:
    if settings.redis_url is None:
        raise ConfigError(
            f"headrace {part} needs a Redis, and none is named",
            hint="set HEADRACE_REDIS_URL, or start everything with `headrace up`",
        )
    return settings.redis_url
