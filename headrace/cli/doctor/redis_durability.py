"""Checks that Redis keeps what it must and no more: crashes, memory, disk, forks, replicas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from redis.exceptions import NoPermissionError

from headrace.cli.doctor.check import CheckResult, fail, ok, results_of, skip, warn
from headrace.cli.doctor.deployment import CheckSkipped, Deployment
from headrace.cli.doctor.host import free_space
from headrace.queue import findings
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
