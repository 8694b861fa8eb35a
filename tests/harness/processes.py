"""What tests ask about processes that they did not start themselves, and that may end meanwhile."""

from __future__ import annotations

from pathlib import Path

from headrace.processes import children_of, start_time_ticks


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
    return [pid for pid in children_of(parent) if mark in _command(pid)]


def _command(pid: int) -> str:
    """Nothing of a process that has ended, a zombie among them."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
