"""Answers of Redis that Celery and kombu are to take for a lost connection, and try again.

A server that becomes a replica ends kombu's BRPOP by UNBLOCKED and answers what comes next by
READONLY; a full one refuses what kombu writes as it connects by OOM; one that cannot keep what it
is told, or runs somebody's script for too long, answers MISCONF, NOREPLICAS or BUSY. Celery takes
each for a mistake of its own and ends the worker, just when it is needed: to go on with the new
primary, to run what fills the memory, and to finish and settle what it holds.
"""

from __future__ import annotations

from redis._parsers.base import BaseParser
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError


class Demoted(ReadOnlyError, RedisConnectionError):
    """The server takes no writes, as it is a replica."""


class Full(OutOfMemoryError, RedisConnectionError):
    """The server is at its maxmemory."""


class Refused(ResponseError, RedisConnectionError):
    """The server takes no writes for now. The code, which redis-py takes off, is in the text."""

    def __init__(self, text: str = "", status_code: str | None = None) -> None:
        super().__init__(f"{status_code} {text}", status_code=status_code)


def pass_by() -> None:
    """From now on, in this process, redis-py raises connection errors for these answers."""
    BaseParser.EXCEPTION_CLASSES.update(READONLY=Demoted, UNBLOCKED=Demoted, OOM=Full)
    BaseParser.EXCEPTION_CLASSES.update(MISCONF=Refused, NOREPLICAS=Refused, BUSY=Refused)
