"""Redis itself: can it be reached, is it one that we can use, and does it let us do our work?"""

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
from headrace.cli.doctor.deployment import TIMEOUT_S, Deployment, sentence
from headrace.cli.shared.exit_codes import ExitCode
from headrace.errors import ConfigError
from headrace.redis import keys
from headrace.redis.compatibility import OLDEST_VERSION
from headrace.redis.connection import connect, redact_url
from headrace.redis.scripts import script

_START: Final = "start it, or correct HEADRACE_REDIS_URL"
#: What an error's text says, and what to do then; the first that fits counts.
_HINTS: Final = (
    ("CERTIFICATE_VERIFY_FAILED", "name the CA of its certificate: ?ssl_ca_certs=FILE in the URL"),
    ("WRONG_VERSION_NUMBER", "it speaks no TLS on this port: write redis:// in place of rediss://"),
    ("record layer failure", "it speaks no TLS on this port: write redis:// in place of rediss://"),
    ("UNEXPECTED_EOF", "it speaks no TLS on this port: write redis:// in place of rediss://"),
    ("max number of clients", "raise its maxclients, or look who holds its connections"),
    ("Connection closed by server", "if it wants TLS on this port, write rediss://"),
    ("Connection reset by peer", "if it wants TLS on this port, write rediss://"),
    ("Connection refused", f"nothing listens there: {_START}"),
    ("protected mode", "it takes strangers from its own host alone: give it a password"),
    ("DB index is out of range", "it has no such database: correct the number that ends the URL"),
    ("Protocol error", "what answers there is no Redis: correct host and port in the URL"),
    ("No such file", "there is no such socket: start it, or correct the path"),
)
#: A command that changes nothing, for each thing that some part of Headrace does, by key family.
_FAMILIES: Final = (
    "headrace.{0}", "headrace:{0}", "hr:{0}", "celery-task-meta-{0}", "_kombu.{0}",
    "{0}.celery.pidbox",
)  # fmt: skip
_CHANNELS: Final = ("hr:{0}", "celery-task-meta-{0}", "/0.celeryev/{0}")


def reach(site: Deployment) -> CheckResult:
    """`redis`: it is there, and lets us in."""
    try:
        client = site.reach()
    except CheckSkipped as error:
        # Not skipped: it is what everything stands on, and `--strict` is to notice.
        return warn(str(error), "name it: --redis-url or HEADRACE_REDIS_URL; or run `headrace up`")
    except ConfigError as error:
        return fail(error.message, error.hint, ExitCode.USAGE)
    except (RedisError, OSError) as error:
        where = redact_url(site.redis_url)
        return fail(
            f"{where}: {sentence(error)}",
            _what_to_do(error, tls=where.startswith("rediss")),
            ExitCode.UNREACHABLE,
        )
    name = "without TLS"
    kwargs = client.connection_pool.connection_kwargs
    if site.redis_url.startswith("rediss://"):
        name = "over TLS"
    elif "path" in kwargs:
        name = "over its socket"
    return ok(f"{redact_url(site.redis_url)} answers, {name}")


def _what_to_do(error: BaseException, *, tls: bool) -> str:
    text = f"{error} {error.__cause__ or ''}"
    found = next((hint for words, hint in _HINTS if words in text), None)
    if found is not None:
        return found
    if isinstance(error, AuthenticationError) or "NOAUTH" in text:
        return "put the right user and password into the URL: redis://user:password@host:6379/0"
    if isinstance(error, BusyLoadingError):
        return "it loads its data: wait, then look again"
    if isinstance(error, MasterNotFoundError):
        return "the Sentinels know no such master, or none answers: correct ?master= or the hosts"
    if isinstance(_root(error), socket.gaierror):
        return "its name cannot be resolved: correct the host in HEADRACE_REDIS_URL, or DNS"
    if isinstance(error, (RedisTimeoutError, TimeoutError)):
        other = "speaks no TLS there (redis://)" if tls else "wants TLS there (rediss://)"
        return (
            f"no answer within {TIMEOUT_S:g} s: look for a firewall on the way, a server that "
            f"hangs, or one that {other}"
        )
    return _START


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__ or error
    return error


def version(site: Deployment) -> CheckResult:
    """`redis-version`: 6.2 or newer."""
    info = site.info
    name = "Valkey" if "valkey_version" in info else "Redis"
    said = str(info.get("valkey_version") or info.get("redis_version") or "")
    compatible = str(info.get("redis_version", ""))
    numbers = tuple(int(part) for part in re.findall(r"\d+", compatible)[:2])
    if numbers < OLDEST_VERSION:
        return fail(
            f"{name} {said or 'of unknown version'}", "Headrace needs Redis >= 6.2 or Valkey"
        )
    return ok(f"{name} {said}")


