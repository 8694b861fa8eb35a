"""`headrace api`, `worker`, `background`, `flower`: one component on a given Redis.

Each raises a ConfigError if HEADRACE_REDIS_URL is not set, the models file is wrong or its port is
taken; a BrokerError if Redis cannot be used; and a HeadraceError if its processes cannot start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NoReturn

from headrace.config.model.catalog import load_catalog
from headrace.config.settings import Settings
from headrace.models.catalog import hosted, load_models
from headrace.observability import logs
from headrace.redis.compatibility import BrokerInfo, check_broker
from headrace.redis.url import redact_url
from headrace.server import components, state_dir
from headrace.server.gpus import worker_devices
from headrace.server.health.liveness import BACKGROUND, node_name
from headrace.server.host_workers import IdleWatch
from headrace.server.packages import require_extras
from headrace.server.ports import close_all, http_url, require_free
from headrace.server.supervisor.console import OWN_NAME, console_for
from headrace.server.supervisor.supervisor import ChildSpec, Supervisor

#: Prints a line for the user.
Report = Callable[[str], None]


def run_workers(
    settings: Settings, workers: int | None, environ: Mapping[str, str], idle_s: float | None = None
) -> None:
    """Run `headrace worker`: a Celery worker per device, until `idle_s` without work if set."""
    require_extras("worker", "worker")
    url = _prepare(settings, "worker")
    devices = worker_devices(environ, workers)
    variables = components.environment(settings, url, environ)
    make = partial(components.worker_children, devices, settings, variables)
    ready = f"{len(devices)} workers on {redact_url(url)}"
    nodes = [node_name(device) for device in devices]
    idle = None if idle_s is None else IdleWatch(url, nodes, idle_s)
    names = [device.name for device in devices]
    _supervise(names, settings, check_broker(url), make, ready, idle=idle)


def run_background(settings: Settings, environ: Mapping[str, str]) -> None:
    """Run `headrace background`: a supervised background worker."""
    require_extras("background", "worker")
    url = _prepare(settings, "background")
    variables = components.environment(settings, url, environ)

    def make(report: Report) -> list[ChildSpec]:
        return [components.background_child(settings, variables, report)]

    ready = f"background worker on {redact_url(url)}"
    _supervise([BACKGROUND], settings, check_broker(url), make, ready)


def run_api(settings: Settings, environ: Mapping[str, str]) -> None:
    """Run `headrace api`. This process becomes the only API process, or supervises several."""
    require_extras("api", "api")
    url = _prepare(settings, "api")
    listeners = components.listen_for_api(settings)
    try:
        broker = check_broker(url)
        variables = components.environment(settings, url, environ)
        if settings.api_processes == 1:
            for listener in listeners:
                listener.set_inheritable(True)
            command = components.api_command(listeners)
            os.execve(command[0], command, variables)  # noqa: S606
        children = components.api_children(settings, variables, listeners)
        names = [child.name for child in children]
        address = http_url(settings.host, settings.port, tls=settings.tls)
        ready = f"{len(children)} API processes on {address}"
        on_stop = partial(close_all, listeners)
        _supervise(names, settings, broker, lambda _: children, ready, on_stop)
    finally:
        close_all(listeners)


def run_flower(
    settings: Settings, published_at: str | None, environ: Mapping[str, str]
) -> NoReturn:
    """Run `headrace flower`: become Flower.

    Args:
        settings: its address and port, and the folder of its history.
        published_at: the address at which a container publishes its port; None outside containers.
        environ: its environment; FLOWER_BASIC_AUTH is the password.

    Raises:
        ConfigError: also if other machines could reach it without a password, or its history cannot
            be written.
    """
    require_extras("flower", "worker")
    url = _prepare(settings, "flower")
    change = "publish it on 127.0.0.1 only"
    components.check_flower(published_at or settings.flower_host, environ, change=change)
    change = "choose another with HEADRACE_FLOWER_PORT"
    require_free("Flower", settings.flower_host, settings.flower_port, change=change)
    check_broker(url)
    state_dir.make(settings.state_dir, change="choose another with HEADRACE_STATE_DIR")
    child = components.flower_child(settings, components.environment(settings, url, environ))
    os.execve(child.command[0], list(child.command), child.environment())  # noqa: S606


def _supervise(
    names: Sequence[str],
    settings: Settings,
    broker: BrokerInfo,
    make: Callable[[Report], list[ChildSpec]],
    ready: str,
    on_stop: Callable[[], None] = lambda: None,
    idle: IdleWatch | None = None,
) -> None:
    """Run the children of these names until a signal or idleness; report when all are ready."""
    as_json = components.log_format(settings) == logs.JSON
    files = components.log_files(settings)
    console = console_for([OWN_NAME, *names], as_json=as_json, files=files)
    report = partial(console.print, OWN_NAME)
    for warning in broker.warnings():
        report(warning)

    def is_done() -> bool:
        if idle is None or not idle():
            return False
        report(f"no work for {idle.idle_s:g} s: stopping")
        return True

    on_ready = partial(report, ready)
    Supervisor(make(report), console, on_ready=on_ready, on_stop=on_stop, is_done=is_done).run()


def _prepare(settings: Settings, component: str) -> str:
    """Return the URL of Redis, after the models file was checked."""
    url = settings.needed_redis_url(f"headrace {component}")
    if component == "worker":
        load_models(settings, needed=hosted(settings))
    else:  # a source that cannot be read here is no reason not to start
        load_catalog(settings.models_file, timeout_s=settings.timeout_s)
    return url
