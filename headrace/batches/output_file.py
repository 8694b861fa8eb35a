"""A file that a batch writes: parts of a fixed size, and a last one that grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.batches.files.record import new_file_id
from headrace.batches.files.store import PART_BYTES, FileStore
from headrace.batches.store import SavedProgress

#: The size of every part but the last.
FULL_BYTES: Final = PART_BYTES


class OutputFile:
    """A file to which rows are appended.

    A part is written as soon as it is full, and belongs to the file once its `SavedProgress` is
    saved. So a runner that has lost its batch leaves nothing in the file.

    Args:
        files: writes the parts.
        name: the file's name for clients.
        owner: the id of the API key that owns it; "" without keys.
        keep_s: how long it is kept once its batch has ended.
        mark: a `mark` of the file from which to continue; None for a new file.
    """

    def __init__(
        self,
        files: FileStore,
        name: str,
        owner: str,
        keep_s: int,
        mark: Sequence[str | int] | None = None,
    ) -> None:
        start = mark or (new_file_id(), 0, "")
        self.id, self._offset, self._tail = str(start[0]), int(start[1]), str(start[2])
        self._files = files
        self._name = name
        self._owner = owner
        self._keep_s = keep_s
        # The bytes from `_offset` on, and how many of them the part `_tail` has.
        self._pending = bytearray(
            files.stores.of(self._tail).get(self._tail) if self._tail else b""
        )
        self._written_bytes = len(self._pending)
        # The last part in the file's record, and where it begins.
        self._recorded = (self._tail, self._offset)
        self._new: list[tuple[str, int]] = []
        self._superseded: list[str] = []

    @property
    def size(self) -> int:
        """The size, including what is not saved yet."""
        return self._offset + len(self._pending)

    @property
    def mark(self) -> list[str | int]:
        """Where a runner continues, once what `flush` wrote is saved."""
        return [self.id, self._offset, self._tail]

    def append(self, text: bytes) -> None:
        """Append lines.

        Raises:
            StoreError, BrokerError: a part cannot be written.
        """
        self._pending += text
        while len(self._pending) >= FULL_BYTES:
            self._write_part(FULL_BYTES)
            del self._pending[:FULL_BYTES]
            self._offset += FULL_BYTES
            self._written_bytes, self._tail = 0, ""

    def flush(self) -> None:
        """Write the last part.

        Raises:
            StoreError, BrokerError: it cannot be written.
        """
        if len(self._pending) > self._written_bytes:
            self._write_part(len(self._pending))

    def written(self) -> SavedProgress | None:
        """Return what has to be saved; None if the file is empty."""
        if not self.size:
            return None
        ref, offset = self._recorded
        replaced = ref if any(at == offset for _, at in self._new) else ""
        return SavedProgress(
            self.id, self._name, self._owner, self.size, self._keep_s, replaced, [*self._new]
        )

    def saved(self) -> None:
        """Note that what `written` returned is saved; delete the parts that were replaced."""
        ref, offset = self._recorded
        if ref and any(at == offset for _, at in self._new):
            self._superseded.append(ref)
        if self._new:
            self._recorded = self._new[-1]
        self._new.clear()
        if self._superseded:
            self._files.drop(self.id, self._superseded)
            self._superseded.clear()

    def _write_part(self, count: int) -> None:
        """Write the part that begins at `_offset`."""
        if self._new and self._new[-1][1] == self._offset:
            self._superseded.append(self._new.pop()[0])
        # Like a result, it must not fail because of the limit of payload memory.
        self._tail = self._files.put(self.id, bytes(self._pending[:count]), bounded=False)
        self._written_bytes = count
        self._new.append((self._tail, self._offset))
