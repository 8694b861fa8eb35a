"""Would Redis lose jobs: when it ends, when its memory is full, when its disk is?"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from headrace.cli.doctor.check import CheckResult, CheckSkipped, fail, ok, skip, warn, worst
from headrace.cli.doctor.check import size as said
from headrace.cli.doctor.deployment import Deployment

#: So much of its bound may be used, before it is time to do something.
FULL: Final = 0.85
#: A fork may have to copy what is written meanwhile.
OF_HOST: Final = 0.6
DISK_LOW: Final = 0.1
DISK_OUT: Final = 0.02
_LOSES: Final = {
    "always": ("ok", "what it has answered is on the disk"),
    "everysec": ("ok", "a crash of the host loses a second"),
    "no": ("warn", "a crash of the host loses what the kernel has not written, about 30 s"),
}


def persistence(site: Deployment) -> CheckResult:
    """`redis-persistence`: jobs are on its disk."""
    info = site.info
    if info.get("aof_enabled"):
        try:
            fsync = site.configured("appendfsync")
        except CheckSkipped:
            return ok("append-only file; it does not say how often it is synced")
        verdict, loses = _LOSES.get(fsync, ("ok", ""))
        text = f"append-only file, appendfsync {fsync}: {loses}"
        if verdict == "warn":
            return warn(text, "set appendfsync everysec, or always (docs/durability.md)")
        return ok(text)
    try:
        save = site.configured("save")
    except CheckSkipped:
        save = "?"
    hint = "set appendonly yes (docs/durability.md)"
    if not save:
        return fail("it writes nothing to disk: when it ends, every job is lost", hint)
    since = int(info.get("rdb_changes_since_last_save", 0))
    return warn(
        f"snapshots only (save {save}): when it ends, all since the last one is lost, "
        f"{since:,} changes now",
        hint,
    )


def last_writes(site: Deployment) -> CheckResult:
    """`redis-writes`: the last writes to its disk have succeeded."""
    info, found = site.info, []
    for field, what in (
        ("aof_last_write_status", "write to the append-only file"),
        ("aof_last_bgrewrite_status", "rewrite of the append-only file"),
        ("rdb_last_bgsave_status", "snapshot"),
    ):
        if str(info.get(field, "ok")) != "ok":
            found.append(
                fail(
                    f"its last {what} failed",
                    "free its disk, or give it the right to write there; its log says why. "
                    "It may refuse jobs until then",
                )
            )
    return worst(found, ok("the last writes to its disk succeeded"))


def eviction(site: Deployment) -> CheckResult:
    """`redis-eviction`: a full server refuses, and drops nothing."""
    policy = str(site.info.get("maxmemory_policy") or site.configured("maxmemory-policy"))
    if policy == "noeviction":
        return ok("noeviction: a full server refuses jobs, and drops none")
    limit = int(site.info.get("maxmemory", 0))
    hint = "set maxmemory-policy noeviction"
    if not limit:
        return warn(f"{policy}: once it has a maxmemory, a full server drops jobs", hint)
    return fail(f"{policy}: at {said(limit)} it drops keys, queued jobs among them", hint)


def memory(site: Deployment) -> CheckResult:
    """`redis-memory`: there is room for more jobs."""
    info = site.info
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    host = int(info.get("total_system_memory", 0))
    found = []
    if limit and used >= limit:
        found.append(
            fail(
                f"full: {said(used)} of maxmemory {said(limit)}, and it takes no new jobs",
                "raise maxmemory, shorten result_ttl, or keep payloads elsewhere (payload_store)",
            )
        )
    elif limit and used > FULL * limit:
        found.append(
            warn(
                f"{said(used)} of maxmemory {said(limit)} are used",
                "raise maxmemory, shorten result_ttl, or keep payloads elsewhere (payload_store)",
            )
        )
    if host and max(limit, used) > host:
        found.append(
            warn(
                f"maxmemory {said(limit)} is more than the host's {said(host)}",
                "lower maxmemory: the kernel would kill it before it is full",
            )
        )
    elif host and used > OF_HOST * host:
        found.append(
            warn(
                f"{said(used)} of the host's {said(host)} are used, and a fork may need them again",
                "give it a larger host, or keep payloads elsewhere (payload_store)",
            )
        )
    bound = f"maxmemory {said(limit)}" if limit else f"{said(host)} of the host, no maxmemory"
    return worst(found, ok(f"{said(used)} used, {bound}"))


def disk(site: Deployment) -> CheckResult:
    """`redis-disk`: there is room where it writes; looked at where it runs on this host."""
    if not site.redis_is_here:
        return skip("it runs on another host")
    folder = Path(site.configured("dir"))
    if not folder.is_dir():
        return skip(f"its folder {folder} cannot be seen from here")
    return free_space(folder, "its append-only file and snapshots")


def free_space(folder: Path, what: str) -> CheckResult:
    """Whether a file system has room.

    Args:
        folder: in it; its nearest ancestor counts where it is not made yet.
        what: lies there.
    """
    there = next(one for one in (folder, *folder.parents) if one.exists())
    usage = shutil.disk_usage(there)
    share = usage.free / usage.total if usage.total else 0.0
    text = f"{said(usage.free)} of {said(usage.total)} are free at {folder}, for {what}"
    hint = "free the disk, or move it to a larger one"
    if share < DISK_OUT:
        return fail(text, hint)
    if share < DISK_LOW:
        return warn(text, hint)
    return ok(text)


def host(site: Deployment) -> CheckResult:
    """`redis-host`: what the kernel does to a server that forks; where it runs on this host."""
    if not site.redis_is_here:
        return skip("it runs on another host")
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
                "Transparent Huge Pages are on for all: a fork makes it slow and large",
                "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
            )
        )
    return worst(found, ok("overcommit is allowed, and huge pages are asked for"))


def _kernel(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
