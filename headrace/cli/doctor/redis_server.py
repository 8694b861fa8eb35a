"""Checks of Redis: reachable, supported, fast, with the rights that it must give; what it keeps."""

from __future__ import annotations

import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
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

from headrace.cli.doctor.check import CheckResult, fail, ok, results_of, skip, warn
from headrace.cli.doctor.deployment import TIMEOUT_S, CheckSkipped, Deployment
from headrace.cli.doctor.host import free_space
from headrace.cli.shared.exit_codes import ExitCode
from headrace.cli.shared.output import error_line
from headrace.errors import ConfigError
from headrace.queue import findings
from headrace.redis import keys
from headrace.redis.compatibility import OLDEST_VERSION
from headrace.redis.scripts import script
from headrace.redis.url import redact_url
from headrace.text import named, size

FORK_MS: Final = 500.0
SAMPLE: Final = 1000
#: Prefixes of keys that always have a TTL.
BOUNDED: Final = (
    b"celery-task-meta-", b"hr:worker:", b"hr:api:", b"hr:run:", b"hr:background:alive:",
    b"hr:jobs:", b"hr:series:", b"hr:rate:", b"hr:tokens:", b"hr:batch:", b"hr:letter:",
)  # fmt: skip
OURS: Final = (b"hr:", b"headrace", b"celery", b"_kombu", b"unacked")
_FSYNC: Final = {
    "always": "answered commands are on disk",
    "everysec": "a crash of the host loses up to 2 s of writes",
    "no": "a crash of the host loses about 30 s of writes",
}
_START: Final = "start it, or correct HEADRACE_REDIS_URL"
_NO_TLS: Final = "it does not use TLS on this port: write redis:// instead of rediss://"
_TLS: Final = "if it uses TLS on this port, write rediss://"
#: Text of an error and its hint; the first match counts.
_HINTS: Final = (
    ("CERTIFICATE_VERIFY_FAILED", "set the CA of its certificate: ?ssl_ca_certs=FILE in the URL"),
    ("WRONG_VERSION_NUMBER", _NO_TLS),
    ("record layer failure", _NO_TLS),
    ("UNEXPECTED_EOF", _NO_TLS),
    ("max number of clients", "raise its maxclients, or find the clients with CLIENT LIST"),
    ("Connection closed by server", _TLS),
    ("Connection reset by peer", _TLS),
    ("Connection refused", f"nothing listens there: {_START}"),
    ("protected mode", "without a password it accepts only local clients: set a password"),
    ("DB index is out of", "it has no such database: correct the number at the end of the URL"),
    ("Protocol error", "the server there is not Redis: correct host and port in the URL"),
    ("No such file", "no such socket: start Redis, or correct the path"),
)
#: Key families and channels that Headrace uses.
_FAMILIES: Final = (
    "headrace.{0}", "headrace:{0}", "hr:{0}", "celery-task-meta-{0}", "_kombu.{0}",
    "{0}.celery.pidbox",
)  # fmt: skip
_CHANNELS: Final = ("hr:{0}", "celery-task-meta-{0}", "/0.celeryev/{0}")
PINGS: Final = 50
SCRIPTS: Final = 10
#: Each job takes several round trips of a worker; a batch waits for one.
TYPICAL_MS: Final = 5.0
LONGEST_MS: Final = 200.0
LATELY_S: Final = 900
SLOW_MS: Final = 100.0


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
    if deployment.redis_url.startswith("rediss://"):
        name = "over TLS"
    elif "path" in client.connection_pool.connection_kwargs:
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
    root = error
    while cause := root.__cause__ or root.__context__:
        root = cause
    if isinstance(root, socket.gaierror):
        return "its name cannot be resolved: correct the host in HEADRACE_REDIS_URL, or DNS"
    if isinstance(error, (RedisTimeoutError, TimeoutError)):
        other = "does not use TLS (redis://)" if tls else "uses TLS (rediss://)"
        return (
            f"no answer within {TIMEOUT_S:g} s: check for a firewall, a server that hangs, or "
            f"a server that {other}"
        )
    return _START


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
    with deployment.connect() as client:
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
        pass  # for example a full server: another check reports that
    return False


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


def latency(deployment: Deployment) -> CheckResult:
    """`redis-latency`: PINGs and a script are fast."""
    client, source = deployment.redis, script("queues/depth").source
    pings = [_ms(client.ping) for _ in range(PINGS)]
    scripts = [
        _ms(lambda: client.eval(source, 0, keys.queue_name("doctor"))) for _ in range(SCRIPTS)
    ]
    typical, longest = median(pings), max(*pings, *scripts)
    text = (
        f"median PING {typical:.2f} ms, median script {median(scripts):.2f} ms, "
        f"longest {longest:.1f} ms"
    )
    if typical > TYPICAL_MS:
        return warn(text, "move Redis nearer to the workers: a job needs several round trips")
    if longest > LONGEST_MS:
        return warn(
            text, "it paused for a moment: see `redis-slow`, `redis-fork`, and its host's load"
        )
    return ok(text)


def slow_commands(deployment: Deployment) -> CheckResult:
    """`redis-slow`: no command of the last 15 minutes blocked all others."""
    now_s, _ = deployment.redis.time()
    rows = [
        row
        for row in deployment.redis.slowlog_get(128)
        if row["start_time"] > now_s - LATELY_S and row["duration"] > SLOW_MS * 1000
    ]
    what = f"took more than {SLOW_MS:g} ms in the last {LATELY_S // 60} min"
    if not rows:
        return ok(f"no command {what}")
    names = {bytes(row["command"]).split(b" ")[0].decode("ascii", "replace") for row in rows}
    longest = max(row["duration"] for row in rows) / 1000
    return warn(
        f"{len(rows)} commands {what}, longest {longest:.0f} ms: {named(sorted(names))}",
        "SLOWLOG GET shows them; KEYS and similar commands of other applications delay every job",
    )


