"""How a model process ended: its status, the stacks it wrote, and if memory was short."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from workers.protocol.frames import TRACE_SIGNAL
from workers.replicas.cores import cgroup_folders

#: A process gets these by what it did itself. Other signals may come from outside. The kernel, too,
#: sends SIGKILL when memory is short, not always to the process that took the memory.
OWN_SIGNALS: Final = frozenset({
    signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP,
    signal.SIGSYS,
})  # fmt: skip


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
    # A container often sees its own group as the root of the tree.
    folders = cgroup_folders(controller="memory")
    names = ("memory.events", "memory.oom_control")
    return [*(folder / name for folder in folders for name in names), Path("/proc/vmstat")]


def _count(source: Path) -> int | None:
    try:
        fields = dict(line.split(maxsplit=1) for line in source.read_text().splitlines())
        return int(fields["oom_kill"])
    except (OSError, ValueError, KeyError):
        return None


TEXT_MAX_BYTES: Final = 16_000
#: How long processes that hang have to write their stacks.
STACKS_S: Final = 0.5
#: How often the file is checked for them.
LOOK_S: Final = 0.02


class StackDump:
    """The file of the stacks of a process' threads; open until the process has ended.

    C code writes them at a crash and on a signal, even while something holds the interpreter.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._from = self._begun = self._seen = 0
        self._until = 0.0
        self._to_signal: list[int] = []

    def fileno(self) -> int:
        """Return the descriptor that the process inherits."""
        return self._file.fileno()

    def request(self, pids: Iterable[int], now: float) -> bool:
        """Signal the first process to write its stacks, then the next; return if any exists."""
        self._from = self._seen = os.fstat(self.fileno()).st_size
        self._until = now + STACKS_S
        self._to_signal = list(pids)
        return self._signal_next()

    def complete(self, now: float) -> bool:
        """Return whether all stacks are whole, or the time is over; call it every LOOK_S.

        When the stacks of a process are whole, it signals the next process.
        """
        if now >= self._until:
            return True
        size = os.fstat(self.fileno()).st_size
        whole = size == self._seen > self._begun
        self._seen = size
        return whole and not self._signal_next()

    def _signal_next(self) -> bool:
        # One process after the other, as all write into the same file, a line in several pieces.
        self._begun = self._seen
        while self._to_signal:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._to_signal.pop(0), TRACE_SIGNAL)
                return True
        return False

    def text(self) -> str:
        """Return what the processes have written, since the request if there was any."""
        return os.pread(self.fileno(), TEXT_MAX_BYTES, self._from).decode("utf-8", "replace")

    def close(self) -> None:
        """Close the file, once the process is gone and its stacks have been read."""
        self._file.close()
