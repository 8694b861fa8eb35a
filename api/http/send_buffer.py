"""Buffer answers for a client that reads them too slowly, within the room of the process."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections import deque
from typing import Final, Self

logger = logging.getLogger(__name__)

#: The most bytes of one buffer in memory, and in a file behind that; beyond both, `put` waits.
MEMORY_MAX_BYTES: Final = 8 * 1024 * 1024
FILE_MAX_BYTES: Final = 1024 * 1024 * 1024
#: The most bytes of all buffers of a process.
ALL_MEMORY_MAX_BYTES: Final = 64 * 1024 * 1024
ALL_FILES_MAX_BYTES: Final = 2 * FILE_MAX_BYTES
#: The most bytes of one `take` from a file.
TAKE_BYTES: Final = 256 * 1024


class Room:
    """What all buffers of a process may hold together, in memory or in files.

    A buffer may hold as much as is free. So a single buffer has at most half of the room, and there
    is always room for another one.
    """

    def __init__(self, max_bytes: int) -> None:
        self.used_bytes = 0
        self._max_bytes = max_bytes

    def fits(self, held_bytes: int, new_bytes: int) -> bool:
        """Return whether a buffer that holds `held_bytes` may hold these too."""
        return held_bytes + new_bytes <= self._max_bytes - self.used_bytes - new_bytes


class SendBuffer:
    """A queue of bytes between the task that answers and the task that sends.

    Args:
        file_max_bytes: the most bytes in an unnamed temporary file.
        memory: the room in memory that it shares with other buffers; None for its own.
        files: the same in files.
    """

    def __init__(
        self,
        memory_max_bytes: int = MEMORY_MAX_BYTES,
        file_max_bytes: int = FILE_MAX_BYTES,
        *,
        memory: Room | None = None,
        files: Room | None = None,
    ) -> None:
        self._memory_room = memory or Room(ALL_MEMORY_MAX_BYTES)
        self._file_room = files or Room(ALL_FILES_MAX_BYTES)
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
        self._memory_room.used_bytes -= self._memory_bytes
        self._file_room.used_bytes -= self.spooled_bytes
        self._memory_bytes = self._read_at = self._written_at = 0
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @property
    def spooled_bytes(self) -> int:
        """The bytes in the file."""
        return self._written_at - self._read_at

    async def put(self, data: bytes, stalled_s: float | None = None) -> None:
        """Add bytes once there is room; raise TimeoutError if nothing was taken for `stalled_s`."""
        while not self._keep(data):
            self._drained.clear()
            async with asyncio.timeout(stalled_s):
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
        spooled, new = self.spooled_bytes, len(data)
        has_room = self._memory_bytes < self._memory_max_bytes and self._memory_room.fits(
            self._memory_bytes, new
        )
        if not spooled and (not self._memory or has_room):
            self._memory.append(data)
            self._memory_bytes += new
            self._memory_room.used_bytes += new
            return True
        fits = spooled + new <= self._file_max_bytes and self._file_room.fits(spooled, new)
        return fits and self._spool(data)

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
        self._file_room.used_bytes += len(data)
        return True

    def _from_memory(self) -> bytes:
        data = self._memory.popleft()
        self._memory_bytes -= len(data)
        self._memory_room.used_bytes -= len(data)
        return data

    def _from_file(self) -> bytes:
        if self._file is None or not self.spooled_bytes:
            return b""
        data = os.pread(self._file, min(TAKE_BYTES, self.spooled_bytes), self._read_at)
        self._read_at += len(data)
        self._file_room.used_bytes -= len(data)
        if not self.spooled_bytes:
            os.ftruncate(self._file, 0)
            self._read_at = self._written_at = 0
        return data


class SendBuffers:
    """The buffers of one process."""

    def __init__(self) -> None:
        self._memory = Room(ALL_MEMORY_MAX_BYTES)
        self._files = Room(ALL_FILES_MAX_BYTES)

    def new(self) -> SendBuffer:
        """Return a buffer; it has room while it is entered."""
        return SendBuffer(memory=self._memory, files=self._files)
