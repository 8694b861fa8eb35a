"""What an error of Redis says: that it cannot serve for now, or that it refuses for good.

A server that is a replica by now, that loads its data or cannot write to its disk answers each
write with an error. Nothing was written then, and the same command passes later, or on another
connection, which finds the new primary.
"""

from __future__ import annotations

import logging
import re
from typing import Final

from redis.exceptions import (
    BusyLoadingError,
    MasterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
)
from redis.exceptions import (
    TimeoutError as RedisTimeoutError,
)

from headrace.errors import BrokerFull, BrokerUnavailable, HeadraceError
from headrace.redis.traffic import TRAFFIC

logger = logging.getLogger(__name__)

#: The connection broke, or nobody answers on it.
DISCONNECTED: Final = (RedisConnectionError, RedisTimeoutError, OSError)

#: The codes that say: this server is not the primary, or not any more.
NO_PRIMARY: Final = ("READONLY", "MASTERDOWN")
#: redis-py takes the code off the text of those that it has a class for.
_TAKEN_OFF: Final = {ReadOnlyError: "READONLY", MasterDownError: "MASTERDOWN"}
# Redis 6.2 puts the line of the script before the error that a command in it met.
_FOR_NOW: Final = re.compile(r"(?:^|-)(READONLY|MASTERDOWN|MISCONF|NOREPLICAS|BUSY)(?= )")


def is_outage(error: BaseException | None) -> bool:
    """Whether Redis is away, as far as this error says: what was asked may be asked again."""
    return isinstance(error, DISCONNECTED) or (error is not None and bool(outage_code(error)))


def outage_code(error: BaseException) -> str:
    """The code of an error that passes by itself, such as READONLY; "" for any other."""
    if not isinstance(error, ResponseError):
        return ""
    for kind, code in _TAKEN_OFF.items():
        if isinstance(error, kind):
            return code
    found = _FOR_NOW.search(str(error)[:512])
    return found[1] if found else ""


def translate(error: RedisError) -> HeadraceError:
    """A redis-py error as one of the tree's.

    The message is for clients: hosts and ports stay in the log.
    """
    TRAFFIC.errors += 1
    if isinstance(error, OutOfMemoryError) or "OOM" in str(error)[:64]:
        return BrokerFull(
            "Redis is at its maxmemory and takes no new jobs",
            hint="Wait until queued jobs have ended, or raise maxmemory; running jobs still end.",
        )
    logger.warning("Redis: %s: %s", type(error).__name__, error)
    hint = "Try again in a moment."
    if isinstance(error, BusyLoadingError):
        return BrokerUnavailable("Redis is loading its data", hint=hint)
    if code := outage_code(error):
        return BrokerUnavailable(f"Redis takes no writes at the moment ({code})", hint=hint)
    if isinstance(error, ResponseError):
        code = str(error).partition(" ")[0][:32]
        return BrokerUnavailable(
            f"Redis refused a command ({code})", hint="See the log of the API process."
        )
    return BrokerUnavailable("Redis does not answer", hint=hint)
