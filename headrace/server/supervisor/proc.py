"""Processes by /proc and prctl. Linux only."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_PR_SET_CHILD_SUBREAPER: Final = 36
# Fields of /proc/<pid>/stat, counted from the one after the command's closing bracket.
_STATE: Final = 0
_PARENT: Final = 1
_START_TIME: Final = 19


def become_subreaper() -> None:
    """Make orphaned descendants of this process its children, so that it can end them."""
    import ctypes  # not for all who only look

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(error)}")


def start_time_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it is gone or a zombie.

    Pid and start time together identify a process; the kernel reuses a pid alone.
    """
    fields = _stat(pid)
    if fields is None or fields[_STATE] in ("Z", "X"):
        return None
    return int(fields[_START_TIME])


def parent_of(pid: int) -> int | None:
    """Return the parent of a process; None if it is gone."""
    fields = _stat(pid)
    return None if fields is None else int(fields[_PARENT])


def command_of(pid: int) -> list[str]:
    """Return the program of a process and its arguments; empty if it is gone or another user's."""
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def children_of(parent: int) -> list[int]:
    """Return the direct children of a process, zombies included."""
    found = []
    for entry in _PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        fields = _stat(int(entry.name))
        if fields is not None and int(fields[_PARENT]) == parent:
            found.append(int(entry.name))
    return found


def kill_group(group: int, signum: signal.Signals) -> None:
    """Send a signal to a process group, if it still exists."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signum)


def kill(pid: int, signum: signal.Signals) -> None:
    """Send a signal to a process, if it still exists."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)


def kill_orphans(known: set[int]) -> bool:
    """Kill and reap the children of this process that are not `known`; return if any is left."""
    left = False
    for pid in children_of(os.getpid()):
        if pid in known:
            continue
        kill(pid, signal.SIGKILL)
        try:
            reaped, _ = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue
        left = left or reaped == 0
    return left


def reap_orphans(known: set[int]) -> None:
    """Collect children of this process that have ended and are not `known`, if there are any."""
    options = os.WEXITED | os.WNOHANG
    with suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, options | os.WNOWAIT)) is not None:
            if ended.si_pid in known:
                return
            os.waitid(os.P_PID, ended.si_pid, options)


def _stat(pid: int) -> list[str] | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The command is in brackets and may itself contain brackets and blanks.
    return text.rpartition(")")[2].split()
