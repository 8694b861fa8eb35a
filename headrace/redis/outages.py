"""Which errors of Redis are outages that pass, which are refusals, and when to try again."""

from __future__ import annotations

import logging
import re
import threading
import time
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
from headrace.redis.fast_connection import TRAFFIC

logger = logging.getLogger(__name__)

#: The connection broke, or Redis does not answer on it.
DISCONNECTED: Final = (RedisConnectionError, RedisTimeoutError, OSError)

#: The codes of a server that is not the primary, or not any more.
NO_PRIMARY: Final = ("READONLY", "MASTERDOWN")
#: Seconds between the first two lines of one kind; doubled after each line, up to the maximum.
LINE_EVERY_S: Final = 1.0
LINE_EVERY_MAX_S: Final = 60.0
#: Seconds without any error of a kind after which its next line is a first one.
LINE_AGAIN_S: Final = 10.0
#: redis-py removes the code from errors for which it has a class.
_TAKEN_OFF: Final = {ReadOnlyError: "READONLY", MasterDownError: "MASTERDOWN"}
# Redis 6.2 puts the line of the script before the error of a command in it.
_FOR_NOW: Final = re.compile(r"(?:^|-)(READONLY|MASTERDOWN|MISCONF|NOREPLICAS|BUSY)(?= )")


def is_outage(error: BaseException | None) -> bool:
    """Return whether this error is an outage, after which the command may be sent again."""
    return isinstance(error, DISCONNECTED) or (error is not None and bool(outage_code(error)))


def outage_code(error: BaseException) -> str:
    """Return the code of an error that passes by itself, such as READONLY; else ""."""
    if not isinstance(error, ResponseError):
        return ""
    for kind, code in _TAKEN_OFF.items():
        if isinstance(error, kind):
            return code
    found = _FOR_NOW.search(str(error)[:512])
    return found[1] if found else ""


class LineLimit:
    """Allows ever fewer log lines of one kind: in an outage each request has the same one."""

    def __init__(self) -> None:
        # By kind, when its last error was and its last line, how many errors have had no line
        # since, and the seconds from that line to the next one.
        self._last: dict[str, tuple[float, float, int, float]] = {}
        self._lock = threading.Lock()

    def allows(self, kind: str) -> str | None:
        """Return the end of the line: how many were left out before it; None: leave it out."""
        now = time.monotonic()
        never = float("-inf")
        with self._lock:
            error_at, line_at, missing, gap_s = self._last.get(kind, (never, never, 0, 0.0))
            if now - error_at > LINE_AGAIN_S:
                gap_s = 0.0
            if now - line_at < gap_s:
                self._last[kind] = now, line_at, missing + 1, gap_s
                return None
            gap_s = min(max(LINE_EVERY_S, 2 * gap_s), LINE_EVERY_MAX_S)
            self._last[kind] = now, now, 0, gap_s
        return f" (and {missing} more)" if missing else ""


class OutageLog:
    """Logs that Redis does not answer, once for each outage; any thread may use it.

    Args:
        what: what goes on when Redis is back, for the line.
    """

    def __init__(self, log: logging.Logger, what: str) -> None:
        self._log = log
        self._what = what
        self._lasts = False
        self._lock = threading.Lock()

    def began(self, reason: str) -> None:
        """Log the outage, unless that is done."""
        with self._lock:
            before, self._lasts = self._lasts, True
        if not before:
            text = "Redis is unreachable; %s go on when it is back"
            self._log.warning(text, self._what, extra={"reason": reason})

    def ended(self) -> None:
        """Log that Redis is back, if it was not there."""
        with self._lock:
            before, self._lasts = self._lasts, False
        if before:
            self._log.info("Redis is back; %s go on", self._what)


OUTAGE_LINES: Final = LineLimit()


def translate(error: RedisError) -> HeadraceError:
    """Return the error of `headrace.errors` for one of redis-py, whose hosts are only logged."""
    TRAFFIC.errors += 1
    if isinstance(error, OutOfMemoryError) or "OOM" in str(error)[:64]:
        return BrokerFull(
            "Redis is at its maxmemory and takes no new jobs",
            hint="Wait until queued jobs have ended, or raise maxmemory; running jobs still end.",
        )
    kind = type(error).__name__
    if (more := OUTAGE_LINES.allows(kind)) is not None:
        logger.warning("Redis command failed: %s: %s%s", kind, error, more)
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


MIN_S: Final = 0.05
MAX_S: Final = 2.0


class Backoff:
    """Delays in seconds that double from MIN_S to `max_s`."""

    def __init__(self, max_s: float = MAX_S) -> None:
        self._max_s = max_s
        self.reset()

    def reset(self) -> None:
        """Start again at MIN_S, after a success."""
        self._next_s = MIN_S

    def next_s(self) -> float:
        """Return the delay before the next attempt."""
        delay_s = self._next_s
        self._next_s = max(MIN_S, min(delay_s * 2, self._max_s))
        return delay_s