def mode(site: Deployment) -> CheckResult:
    """`redis-mode`: a single server that takes writes."""
    info = site.info
    running = str(info.get("redis_mode") or info.get("server_mode") or "standalone")
    if running == "cluster" or info.get("cluster_enabled"):
        return fail(
            "it runs in Cluster mode, and a script needs all keys on one server",
            "use a single server, or Sentinels: sentinel://host:26379/0?master=name",
        )
    if running == "sentinel":
        return fail("it is a Sentinel, and no Redis", "write sentinel://host:26379/0?master=name")
    if info.get("role") == "slave":
        return fail("it is a replica, and takes no writes", "give the URL of its primary")
    return ok(f"{running}, {info.get('role', 'master')}")


def scripting(site: Deployment) -> CheckResult:
    """`redis-scripts`: our Lua runs."""
    try:
        site.redis.script_load(script("queues/depth").source)
        site.redis.evalsha(script("queues/depth").sha, 0, keys.queue_name("doctor"))
    except ResponseError as error:
        return fail(
            f"it runs no Lua scripts for us: {sentence(error)}",
            "let the user run @scripting; a host that forbids EVALSHA or SCRIPT cannot be used",
        )
    return ok("our Lua runs")


def tracking(site: Deployment) -> CheckResult:
    """`redis-tracking`: it can wake workers by CLIENT TRACKING."""
    _ = site.redis  # raises NotLooked: that it cannot be reached is said once
    with connect(site.redis_url, **site.timeouts) as client:
        connection: Any = client.connection_pool.get_connection()
        try:
            connection.send_command("CLIENT", "TRACKING", "ON")
            connection.read_response()
        except RedisError as error:
            return warn(
                f"it refuses CLIENT TRACKING: {sentence(error)}",
                "workers look at their queues every 50 ms instead; let the user run "
                "client|tracking, and go round a proxy that does not know it",
            )
        finally:
            client.connection_pool.disconnect()
    return ok("workers are woken by CLIENT TRACKING")


def rights(site: Deployment) -> CheckResult:
    """`redis-rights`: the user may do all that Headrace does. Nothing here changes anything."""
    client, word = site.redis, f"doctor-{secrets.token_hex(6)}"
    refused = [name for name, command in _tries(word) if _refuses(client, command)]
    if refused:
        return fail(
            f"this user may not: {named(refused)}",
            "give it the rights that docs/security.md names (ACL SETUSER)",
        )
    return ok("this user may do all that Headrace does")


def _tries(word: str) -> list[tuple[str, tuple[Any, ...]]]:
    """Commands that change nothing, as no key has such a name, with what each stands for."""
    tries: list[tuple[str, tuple[Any, ...]]] = []
    for family in _FAMILIES:
        key, shown = family.format(word), family.format("*")
        tries += [
            (f"write to {shown}", ("LPUSHX", key, "x")),
            (f"read {shown}", ("EXISTS", key)),
        ]
    tries += [(f"publish on {c.format('*')}", ("PUBLISH", c.format(word), "")) for c in _CHANNELS]
    key = f"hr:{word}"
    plain = (
        ("HDEL", key, "x"), ("HGETALL", key), ("ZREM", key, "x"), ("ZRANGE", key, 0, -1),
        ("SREM", key, "x"), ("SET", key, "x", "XX"), ("GET", key), ("DEL", key),
        ("EXPIRE", key, 1), ("PTTL", key), ("LMOVE", key, key, "LEFT", "RIGHT"),
        ("INFO", "server"), ("TIME",), ("PUBSUB", "CHANNELS", key), ("PUBSUB", "NUMSUB", key),
    )  # fmt: skip
    return [*tries, *((command[0], command) for command in plain)]


def _refuses(client: Any, command: tuple[Any, ...]) -> bool:
    try:
        client.execute_command(*command)
    except NoPermissionError:
        return True
    except ResponseError:
        return False  # of a server that is full, say: another line has it
    return False


def replication(site: Deployment) -> CheckResult:
    """`redis-replicas`: those that it waits for are there."""
    info = site.info
    count = int(info.get("connected_slaves", 0))
    rows = [info.get(f"slave{i}") for i in range(count)]
    lagging = [row for row in rows if isinstance(row, dict) and row.get("state") != "online"]
    wanted = int(site.configured("min-replicas-to-write"))
    good = int(info.get("min_slaves_good_slaves", count))
    if wanted > good:
        return fail(
            f"it takes no writes: min-replicas-to-write is {wanted}, and {good} replicas keep up",
            "bring the replicas back, or lower min-replicas-to-write",
        )
    if lagging:
        return warn(f"{len(lagging)} of {count} replicas are not in step", "see their logs")
    if not count:
        return ok("no replicas, and it waits for none")
    return ok(f"{count} replicas in step")


def connections(site: Deployment) -> CheckResult:
    """`redis-clients`: there is room for more connections."""
    info = site.info
    now = int(info.get("connected_clients", 0))
    most = int(info.get("maxclients") or site.configured("maxclients"))
    refused = int(info.get("rejected_connections", 0))
    hint = "raise maxclients (and the server's ulimit -n), or look who holds them: CLIENT LIST"
    if now >= 0.9 * most:
        return warn(f"{now} connections of {most} at the most", hint)
    if refused:
        return warn(f"{refused} connections were refused since its start", hint)
    return ok(f"{now} connections of {most} at the most")
