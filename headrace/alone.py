"""`headrace api` and `headrace worker`: one part alone, on a Redis that is named."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NoReturn

from headrace import parts
from headrace.broker_check import check_broker
from headrace.catalog import load_catalog
from headrace.connections import redact_url
from headrace.console import console_for
from headrace.devices import worker_devices
from headrace.errors import ConfigError
from headrace.ports import require_free
from headrace.settings import Settings
from headrace.supervisor import OWN_NAME, Supervisor


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
    console = console_for([OWN_NAME, *(device.name for device in devices)])

    def say(text: str) -> None:
        console.say(OWN_NAME, text)

    for warning in check_broker(url).warnings():
        say(warning)
    variables = parts.environment(settings, url, environ)
    children = [parts.worker_child(device, settings, variables, say) for device in devices]
    Supervisor(
        children, console, on_ready=lambda: say(f"{len(children)} workers on {redact_url(url)}")
    ).run()


def run_api(settings: Settings, environ: Mapping[str, str]) -> NoReturn:
    """`headrace api`: become the API process on the Redis that is named.

    Raises:
        ConfigError: no Redis is named, the models file is wrong, or the port is taken.
        BrokerError: that Redis cannot be used.
    """
    url = _named_redis(settings, "api")
    load_catalog(settings.models_file, timeout_s=settings.timeout_s)
    change = "choose another with --port or HEADRACE_PORT"
    require_free("API", settings.host, settings.port, change=change)
    check_broker(url)
    command = [*parts.PYTHON, "api"]
    os.execve(command[0], command, parts.environment(settings, url, environ))  # noqa: S606


def _named_redis(settings: Settings, part: str) -> str:
    if settings.redis_url is None:
        raise ConfigError(
            f"headrace {part} needs a Redis, and none is named",
            hint="set HEADRACE_REDIS_URL, or start everything with `headrace up`",
        )
    return settings.redis_url
