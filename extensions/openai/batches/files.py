"""Files that clients upload and batches write: their records in Redis, their bytes in parts.

A part is written as every payload is: first an entry in the index, then the part in its store. Its
reference in the file's record comes last. An incomplete file can be neither read nor listed. If no
part arrives for ABANDONED_S seconds its record expires, and the sweep deletes its parts.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from typing_extensions import override

from extensions.openai.batches.lists import RecordStore
from extensions.openai.redis import keys as batch_keys
from extensions.openai.redis import script
from extensions.openai.redis.keys import FileField
from headrace.access.api_key import EVERYBODY, Caller
from headrace.errors import FileMissing, HeadraceError, StoreUnavailable
from headrace.payloads.index import GRACE_S
from headrace.payloads.store import PayloadEntry, PayloadMissing
from headrace.payloads.stores import PayloadStores
from headrace.redis import keys
from headrace.redis.script_client import ScriptClient
from headrace.redis.scripts import pages_of

logger = logging.getLogger(__name__)

#: The purpose of a file that a client uploads.
BATCH: Final = "batch"
PURPOSES: Final = (BATCH, "batch_output")
#: The longest time that a file is kept, in seconds.
KEEP_MAX_S: Final = 30 * 86_400
NAME_MAX_CHARS: Final = 255

#: The largest part; a writer and a reader hold one in memory.
PART_BYTES: Final = 4 * 1024 * 1024
#: An upload is abandoned if no part arrives for this long. It is shorter than the time for which
#: the index protects a part that no record names yet.
ABANDONED_S: Final = GRACE_S - 60
#: The longest time that a part stays in Redis if it is never swept.
_PART_TTL_S: Final = KEEP_MAX_S + 86_400
#: In the place of a model in the entries of parts.
_MODEL: Final = "-"


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A complete file.

    Attributes:
        id: sorts by the time of creation.
        expires_at: when it expires, in seconds since 1970.
        owner: the id of the API key that owns it; "" without keys.
    """

    id: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    owner: str = ""


class FileStore(RecordStore[StoredFile]):
    """Files."""

    prefix = "file-"
    record_key = keys.file
    every = batch_keys.FILES
    of = batch_keys.files_of

    def __init__(self, stores: PayloadStores, client: ScriptClient, ttl_s: int) -> None:
        super().__init__(client)
        self.stores = stores
        self.ttl_s = ttl_s

    @override
    def decode(self, item_id: str, record: Mapping[bytes, bytes]) -> StoredFile | None:
        text = {name.decode(): value.decode("utf-8", "replace") for name, value in record.items()}
        if text.get(FileField.STATE) != "p":
            return None
        return StoredFile(
            id=item_id,
            bytes=int(text[FileField.BYTES]),
            created_at=int(text[FileField.CREATED]),
            expires_at=int(text[FileField.EXPIRES]),
            filename=text[FileField.NAME],
            purpose=text[FileField.PURPOSE],
            owner=text.get(FileField.OWNER, ""),
        )

    @override
    def missing(self, item_id: str) -> FileMissing:
        return FileMissing(
            f"there is no file {item_id[:64]!r}",
            hint="It was deleted, it has expired, or its upload was not completed.",
        )

    def begin(self, name: str, owner: str) -> FileWriter:
        """Begin to write a file."""
        file_id = self.new_id()
        fields = (FileField.NAME, name, FileField.OWNER, owner)
        self.client.call(script("files/begin").call([], file_id, ABANDONED_S * 1000, *fields))
        return FileWriter(self, file_id, owner)

    def delete(self, file_id: str, caller: Caller = EVERYBODY) -> None:
        """Delete a file. The sweep deletes parts that cannot be deleted now.

        Raises:
            FileMissing: no such file.
        """
        self.get(file_id, caller)
        self.forget(file_id)

    def forget(self, file_id: str) -> None:
        """Delete a file, complete or not."""
        refs = [ref for _, ref in self._parts(file_id)]
        self.client.execute("UNLINK", keys.file(file_id), keys.file_parts(file_id))
        self.remove([file_id])
        self.drop(file_id, refs)

    def drop(self, file_id: str, refs: list[str]) -> None:
        """Delete parts that the file's record does not name (any more)."""
        entries = [PayloadEntry(ref, file_id, _MODEL, "f") for ref in refs]
        for some in pages_of(entries, 500):
            try:
                self.stores.drop(*some)
            except HeadraceError as error:
                text = "file parts not deleted, left to the sweep: %s"
                logger.warning(text, error.message, extra={"file": file_id})
                return

    def put(self, file_id: str, body: bytes, owner: str, *, bounded: bool = True) -> str:
        """Write a part that no record names yet; return its reference.

        Raises:
            StoreError: it was not written, or the sweep will delete it.
        """
        entry = self.stores.new_entry(file_id, _MODEL, "f", owner)
        self.stores.put(entry, body, bounded=bounded)
        return entry.ref

    def open(self, file_id: str, caller: Caller = EVERYBODY) -> FileReader:
        """Return a reader of a complete file.

        Raises:
            FileMissing: no such file.
        """
        return FileReader(self, self.get(file_id, caller), self._parts(file_id))

    def _parts(self, file_id: str) -> list[tuple[int, str]]:
        """Return where each part begins, and its reference."""
        command = ("ZRANGE", keys.file_parts(file_id), 0, -1, "WITHSCORES")
        placed = self.client.execute(*command, withscores=True)
        return [(int(at), ref.decode()) for ref, at in placed]


