"""Buffer answers for a client that reads them too slowly."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections import deque
from typing import Final, Self

logger = logging.getLogger(__name__)

#: The most bytes in memory, and in a file behind that; beyond both, `put` waits.
MEMORY_MAX_BYTES: Final = 8 * 1024 * 1024
FILE_MAX_BYTES: Final = 1024 * 1024 * 1024
#: The most bytes of one `take`.
TAKE_BYTES: Final = 256 * 1024


class SendBuffer:
    """A queue of bytes between the task that answers and the task that sends.

    Args:
        memory_max_bytes: the most bytes in memory.
        file_max_bytes: the most bytes in an unnamed temporary file.
    """

    def __init__(
        self, memory_max_bytes: int = MEMORY_MAX_BYTES, file_max_bytes: int = FILE_MAX_BYTES
    ) -> None:
        self._memory_max_bytes = memory_max_bytes
        self._file_max_bytes = file_max_bytes
        self._memory: deque[bytes] = deque()
        self._memory_bytes = 0
        self._file: int | None = None
        # The file holds the bytes from `_read_at` to `_written_at`, which follow those in memory.
        self._read_at = self._written_at = 0
        self._filled = asyncio.Event()
        self._drained = asyncio.Event()
        self._ended = False
        self._warned = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @property
    def spooled_bytes(self) -> int:
        """The bytes in the file."""
        return self._written_at - self._read_at

    async def put(self, data: bytes) -> None:
        """Add bytes; wait until there is room for them."""
        while not self._keep(data):
            self._drained.clear()
            await self._drained.wait()
        self._filled.set()

    def end(self) -> None:
        """Mark the end: nothing more will be put."""
        self._ended = True
        self._filled.set()

    async def take(self) -> bytes:
        """Return the next bytes; b"" at the end."""
        while not self._memory and not self.spooled_bytes and not self._ended:
            self._filled.clear()
            await self._filled.wait()
        data = self._from_memory() if self._memory else self._from_file()
        self._drained.set()
        return data

    def _keep(self, data: bytes) -> bool:
        spooled = self.spooled_bytes
        if not spooled and (not self._memory or self._memory_bytes < self._memory_max_bytes):
            self._memory.append(data)
            self._memory_bytes += len(data)
            return True
        return spooled + len(data) <= self._file_max_bytes and self._spool(data)

    def _spool(self, data: bytes) -> bool:
        """Write to the file; return False if the disk is full."""
        try:
            if self._file is None:
                with tempfile.TemporaryFile(prefix="headrace-answers-") as file:
                    self._file = os.dup(file.fileno())
            written = 0
            while written < len(data):
                written += os.pwrite(self._file, data[written:], self._written_at + written)
        except OSError as error:
            if not self._warned:
                logger.warning("answers not spooled to a file: %s", error)
            self._warned = True
            return False
        self._written_at += len(data)
        return True

    def _from_memory(self) -> bytes:
        taken = [self._memory.popleft()]
        size = len(taken[0])
        while self._memory and size + len(self._memory[0]) <= TAKE_BYTES:
            size += len(self._memory[0])
            taken.append(self._memory.popleft())
        self._memory_bytes -= size
        return b"".join(taken)

    def _from_file(self) -> bytes:
        if self._file is None or not self.spooled_bytes:
            return b""
        data = os.pread(self._file, min(TAKE_BYTES, self.spooled_bytes), self._read_at)
        self._read_at += len(data)
        if not self.spooled_bytes:
            os.ftruncate(self._file, 0)
            self._read_at = self._written_at = 0
        return data
