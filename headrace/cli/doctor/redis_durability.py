"""Checks that Redis loses no jobs at a crash, with full memory or with a full disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from headrace.cli.doctor.check import CheckResult, CheckSkipped, fail, ok, size, skip, warn, worst
from headrace.cli.doctor.deployment import Deployment

#: Share of the limit from which memory is nearly full.
FULL: Final = 0.85
#: Share of the host's memory: a fork may copy the pages that are written meanwhile.
OF_HOST: Final = 0.6
DISK_LOW: Final = 0.1
DISK_OUT: Final = 0.02
_LOSES: Final = {
    "always": ("ok", "answered commands are on disk"),
    "everysec": ("ok", "a crash of the host loses about 1 s of writes"),
    "no": ("warn", "a crash of the host loses about 30 s of writes"),
}


def persistence(deployment: Deployment) -> CheckResult:
    """`redis-persistence`: Redis writes jobs to disk."""
    info = deployment.info
    if info.get("aof_enabled"):
        try:
            fsync = deployment.configured("appendfsync")
        except CheckSkipped:
            return ok("append-only file; its appendfsync is unknown")
        verdict, loses = _LOSES.get(fsync, ("ok", ""))
        text = f"append-only file, appendfsync {fsync}: {loses}"
        if verdict == "warn":
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


def last_writes(deployment: Deployment) -> CheckResult:
    """`redis-writes`: the last writes to disk succeeded."""
    info, found = deployment.info, []
    for field, what in (
        ("aof_last_write_status", "write to the append-only file"),
        ("aof_last_bgrewrite_status", "rewrite of the append-only file"),
        ("rdb_last_bgsave_status", "snapshot"),
    ):
        if str(info.get(field, "ok")) != "ok":
            found.append(
                fail(
                    f"the last {what} failed",
                    "free disk space, or correct its permissions; its log shows the reason. "
                    "It may refuse jobs until then",
                )
            )
    return worst(found, ok("the last writes to disk succeeded"))


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


def memory(deployment: Deployment) -> CheckResult:
    """`redis-memory`: there is memory for more jobs."""
    info = deployment.info
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    host = int(info.get("total_system_memory", 0))
    found = []
    if limit and used >= limit:
        found.append(
            fail(
                f"full: {size(used)} of maxmemory {size(limit)}; it takes no new jobs",
                "raise maxmemory, shorten result_ttl, or store payloads elsewhere (payload_store)",
            )
        )
    elif limit and used > FULL * limit:
        found.append(
            warn(
                f"{size(used)} of maxmemory {size(limit)} are used",
                "raise maxmemory, shorten result_ttl, or store payloads elsewhere (payload_store)",
            )
        )
    if host and max(limit, used) > host:
        found.append(
            warn(
                f"maxmemory {size(limit)} is more than the host's {size(host)}",
                "lower maxmemory: the kernel would kill Redis before it is full",
            )
        )
    elif host and used > OF_HOST * host:
        found.append(
            warn(
                f"{size(used)} of the host's {size(host)} are used; a fork may need as much again",
                "use a larger host, or store payloads elsewhere (payload_store)",
            )
        )
    bound = f"maxmemory {size(limit)}" if limit else f"{size(host)} of the host, no maxmemory"
    return worst(found, ok(f"{size(used)} used, {bound}"))


def disk(deployment: Deployment) -> CheckResult:
    """`redis-disk`: its disk has free space; checked if it runs on this host."""
    if not deployment.redis_is_here:
        return skip("Redis runs on another host")
    folder = Path(deployment.configured("dir"))
    if not folder.is_dir():
        return skip(f"its folder {folder} is not visible from here")
    return free_space(folder, "its append-only file and snapshots")


def free_space(folder: Path, what: str) -> CheckResult:
    """Check the free space of a file system.

    Args:
        folder: a folder in it; if it does not exist, its nearest existing parent counts.
        what: the data in the folder, for the sentence.
    """
    existing = next(one for one in (folder, *folder.parents) if one.exists())
    usage = shutil.disk_usage(existing)
    share = usage.free / usage.total if usage.total else 0.0
    text = f"{size(usage.free)} of {size(usage.total)} free in {folder} for {what}"
    hint = "free disk space, or use a larger disk"
    if share < DISK_OUT:
        return fail(text, hint)
    if share < DISK_LOW:
        return warn(text, hint)
    return ok(text)


def host(deployment: Deployment) -> CheckResult:
    """`redis-host`: kernel settings for a server that forks; checked if it runs on this host."""
    if not deployment.redis_is_here:
        return skip("Redis runs on another host")
    found = []
    if _kernel("/proc/sys/vm/overcommit_memory") == "0":
        found.append(
            warn(
                "vm.overcommit_memory is 0: a fork of a large server may be refused",
                "as root: sysctl vm.overcommit_memory=1",
            )
        )
    if "[always]" in _kernel("/sys/kernel/mm/transparent_hugepage/enabled"):
        found.append(
            warn(
                "Transparent Huge Pages are always on: a fork makes Redis slow and large",
                "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
            )
        )
    return worst(found, ok("overcommit is allowed, and huge pages are not always on"))


def _kernel(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
