"""Checks of Redis itself: reachable, supported, and with the rights that Headrace needs."""

from __future__ import annotations

import re
import secrets
import socket
from typing import Any, Final

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import MasterNotFoundError

from headrace.cli.doctor.check import CheckResult, CheckSkipped, fail, named, ok, warn
from headrace.cli.doctor.deployment import TIMEOUT_S, Deployment, error_line
from headrace.cli.shared.exit_codes import ExitCode
from headrace.errors import ConfigError
from headrace.redis import keys
from headrace.redis.compatibility import OLDEST_VERSION
from headrace.redis.connection import connect, redact_url
from headrace.redis.scripts import script

_START: Final = "start it, or correct HEADRACE_REDIS_URL"
#: Text of an error and its hint; the first match counts.
_HINTS: Final = (
    ("CERTIFICATE_VERIFY_FAILED", "set the CA of its certificate: ?ssl_ca_certs=FILE in the URL"),
    (
        "WRONG_VERSION_NUMBER",
        "it does not use TLS on this port: write redis:// instead of rediss://",
    ),
    (
        "record layer failure",
        "it does not use TLS on this port: write redis:// instead of rediss://",
    ),
    ("UNEXPECTED_EOF", "it does not use TLS on this port: write redis:// instead of rediss://"),
    ("max number of clients", "raise its maxclients, or find the clients with CLIENT LIST"),
    ("Connection closed by server", "if it uses TLS on this port, write rediss://"),
    ("Connection reset by peer", "if it uses TLS on this port, write rediss://"),
    ("Connection refused", f"nothing listens there: {_START}"),
    ("protected mode", "without a password it accepts only local clients: set a password"),
    (
        "DB index is out of range",
        "it has no such database: correct the number at the end of the URL",
    ),
    ("Protocol error", "the server there is not Redis: correct host and port in the URL"),
    ("No such file", "no such socket: start Redis, or correct the path"),
)
#: Key families and channels that Headrace uses.
_FAMILIES: Final = (
    "headrace.{0}", "headrace:{0}", "hr:{0}", "celery-task-meta-{0}", "_kombu.{0}",
    "{0}.celery.pidbox",
)  # fmt: skip
_CHANNELS: Final = ("hr:{0}", "celery-task-meta-{0}", "/0.celeryev/{0}")


def reach(deployment: Deployment) -> CheckResult:
    """`redis`: Redis answers and accepts the credentials."""
    try:
        client = deployment.reach()
    except CheckSkipped as error:
        # A warning, because everything depends on Redis and `--strict` must notice it.
        return warn(str(error), "set --redis-url or HEADRACE_REDIS_URL, or run `headrace up`")
    except ConfigError as error:
        return fail(error.message, error.hint, ExitCode.USAGE)
    except (RedisError, OSError) as error:
        where = redact_url(deployment.redis_url)
        return fail(
            f"{where}: {error_line(error)}",
            _hint_for(error, tls=where.startswith("rediss")),
            ExitCode.UNREACHABLE,
        )
    name = "without TLS"
    kwargs = client.connection_pool.connection_kwargs
    if deployment.redis_url.startswith("rediss://"):
        name = "over TLS"
    elif "path" in kwargs:
        name = "over its socket"
    return ok(f"{redact_url(deployment.redis_url)} answers, {name}")


def _hint_for(error: BaseException, *, tls: bool) -> str:
    text = f"{error} {error.__cause__ or ''}"
    found = next((hint for words, hint in _HINTS if words in text), None)
    if found is not None:
        return found
    if isinstance(error, AuthenticationError) or "NOAUTH" in text:
        return "correct user and password in the URL: redis://user:password@host:6379/0"
    if isinstance(error, BusyLoadingError):
        return "it is loading its data: wait, then run this again"
    if isinstance(error, MasterNotFoundError):
        return (
            "the Sentinels do not know this master, or do not answer: correct ?master= or the hosts"
        )
    if isinstance(_root(error), socket.gaierror):
        return "its name cannot be resolved: correct the host in HEADRACE_REDIS_URL, or DNS"
    if isinstance(error, (RedisTimeoutError, TimeoutError)):
        other = "does not use TLS (redis://)" if tls else "uses TLS (rediss://)"
        return (
            f"no answer within {TIMEOUT_S:g} s: check for a firewall, a server that hangs, or "
            f"a server that {other}"
        )
    return _START


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__ or error
    return error


def version(deployment: Deployment) -> CheckResult:
    """`redis-version`: Redis is 6.2 or newer."""
    info = deployment.info
    name = "Valkey" if "valkey_version" in info else "Redis"
    installed = str(info.get("valkey_version") or info.get("redis_version") or "")
    compatible = str(info.get("redis_version", ""))
    numbers = tuple(int(part) for part in re.findall(r"\d+", compatible)[:2])
    if numbers < OLDEST_VERSION:
        return fail(
            f"{name} {installed or 'of unknown version'}", "Headrace needs Redis >= 6.2 or Valkey"
        )
    return ok(f"{name} {installed}")


