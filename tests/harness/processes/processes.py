"""What tests ask about processes that they did not start themselves, and that may end meanwhile."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from headrace.server.supervisor.proc import children_of, start_time_ticks
from tests.harness.wait import wait_until


def gone(*pids: int) -> bool:
    """Whether none of the processes runs any more; a zombie does not."""
    return all(start_time_ticks(pid) is None for pid in pids)


def descendants(pid: int) -> list[int]:
    """All processes below one, in any session."""
    found = []
    for child in children_of(pid):
        found += [child, *descendants(child)]
    return found


def children_with(parent: int, mark: str) -> list[int]:
    """The running children of a process whose command line has `mark` in it."""
    return [pid for pid in children_of(parent) if mark.encode() in command_line(pid)]


def command_line(pid: int) -> bytes:
    """The arguments of a process; nothing of one that has ended, a zombie among them."""
    return _told(pid, "cmdline")


def environment(pid: int) -> list[bytes]:
    """The variables of a process, as NAME=VALUE; nothing of one that has ended."""
    return _told(pid, "environ").split(b"\0")


def _told(pid: int, what: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def suspend(pid: int) -> None:
    """Stop a process with SIGSTOP, and wait until each of its threads has stopped.

    The signal takes effect when the kernel next runs one of the threads. The others go on until
    then, which is long enough to send something.
    """
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: _states(pid) == {"T"}, "every thread has stopped")


def _states(pid: int) -> set[str]:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return {(one / "stat").read_text().rpartition(") ")[2][0] for one in threads}
