"""Configuration that the Celery apps of a deployment share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partialmethod
from typing import Any, Final

from celery.bootsteps import StartStopStep
from celery.signals import setup_logging

from headrace.config.settings import Settings
from headrace.observability import logs
from headrace.redis.celery_url import CeleryUrl
from headrace.redis.connection import SOCKET_TIMEOUT_S
from workers.celery.celery_internals import set_commands

#: How often kombu checks its connections, in seconds.
HEALTH_CHECK_S: Final = 5


def common_conf(target: CeleryUrl, queue: str, transport: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a worker that runs as long as its deployment.

    Args:
        target: the deployment's Redis.
        queue: the worker's own queue; kombu's keys are named after it.
        transport: more options of its transport.
    """
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
        "worker_enable_prefetch_count_reduction": False,
        "worker_enable_remote_control": True,
        "worker_hijack_root_logger": True,
        # `-E` enables them, and so does Flower by its enable_events.
        "worker_send_task_events": False,
    }


def deployed_step(step: type[StartStopStep], **deployment: Any) -> type[StartStopStep]:
    """Return the bootstep's class with keyword arguments filled in, as Celery instantiates it."""
    filled_in = partialmethod(step.__init__, **deployment)
    members = {"name": step.name, "__module__": step.__module__, "__init__": filled_in}
    metaclass: Any = type(step)
    made: type[StartStopStep] = metaclass(step.__name__, (step,), members)
    return made


def refuse(commands: Mapping[str, str]) -> None:
    """Answer these remote-control commands with an error.

    Args:
        commands: what to do instead, by the name of the command.
    """
    set_commands({name: _refusal(why) for name, why in commands.items()})


def _refusal(why: str) -> Callable[..., dict[str, str]]:
    return lambda state, **_: {"error": why}


def log_as(component: str, settings: Settings) -> None:
    """Set up our logs when Celery sets up its own.

    The lower of our level and Celery's (`-l debug`) applies.

    Args:
        component: the `part` field of each line.
        settings: the format and the level.
    """

    def set_up(loglevel: int | None = None, **_: Any) -> None:
        own = logs.level_number(settings.log_level)
        level = own if loglevel is None else min(own, loglevel)
        logs.configure(
            settings.log_format, level, component, environ=os.environ, redis_url=settings.redis_url
        )

    setup_logging.connect(set_up, weak=False, dispatch_uid="headrace.observability.logs")
