"""The stacks of a model process' threads, as its own C code has written them into a file.

It does so at a crash, and when a signal asks for it, whatever holds the interpreter.
"""

from __future__ import annotations

import os
import tempfile
from typing import Final

TRACE_MAX_BYTES: Final = 16_000
#: How long a process that hangs is given to say where.
TELL_S: Final = 0.5
#: How often it is looked whether it has.
LOOK_S: Final = 0.02


class StackDump:
    """One file of stacks, open as long as its process lives."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._from = self._begun = self._seen = 0
        self._until = 0.0

    def fileno(self) -> int:
        """The descriptor that the process inherits."""
        return self._file.fileno()

    def request(self, now: float) -> None:
        """The process is asked; what is written from now on is the answer."""
        self._from = self._begun = self._seen = os.fstat(self.fileno()).st_size
        self._until = now + TELL_S

    def request_another(self) -> None:
        """One that writes into the same file is asked, after the answer of the one before."""
        self._begun = self._seen

    def expired(self, now: float) -> bool:
        """Whether nothing is waited for any longer."""
        return now >= self._until

    def complete(self, now: float) -> bool:
        """Whether the answer is whole, or is waited for no longer; to be asked each LOOK_S."""
        size = os.fstat(self.fileno()).st_size
        whole = size == self._seen > self._begun
        self._seen = size
        return whole or self.expired(now)

    def text(self) -> str:
        """What the process has written, since it was asked if it was."""
        return os.pread(self.fileno(), TRACE_MAX_BYTES, self._from).decode("utf-8", "replace")

    def close(self) -> None:
        """The process is gone, and what it wrote has been read."""
        self._file.close()
