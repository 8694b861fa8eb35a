"""Answers of Redis that Celery and kombu are to take for a lost connection, and try again.

A server that becomes a replica ends kombu's BRPOP by UNBLOCKED and answers what comes next by
READONLY; a full one refuses what kombu writes as it connects by OOM. Celery takes each for a
mistake of its own and ends the worker, just when it is needed: to go on with the new primary, and
to run what fills the memory.
"""

from __future__ import annotations

from redis._parsers.base import BaseParser
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ReadOnlyError


class Demoted(ReadOnlyError, RedisConnectionError):
    """The server takes no writes, as it is a replica."""


class Full(OutOfMemoryError, RedisConnectionError):
    """The server is at its maxmemory."""


def pass_by() -> None:
    """From now on, in this process, redis-py raises connection errors for these answers."""
    BaseParser.EXCEPTION_CLASSES.update(READONLY=Demoted, UNBLOCKED=Demoted, OOM=Full)
