"""Checks that Headrace can use the Redis at a URL, once, before anything starts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import redis.exceptions

from headrace.errors import BrokerUnavailable, BrokerUnsupported
from headrace.redis.connection import connect
from headrace.redis.url import redact_url

OLDEST_VERSION: Final = (6, 2)


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """What a usable server reports about itself.

    Attributes:
        name: "redis" or "valkey".
        version: its own version, such as "7.0.15".
        aof: whether it writes an append-only file.
    """

    name: str
    version: str
    aof: bool
    maxmemory_policy: str

    def warnings(self) -> list[str]:
        """Return settings that can lose jobs, one sentence each."""
        found = []
        if self.maxmemory_policy not in ("noeviction", ""):
            found.append(
                f"{self.name} has maxmemory-policy {self.maxmemory_policy} and may drop queued "
                "jobs when its memory is full; set noeviction"
            )
        if not self.aof:
            found.append(
                f"{self.name} has appendonly off: jobs queued since its last snapshot are lost "
                "when it ends; set appendonly yes"
            )
        return found


def check_broker(url: str) -> BrokerInfo:
    """Connect to a URL and refuse a server that cannot work, with the reason in one line.

    Raises:
        BrokerUnavailable: nothing answers there, it refuses the password, or it is loading.
        BrokerUnsupported: Redis Cluster, a Sentinel, a replica, or older than Redis 6.2.
        ConfigError: the URL cannot be read.
    """
    where = f"Redis at {redact_url(url)}"
    # RESP2: a server older than Redis 6 answers RESP3's HELLO with an error without its version.
    client = connect(url, protocol=2, decode_responses=True)
    try:
        info = _info(client, where)
    finally:
        client.close()
    _refuse_unsupported(info, where)
    name = "valkey" if "valkey_version" in info else "redis"
    return BrokerInfo(
        name=name,
        version=str(info.get(f"{name}_version", "")),
        aof=bool(info.get("aof_enabled")),
        maxmemory_policy=str(info.get("maxmemory_policy", "")),
    )


def _info(client: Any, where: str) -> dict[str, Any]:
    try:
        info: dict[str, Any] = client.info()
    except redis.exceptions.AuthenticationError as error:
        raise BrokerUnavailable(
            f"{where} refuses the login: {_sentence(error)}",
            hint="correct user and password in HEADRACE_REDIS_URL",
        ) from error
    except redis.exceptions.BusyLoadingError as error:
        raise BrokerUnavailable(
            f"{where} is still loading its data", hint="wait, then start again"
        ) from error
    except (redis.exceptions.NoPermissionError, redis.exceptions.ResponseError) as error:
        raise BrokerUnsupported(
            f"{where} does not answer INFO as Redis does: {_sentence(error)}",
            hint="check what listens there, and that the user may run INFO",
        ) from error
    except (redis.exceptions.RedisError, OSError, UnicodeError) as error:
        raise BrokerUnavailable(
            f"{where} does not answer: {_sentence(error)}",
            hint="start it or correct HEADRACE_REDIS_URL; without it, `headrace up` starts its own",
        ) from error
    return info


def _refuse_unsupported(info: dict[str, Any], where: str) -> None:
    version = str(info.get("redis_version", ""))
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    mode = str(info.get("redis_mode") or info.get("server_mode") or "")
    needed = "Headrace needs Redis >= 6.2 or Valkey"
    reasons = [
        (not numbers, "does not report its version", needed),
        (
            mode == "cluster" or info.get("cluster_enabled"),
            "runs in Cluster mode, and Headrace's scripts need all keys on one server",
            "use a single server or Sentinel (sentinel://host:26379/0?master=name)",
        ),
        (
            mode == "sentinel",
            "is a Sentinel, not a Redis server",
            "write sentinel://host:26379/0?master=name",
        ),
        (numbers < OLDEST_VERSION, f"is version {version}", needed),
        (info.get("role") == "slave", "is a read-only replica", "give the URL of its primary"),
    ]
    for applies, reason, hint in reasons:
        if applies:
            raise BrokerUnsupported(f"{where} {reason}", hint=hint)


def _sentence(error: BaseException) -> str:
    """Return the error in one line of at most 200 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text.rstrip(".")[:200]
