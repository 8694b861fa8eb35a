"""A file that a batch writes: parts of a fixed length, and a last one that grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.batches.files.record import new_file_id
from headrace.batches.files.store import PART_BYTES, FileStore
from headrace.batches.store import SavedProgress

#: Every part but the last is so long.
FULL_BYTES: Final = PART_BYTES


class OutputFile:
    """Rows on their way into a file.

    What is appended is written as soon as a part is full, and is in the file once its
    `SavedProgress` was
    saved. Until then nobody names these parts, so that a runner that has lost its batch leaves
    nothing in the file.

    Args:
        files: where parts are written.
        name: what clients see as the file's name.
        owner: the id of the API key whose it is; "" for nobody's.
        keep_s: how long it is kept once its batch has ended.
        mark: what `mark` gave, to go on from there; None for a new file.
    """

    def __init__(
        self,
        files: FileStore,
        name: str,
        owner: str,
        keep_s: int,
        mark: Sequence[str | int] | None = None,
    ) -> None:
        given = mark or (new_file_id(), 0, "")
        self.id, self._offset, self._tail = str(given[0]), int(given[1]), str(given[2])
        self._files = files
        self._name = name
        self._owner = owner
        self._keep_s = keep_s
        # What stands from `_offset` on, and how much of that the part `_tail` has.
        self._begun = bytearray(files.stores.of(self._tail).get(self._tail) if self._tail else b"")
        self._placed = len(self._begun)
        # The last part that the record names, and where it begins.
        self._named = (self._tail, self._offset)
        self._fresh: list[tuple[str, int]] = []
        self._superseded: list[str] = []

    @property
    def size(self) -> int:
        """How long it is, with what is not saved yet."""
        return self._offset + len(self._begun)

    @property
    def mark(self) -> list[str | int]:
        """By which another goes on, once what `flush` wrote was saved."""
        return [self.id, self._offset, self._tail]

    def append(self, text: bytes) -> None:
        """Take lines.

        Raises:
            StoreError, BrokerError: a part cannot be written.
        """
        self._begun += text
        while len(self._begun) >= FULL_BYTES:
            self._place(FULL_BYTES)
            del self._begun[:FULL_BYTES]
            self._offset += FULL_BYTES
            self._placed, self._tail = 0, ""

    def flush(self) -> None:
        """Write what has not been written.

        Raises:
            StoreError, BrokerError: it cannot be.
        """
        if len(self._begun) > self._placed:
            self._place(len(self._begun))

    def written(self) -> SavedProgress | None:
        """What is to be saved; None where the file has nothing in it."""
        if not self.size:
            return None
        ref, offset = self._named
        replaced = ref if any(at == offset for _, at in self._fresh) else ""
        return SavedProgress(
            self.id, self._name, self._owner, self.size, self._keep_s, replaced, [*self._fresh]
        )

    def saved(self) -> None:
        """What `written` gave last is in the record; parts that others replace are deleted."""
        ref, offset = self._named
        if ref and any(at == offset for _, at in self._fresh):
            self._superseded.append(ref)
        if self._fresh:
            self._named = self._fresh[-1]
        self._fresh.clear()
        if self._superseded:
            self._files.drop(self.id, self._superseded)
            self._superseded.clear()

    def _place(self, count: int) -> None:
        """Write the part that begins at `_offset`."""
        if self._fresh and self._fresh[-1][1] == self._offset:
            self._superseded.append(self._fresh.pop()[0])
        # It ends a job, as a result does: it is not held to the limit of payloads.
        self._tail = self._files.put(self.id, bytes(self._begun[:count]), bounded=False)
        self._placed = count
        self._fresh.append((self._tail, self._offset))