def mode(deployment: Deployment) -> CheckResult:
    """`redis-mode`: Redis is a single server that accepts writes."""
    info = deployment.info
    running = str(info.get("redis_mode") or info.get("server_mode") or "standalone")
    if running == "cluster" or info.get("cluster_enabled"):
        return fail(
            "it runs in Cluster mode, but scripts need all keys on one server",
            "use a single server, or Sentinels: sentinel://host:26379/0?master=name",
        )
    if running == "sentinel":
        return fail("it is a Sentinel, not a Redis", "write sentinel://host:26379/0?master=name")
    if info.get("role") == "slave":
        return fail("it is a replica and accepts no writes", "use the URL of its primary")
    return ok(f"{running}, {info.get('role', 'master')}")


def scripting(deployment: Deployment) -> CheckResult:
    """`redis-scripts`: Headrace's Lua scripts run."""
    try:
        deployment.redis.script_load(script("queues/depth").source)
        deployment.redis.evalsha(script("queues/depth").sha, 0, keys.queue_name("doctor"))
    except ResponseError as error:
        return fail(
            f"it refuses Lua scripts: {error_line(error)}",
            "allow @scripting for the user; Headrace needs EVALSHA and SCRIPT",
        )
    return ok("Lua scripts run")


def tracking(deployment: Deployment) -> CheckResult:
    """`redis-tracking`: CLIENT TRACKING notifies workers of new jobs."""
    _ = deployment.redis  # raises CheckSkipped if Redis is not reachable
    with connect(deployment.redis_url, **deployment.timeouts) as client:
        connection: Any = client.connection_pool.get_connection()
        try:
            connection.send_command("CLIENT", "TRACKING", "ON")
            connection.read_response()
        except RedisError as error:
            return warn(
                f"it refuses CLIENT TRACKING: {error_line(error)}",
                "workers poll their queues every 50 ms instead; allow client|tracking for the "
                "user, and connect without a proxy that does not support it",
            )
        finally:
            client.connection_pool.disconnect()
    return ok("CLIENT TRACKING notifies workers")


def rights(deployment: Deployment) -> CheckResult:
    """`redis-rights`: the user has all rights that Headrace needs. Changes nothing."""
    client, word = deployment.redis, f"doctor-{secrets.token_hex(6)}"
    refused = [name for name, command in _probes(word) if _refuses(client, command)]
    if refused:
        return fail(
            f"this user may not: {named(refused)}",
            "grant the rights that docs/security.md lists (ACL SETUSER)",
        )
    return ok("this user has all rights that Headrace needs")


def _probes(word: str) -> list[tuple[str, tuple[Any, ...]]]:
    """Return commands and what each one tests. They change nothing: no such keys exist."""
    probes: list[tuple[str, tuple[Any, ...]]] = []
    for family in _FAMILIES:
        key, shown = family.format(word), family.format("*")
        probes += [
            (f"write to {shown}", ("LPUSHX", key, "x")),
            (f"read {shown}", ("EXISTS", key)),
        ]
    probes += [(f"publish on {c.format('*')}", ("PUBLISH", c.format(word), "")) for c in _CHANNELS]
    key = f"hr:{word}"
    plain = (
        ("HDEL", key, "x"), ("HGETALL", key), ("ZREM", key, "x"), ("ZRANGE", key, 0, -1),
        ("SREM", key, "x"), ("SET", key, "x", "XX"), ("GET", key), ("DEL", key),
        ("EXPIRE", key, 1), ("PTTL", key), ("LMOVE", key, key, "LEFT", "RIGHT"),
        ("INFO", "server"), ("TIME",), ("PUBSUB", "CHANNELS", key), ("PUBSUB", "NUMSUB", key),
    )  # fmt: skip
    return [*probes, *((command[0], command) for command in plain)]


def _refuses(client: Any, command: tuple[Any, ...]) -> bool:
    try:
        client.execute_command(*command)
    except NoPermissionError:
        return True
    except ResponseError:
        return False  # for example a full server: another check reports that
    return False


def replication(deployment: Deployment) -> CheckResult:
    """`redis-replicas`: the replicas keep up."""
    info = deployment.info
    count = int(info.get("connected_slaves", 0))
    rows = [info.get(f"slave{i}") for i in range(count)]
    lagging = [row for row in rows if isinstance(row, dict) and row.get("state") != "online"]
    wanted = int(deployment.configured("min-replicas-to-write"))
    good = int(info.get("min_slaves_good_slaves", count))
    if wanted > good:
        return fail(
            f"it accepts no writes: min-replicas-to-write is {wanted}, but {good} replicas keep up",
            "repair the replicas, or lower min-replicas-to-write",
        )
    if lagging:
        return warn(f"{len(lagging)} of {count} replicas do not keep up", "see their logs")
    if not count:
        return ok("no replicas, and none are required")
    return ok(f"{count} replicas keep up")


def connections(deployment: Deployment) -> CheckResult:
    """`redis-clients`: Redis can accept more connections."""
    info = deployment.info
    now = int(info.get("connected_clients", 0))
    most = int(info.get("maxclients") or deployment.configured("maxclients"))
    refused = int(info.get("rejected_connections", 0))
    hint = "raise maxclients (and the server's ulimit -n), or find the clients with CLIENT LIST"
    if now >= 0.9 * most:
        return warn(f"{now} of at most {most} connections", hint)
    if refused:
        return warn(f"{refused} connections were refused since its start", hint)
    return ok(f"{now} of at most {most} connections")
