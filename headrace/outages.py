"""What an error of Redis says: that it cannot serve for now, or that it refuses for good.

A server that is a replica by now, that loads its data or cannot write to its disk answers each
write with an error. Nothing was written then, and the same command passes later, or on another
connection, which finds the new primary.
"""

from __future__ import annotations

import re
from typing import Final

from redis.exceptions import (
    ConnectionError as RedisConnectionError,
)
from redis.exceptions import (
    MasterDownError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import (
    TimeoutError as RedisTimeoutError,
)

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
