"""Treats some error replies of Redis as lost connections, so that Celery and kombu retry.

A server that becomes a replica ends kombu's BRPOP with UNBLOCKED and answers the next command with
READONLY. A full server refuses what kombu writes on connecting with OOM. A server that cannot
persist, lacks replicas or runs a slow script answers MISCONF, NOREPLICAS or BUSY. Celery takes each
of them for a bug and ends the worker. The worker must keep running, to continue with the new
primary and to settle what it holds.

`BaseParser.EXCEPTION_CLASSES` is private to redis-py; read from redis-py 8.1.0. A test fails when
it goes (`tests/unit/workers/celery/test_celery_internals.py`).
"""

from __future__ import annotations

from redis._parsers.base import BaseParser
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError


class ServerDemoted(ReadOnlyError, RedisConnectionError):
    """The server is a replica and takes no writes."""


class ServerFull(OutOfMemoryError, RedisConnectionError):
    """The server is at its maxmemory."""


class ServerUnavailable(ResponseError, RedisConnectionError):
    """The server takes no writes for now. The text has the code, which redis-py removes."""

    def __init__(self, text: str = "", status_code: str | None = None) -> None:
        super().__init__(f"{status_code} {text}", status_code=status_code)


def treat_as_lost_connections() -> None:
    """Have redis-py raise connection errors for these replies, in this process."""
    BaseParser.EXCEPTION_CLASSES.update(
        READONLY=ServerDemoted,
        UNBLOCKED=ServerDemoted,
        OOM=ServerFull,
        MISCONF=ServerUnavailable,
        NOREPLICAS=ServerUnavailable,
        BUSY=ServerUnavailable,
    )
