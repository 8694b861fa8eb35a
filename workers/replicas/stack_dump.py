"""The stacks of a model process' threads, which its C code writes into a file.

It writes them at a crash and on a signal, even while something holds the interpreter.
"""

from __future__ import annotations

import os
import tempfile
from typing import Final

TRACE_MAX_BYTES: Final = 16_000
#: How long a process that hangs has to write its stacks.
STACKS_S: Final = 0.5
#: How often the file is checked for them.
LOOK_S: Final = 0.02


class StackDump:
    """The file of stacks of one process; open as long as the process lives."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._from = self._begun = self._seen = 0
        self._until = 0.0

    def fileno(self) -> int:
        """Return the descriptor that the process inherits."""
        return self._file.fileno()

    def request(self, now: float) -> None:
        """Note that the process was signalled: what it writes from now on are its stacks."""
        self._from = self._begun = self._seen = os.fstat(self.fileno()).st_size
        self._until = now + STACKS_S

    def request_another(self) -> None:
        """Note that another process that writes into the same file was signalled."""
        self._begun = self._seen

    def expired(self, now: float) -> bool:
        """Return whether the time to wait for stacks is over."""
        return now >= self._until

    def complete(self, now: float) -> bool:
        """Return whether the stacks are whole or the time is over; call it every LOOK_S."""
        size = os.fstat(self.fileno()).st_size
        whole = size == self._seen > self._begun
        self._seen = size
        return whole or self.expired(now)

    def text(self) -> str:
        """Return what the process has written; since the request, if there was one."""
        return os.pread(self.fileno(), TRACE_MAX_BYTES, self._from).decode("utf-8", "replace")

    def close(self) -> None:
        """Close the file, once the process is gone and its stacks have been read."""
        self._file.close()