def _ms(call: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    call()
    return (time.perf_counter() - began_s) * 1000


def persistence(deployment: Deployment) -> CheckResult:
    """`redis-persistence`: Redis writes jobs to disk."""
    info = deployment.info
    if info.get("aof_enabled"):
        try:
            fsync = deployment.configured("appendfsync")
        except CheckSkipped:
            return ok("append-only file; its appendfsync is unknown")
        text = f"append-only file, appendfsync {fsync}: {_FSYNC.get(fsync, '')}"
        if fsync == "no":
            return warn(text, "set appendfsync everysec, or always (docs/durability.md)")
        return ok(text)
    try:
        save = deployment.configured("save")
    except CheckSkipped:
        save = "?"
    hint = "set appendonly yes (docs/durability.md)"
    if not save:
        return fail("Redis writes nothing to disk: every job is lost when it stops", hint)
    since = int(info.get("rdb_changes_since_last_save", 0))
    return warn(
        f"snapshots only (save {save}): changes after the last snapshot are lost when it stops, "
        f"{since:,} changes now",
        hint,
    )


def last_writes(deployment: Deployment) -> Iterator[CheckResult]:
    """`redis-writes`: the last writes to disk succeeded."""
    yield from results_of(findings.of_redis(deployment.info), "redis-writes")
    yield ok("the last writes to disk succeeded")


def eviction(deployment: Deployment) -> CheckResult:
    """`redis-eviction`: a full server refuses jobs and drops none."""
    policy = str(
        deployment.info.get("maxmemory_policy") or deployment.configured("maxmemory-policy")
    )
    if policy == "noeviction":
        return ok("noeviction: a full server refuses jobs and drops none")
    limit = int(deployment.info.get("maxmemory", 0))
    hint = "set maxmemory-policy noeviction"
    if not limit:
        return warn(f"{policy}: with a maxmemory, a full server would drop jobs", hint)
    return fail(f"{policy}: at {size(limit)} it drops keys, also queued jobs", hint)


def memory(deployment: Deployment) -> Iterator[CheckResult]:
    """`redis-memory`: there is memory for more jobs."""
    info = deployment.info
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    host = int(info.get("total_system_memory", 0))
    yield from results_of(findings.of_redis(info), "redis-memory")
    bound = f"maxmemory {size(limit)}" if limit else f"{size(host)} of the host, no maxmemory"
    yield ok(f"{size(used)} used, {bound}")


def disk(deployment: Deployment) -> CheckResult:
    """`redis-disk`: its disk has free space; checked if it runs on this host."""
    if not deployment.redis_is_here:
        return skip("Redis runs on another host")
    folder = Path(deployment.configured("dir"))
    if not folder.is_dir():
        return skip(f"its folder {folder} is not visible from here")
    return free_space(folder, "its append-only file and snapshots")


def host(deployment: Deployment) -> Iterator[CheckResult]:
    """`redis-host`: kernel settings for a server that forks; checked if it runs on this host."""
    if not deployment.redis_is_here:
        raise CheckSkipped("Redis runs on another host")
    if _kernel("/proc/sys/vm/overcommit_memory") == "0":
        yield warn(
            "vm.overcommit_memory is 0: a fork of a large server may be refused",
            "as root: sysctl vm.overcommit_memory=1",
        )
    if "[always]" in _kernel("/sys/kernel/mm/transparent_hugepage/enabled"):
        yield warn(
            "Transparent Huge Pages are always on: a fork makes Redis slow and large",
            "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )
    yield ok("overcommit is allowed, and huge pages are not always on")


def _kernel(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def fork(deployment: Deployment) -> CheckResult:
    """`redis-fork`: the fork for the last snapshot or rewrite was fast."""
    fork_ms = int(deployment.info.get("latest_fork_usec", 0)) / 1000
    if not fork_ms:
        return skip("Redis has not forked since its start")
    text = f"the last fork took {fork_ms:.0f} ms"
    if fork_ms > FORK_MS:
        return warn(text, "it blocks every job: store payloads elsewhere (payload_store)")
    return ok(text)


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


def strays(deployment: Deployment) -> CheckResult:
    """`redis-keys`: keys that should expire have a TTL, in a sample."""
    try:
        _, found = deployment.redis.scan(count=SAMPLE)
    except NoPermissionError:
        return skip("this user of Redis may not list its keys")
    bounded = [raw for raw in found if raw.startswith(BOUNDED)]
    with deployment.redis.pipeline(transaction=False) as pipe:
        for raw in bounded:
            pipe.ttl(raw)
        ttls = zip(bounded, pipe.execute(), strict=True)
    forever = [raw.decode("utf-8", "replace") for raw, ttl in ttls if ttl == -1]
    if forever:
        return warn(
            f"{len(forever)} of {len(found)} sampled keys never expire: {named(forever)}",
            "this version did not write them: DEL them if nothing needs them",
        )
    foreign = sum(not raw.startswith(OURS) for raw in found)
    shared = f", {foreign} of other applications" if foreign else ""
    return ok(f"{len(found)} sampled keys{shared}: no TTL is missing")
