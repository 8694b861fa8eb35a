"""What the Celery apps of a deployment have in common."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from celery.signals import setup_logging
from celery.worker.control import Panel

from headrace.config.settings import Settings
from headrace.observability import logs
from headrace.redis.celery_url import CeleryUrl
from headrace.redis.connection import SOCKET_TIMEOUT_S

#: How often kombu looks whether its connections live.
HEALTH_CHECK_S: Final = 5


def common_conf(target: CeleryUrl, queue: str, transport: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a worker that lives as long as its deployment.

    Args:
        target: the deployment's Redis.
        queue: its own queue; kombu's records are named after it.
        transport: more options of its transport.
    """
    return {
        "accept_content": ["json"],
        # For ever: what is loaded stays loaded, and our own connections try on as well.
        "broker_connection_max_retries": None,
        "broker_connection_retry_on_startup": True,
        # kombu's own record of unacknowledged messages, apart from other applications': every
        # client of a database applies its visibility timeout to all that stands under the common
        # names.
        "broker_transport_options": {
            "unacked_key": f"{queue}.unacked",
            "unacked_index_key": f"{queue}.unacked_index",
            "unacked_mutex_key": f"{queue}.unacked_mutex",
            # On a connection that is dead without a word Celery would wait for ever.
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
        # `-E` asks for them, as does Flower by its enable_events.
        "worker_send_task_events": False,
    }


def refuse(commands: Mapping[str, str]) -> None:
    """Let this process' worker answer commands of remote control by errors.

    Args:
        commands: the commands that do not work here, with what to do instead.
    """
    Panel.data.update({name: _refusal(why) for name, why in commands.items()})


def _refusal(why: str) -> Callable[..., dict[str, str]]:
    return lambda state, **_: {"error": why}


def log_as(part: str, settings: Settings) -> None:
    """Have this process log as all others do when Celery comes to set up its logs.

    Celery's own level is followed where it is the lower one, as by `-l debug`.
    """

    def set_up(loglevel: int | None = None, **_: Any) -> None:
        own = logs.level_number(settings.log_level)
        level = own if loglevel is None else min(own, loglevel)
        logs.configure(
            settings.log_format, level, part, environ=os.environ, redis_url=settings.redis_url
        )

    setup_logging.connect(set_up, weak=False, dispatch_uid="headrace.observability.logs")
