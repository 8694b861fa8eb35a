"""The stacks of a model process and its helpers, which they write at a crash and on a signal."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable
from typing import Final

from workers.protocol.phases import TRACE_SIGNAL

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
        """Signal the first of these processes; what the file gets from now on are their stacks.

        Returns:
            Whether any of them exists.
        """
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