class FileWriter:
    """A file that is being written, by one writer."""

    def __init__(self, files: FileStore, file_id: str, owner: str) -> None:
        self.id = file_id
        self._owner = owner
        self.bytes = 0
        self._files = files

    def add(self, body: bytes) -> None:
        """Write a part of at most PART_BYTES.

        Raises:
            FileMissing: the last part is too long ago, and the file was abandoned.
            StoreError, BrokerError: it was not written; the file can only be abandoned.
        """
        ref = self._files.put(self.id, body, self._owner)
        size = self.bytes + len(body)
        times = (ABANDONED_S * 1000, _PART_TTL_S * 1000)
        part = script("files/part").call([], self.id, ref, self.bytes, size, *times)
        (added,) = self._files.client.call(part)
        if not added:
            self._files.drop(self.id, [ref])
            raise _abandoned(self.id)
        self.bytes = size

    def finish(self, purpose: str, ttl_s: int | None = None) -> StoredFile:
        """Complete the file, and return it.

        Args:
            ttl_s: how long it is kept; None for the default.

        Raises:
            FileMissing: the last part is too long ago, and the file was abandoned.
        """
        kept_s = self._files.ttl_s if ttl_s is None else ttl_s
        finish = script("files/finish").call([], self.id, purpose, kept_s)
        record = self._files.client.call(finish)
        if not record:
            raise _abandoned(self.id)
        return self._files.decoded(self.id, record)

    def abandon(self) -> None:
        """Delete the written parts; without Redis they expire by themselves."""
        try:
            self._files.forget(self.id)
        except HeadraceError as error:
            text = "unfinished file not deleted, it will expire: %s"
            logger.warning(text, error.message, extra={"file": self.id})


class FileReader:
    """The bytes of a complete file. Its methods block, and any thread may call them."""

    def __init__(self, files: FileStore, file: StoredFile, parts: list[tuple[int, str]]) -> None:
        self.file = file
        self._files = files
        self._offsets = [offset for offset, _ in parts]
        self._refs = [ref for _, ref in parts]

    def read(self, at: int) -> bytes:
        """Read some bytes from `at` on: at least one before the end, and b"" at the end.

        Raises:
            FileMissing: the file was deleted or has expired.
            StoreError, BrokerError: the store is unavailable.
        """
        if at >= self.file.bytes:
            return b""
        place = bisect_right(self._offsets, at) - 1
        if place < 0:
            raise StoreUnavailable(f"the beginning of the file {self.file.id} is missing")
        ref = self._refs[place]
        store = self._files.stores.of(ref)
        try:
            body = store.read(ref, at - self._offsets[place], store.chunk_bytes)
        except PayloadMissing:
            raise self._files.missing(self.file.id) from None
        if not body:
            raise StoreUnavailable(
                f"a part of the file {self.file.id} is shorter than when it was written"
            )
        return body

    def chunks(self, at: int = 0) -> Iterator[bytes]:
        """Yield all bytes from `at` on; errors as for `read`."""
        while chunk := self.read(at):
            yield chunk
            at += len(chunk)


def _abandoned(file_id: str) -> FileMissing:
    return FileMissing(
        f"the upload of {file_id} was abandoned: no data for {ABANDONED_S} s",
        hint="Upload it again.",
    )
