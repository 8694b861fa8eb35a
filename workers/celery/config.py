"""Configuration that the Celery apps of a deployment share."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Protocol

from celery import Celery
from celery.bootsteps import StartStopStep
from celery.signals import setup_logging
from typing_extensions import override

from headrace.config.model.catalog import Catalog, load_catalog
from headrace.config.settings import Settings, load_settings
from headrace.models.catalog import hosted, load_models
from headrace.observability import logs
from headrace.redis.connection import SOCKET_TIMEOUT_S
from headrace.redis.url import CeleryUrl
from workers.celery.celery_internals import set_commands
from workers.threads import run_critical

#: How often kombu checks its connections, in seconds.
HEALTH_CHECK_S: Final = 5


def deployment(
    *, sources: Literal["required", "optional", "unread"] = "required"
) -> tuple[Settings, Catalog]:
    """Return the settings, and the models and pipelines, that the environment describes.

    Args:
        sources: whether the sources of the models that fit this worker's labels must be readable,
            all sources may be, or none is needed.

    Raises:
        ConfigError: a setting, the models file or a source is invalid.
    """
    settings = load_settings(None, os.environ, {})
    if sources == "unread":
        return settings, load_catalog(settings.models_file, timeout_s=settings.timeout_s)
    if sources == "optional":
        return settings, load_models(settings, needed=lambda _: False)
    return settings, load_models(settings, needed=hosted(settings))


def built_on_demand(module: str, build: Callable[[], Celery]) -> Callable[[str], Celery]:
    """Return the `__getattr__` of a module whose `app` is built when Celery looks for it."""

    def find(name: str) -> Celery:
        if name == "app":
            return build()
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return find


def common_conf(target: CeleryUrl, queue: str, transport: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a lasting worker; kombu's keys are named after `queue`."""
    return {
        "accept_content": ["json"],
        # Retry for ever, as our own connections do: the models stay loaded meanwhile.
        "broker_connection_max_retries": None,
        "broker_connection_retry_on_startup": True,
        # Own keys for kombu's unacknowledged messages: every client of a database applies its
        # visibility timeout to all messages under the default names.
        "broker_transport_options": {
            "unacked_key": f"{queue}.unacked",
            "unacked_index_key": f"{queue}.unacked_index",
            "unacked_mutex_key": f"{queue}.unacked_mutex",
            # Without a timeout Celery would wait for ever on a half-open connection.
            "socket_timeout": SOCKET_TIMEOUT_S,
            "socket_connect_timeout": SOCKET_TIMEOUT_S,
            "health_check_interval": HEALTH_CHECK_S,
            **transport,
            **target.transport_options,
        },
        "enable_utc": True,
        "result_serializer": "json",
        "task_serializer": "json",
        "worker_consumer": "workers.celery.celery_internals:PatientConsumer",
        "worker_enable_prefetch_count_reduction": False,
        "worker_enable_remote_control": True,
        "worker_hijack_root_logger": True,
        # `-E` enables them, and so does Flower by its enable_events.
        "worker_send_task_events": False,
    }


class Stoppable(Protocol):
    """The body of a thread: `run` returns soon after `stop`, which any thread may call."""

    def run(self) -> None:
        """Work until it is stopped."""

    def stop(self) -> None:
        """Stop."""


class ThreadStep(StartStopStep):
    """Runs something in a thread next to Celery's main loop; an error there ends the process.

    Attributes:
        thread: the thread's name, and its owner's name in the log.
        stop_max_s: how long a stop waits for the thread; None for as long as it takes.
    """

    requires = ("celery.worker.components:Pool",)
    thread: tuple[str, str]
    stop_max_s: float | None = None
    _body: Stoppable | None = None

    def build(self, parent: Any) -> Stoppable:
        """Return what runs in the thread; `parent` is Celery's worker."""
        raise NotImplementedError

    @override
    def start(self, parent: Any) -> None:
        self._body = self.build(parent)
        name, owner = self.thread
        self._thread = threading.Thread(
            target=run_critical, args=(self._body.run, owner), name=name, daemon=True
        )
        self._thread.start()

    @override
    def stop(self, parent: Any) -> None:
        if self._body is not None:
            self._body.stop()
            self._thread.join(self.stop_max_s)

    @override
    def terminate(self, parent: Any) -> None:
        self.stop(parent)


def deployed_step(step: type[StartStopStep], **attributes: Any) -> type[StartStopStep]:
    """Return the bootstep's class with these attributes, as Celery makes its instances."""
    members = {"name": step.name, "__module__": step.__module__, **attributes}
    metaclass: Any = type(step)
    made: type[StartStopStep] = metaclass(step.__name__, (step,), members)
    return made


def refuse(commands: Mapping[str, str]) -> None:
    """Answer these remote-control commands with an error that names what to do instead."""
    set_commands({name: _refusal(why) for name, why in commands.items()})


def _refusal(why: str) -> Callable[..., dict[str, str]]:
    return lambda state, **_: {"error": why}


def log_as(component: str, settings: Settings) -> None:
    """Set up our logs with Celery's, at the lower level; `component` is the `part` of each line."""

    def set_up(loglevel: int | None = None, **_: Any) -> None:
        own = logs.level_number(settings.log_level)
        level = own if loglevel is None else min(own, loglevel)
        logs.configure(
            settings.log_format, level, component, environ=os.environ, redis_url=settings.redis_url
        )

    setup_logging.connect(set_up, weak=False, dispatch_uid="headrace.observability.logs")
