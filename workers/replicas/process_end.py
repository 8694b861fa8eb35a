"""How a model process ended: its exit status or signal, and if the kernel was short of memory."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: A process gets these by what it did itself. Other signals may come from outside. The kernel, too,
#: sends SIGKILL when memory is short, not always to the process that took the memory.
OWN_SIGNALS: Final = frozenset({
    signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP,
    signal.SIGSYS,
})  # fmt: skip
_CGROUPS: Final = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a process ended.

    Attributes:
        status: its exit status, or a signal as a negative number; None if the worker killed it.
        oom_kills: how many processes the kernel has killed meanwhile because memory was short.
    """

    status: int | None
    oom_kills: int = 0

    @property
    def by_itself(self) -> bool:
        """Whether what it did itself is the cause, and nothing outside of it."""
        return self.status is not None and (self.status >= 0 or -self.status in OWN_SIGNALS)

    @property
    def how(self) -> str:
        """The end as part of a sentence, without quotes."""
        if self.status is None:
            return "as its worker killed it"
        if self.status >= 0:
            return f"with exit status {self.status}"
        try:
            name = signal.Signals(-self.status).name
        except ValueError:
            name = f"signal {-self.status}"
        if self.oom_kills and self.status == -signal.SIGKILL:
            return f"by {name} (memory was short: the kernel killed {self.oom_kills} here)"
        return f"by {name}"


class OomKills:
    """How many processes the kernel has killed lately because memory was short.

    It counts in the control group of this process, which is its container; where that cannot be
    read, on the whole host.
    """

    def __init__(self) -> None:
        self._source = next((path for path in _sources() if _count(path) is not None), None)
        self._before = self._last = self._read()

    def look(self) -> None:
        """Remember the count; call it about once a second."""
        self._before, self._last = self._last, self._read()

    @property
    def recent(self) -> int:
        """How many were killed since the look before the last."""
        return self._read() - self._before

    def _read(self) -> int:
        return (_count(self._source) or 0) if self._source is not None else 0


def _sources() -> list[Path]:
    """Return the files that may have the count, the best first."""
    files = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            files.append(_CGROUPS / path.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            files.append(_CGROUPS / "memory" / path.lstrip("/") / "memory.oom_control")
            # A container often sees its own group as the root of the tree.
            files.append(_CGROUPS / "memory" / "memory.oom_control")
    return [*files, Path("/proc/vmstat")]


def _count(source: Path) -> int | None:
    try:
        fields = dict(line.split(maxsplit=1) for line in source.read_text().splitlines())
        return int(fields["oom_kill"])
    except (OSError, ValueError, KeyError):
        return None
