"""`headrace api`, `worker`, `background`, `runner`, `flower`: one component on a given Redis."""

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
from headrace.server.gpus import worker_devices
from headrace.server.ports import close_all, http_url, require_free
from headrace.server.supervisor.console import Console, console_for
from headrace.server.supervisor.supervisor import OWN_NAME, Supervisor


def run_workers(settings: Settings, workers: int | None, environ: Mapping[str, str]) -> None:
    """Run `headrace worker`: one supervised Celery worker per device.

    Raises:
        ConfigError: HEADRACE_REDIS_URL is not set, or the models file is wrong.
        BrokerError: Redis cannot be used.
        HeadraceError: a worker cannot be started.
    """
    url = _redis_url(settings, "worker")
    load_catalog(settings.models_file, timeout_s=settings.timeout_s)
    devices = worker_devices(environ, workers)
    console = _console([device.name for device in devices], settings)

    def report(text: str) -> None:
        console.print(OWN_NAME, text)

    for warning in check_broker(url).warnings():
        report(warning)
    variables = components.environment(settings, url, environ)
    children = [components.worker_child(device, settings, variables, report) for device in devices]
    Supervisor(
        children, console, on_ready=lambda: report(f"{len(children)} workers on {redact_url(url)}")
    ).run()


def run_background(settings: Settings, environ: Mapping[str, str]) -> None:
    """Run `headrace background`: a supervised background worker.

    Raises:
        ConfigError: HEADRACE_REDIS_URL is not set, or the models file is wrong.
        BrokerError: Redis cannot be used.
        HeadraceError: it cannot be started.
    """
    url = _redis_url(settings, "background")
    load_catalog(settings.models_file, timeout_s=settings.timeout_s)
    console = _console([background_workers.NODE], settings)

    def report(text: str) -> None:
        console.print(OWN_NAME, text)

    for warning in check_broker(url).warnings():
        report(warning)
    child = components.background_child(
        settings, components.environment(settings, url, environ), report
    )
    Supervisor(
        [child], console, on_ready=lambda: report(f"background worker on {redact_url(url)}")
    ).run()


def run_api(settings: Settings, environ: Mapping[str, str]) -> None:
    """Run `headrace api`. This process becomes the only API process, or supervises several.

    Raises:
        ConfigError: HEADRACE_REDIS_URL is not set, the models file is wrong, or the port is taken.
        BrokerError: Redis cannot be used.
        HeadraceError: an API process cannot be started.
    """
    url = _redis_url(settings, "api")
    load_catalog(settings.models_file, timeout_s=settings.timeout_s)
    listeners = components.listen_for_api(settings)
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
    command = components.api_command(listeners)
    os.execve(command[0], command, variables)  # noqa: S606


def _supervise_api(
    settings: Settings,
    listeners: list[socket.socket],
    variables: Mapping[str, str],
    warnings: list[str],
) -> None:
    children = components.api_children(settings, variables, listeners)
    console = _console([child.name for child in children], settings)
    for warning in warnings:
        console.print(OWN_NAME, warning)
    url = http_url(settings.host, settings.port, tls=settings.tls)
    ready = f"{len(children)} API processes on {url}"
    Supervisor(
        children,
        console,
        on_ready=lambda: console.print(OWN_NAME, ready),
        on_stop=lambda: close_all(listeners),
    ).run()


def run_runner(settings: Settings, environ: Mapping[str, str]) -> None:
    """Run `headrace runner`: run batches until a signal stops it.

    Args:
        settings: of the deployment.
        environ: its environment; HEADRACE_URL overrides the API's address in the settings.

    Raises:
        ConfigError: HEADRACE_REDIS_URL is not set, or the payload store cannot be used.
        BrokerError: Redis cannot be used.
    """
    url = _redis_url(settings, "runner")
    logs.configure(
        settings.log_format, settings.log_level, "runner", environ=environ, redis_url=url
    )
    check_broker(url)
    local_url = http_url(settings.host, settings.port, tls=settings.tls)
    api_url = environ.get(ENV_URL) or local_url
    # Imported here: it needs the HTTP client, which no other component needs.
    from headrace.batches.runner import BatchRunner

    BatchRunner(settings, url, api_url, environ.get(components.INCARNATION, "")).run()


def run_flower(
    settings: Settings, published_at: str | None, environ: Mapping[str, str]
) -> NoReturn:
    """Run `headrace flower`: become Flower.

    Args:
        settings: its address and port, and the folder of its history.
        published_at: the address at which a container publishes its port; None outside containers.
        environ: its environment; FLOWER_BASIC_AUTH is the password.

    Raises:
        ConfigError: HEADRACE_REDIS_URL is not set, the models file is wrong, the port is taken,
            other machines could reach it without a password, or its history cannot be written.
        BrokerError: Redis cannot be used.
    """
    url = _redis_url(settings, "flower")
    load_catalog(settings.models_file, timeout_s=settings.timeout_s)
    change = "publish it on 127.0.0.1 only"
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


def _redis_url(settings: Settings, component: str) -> str:
    if settings.redis_url is None:
        raise ConfigError(
            f"headrace {component} needs HEADRACE_REDIS_URL, which is not set",
            hint="set it, or start everything with `headrace up`",
        )
    return settings.redis_url
