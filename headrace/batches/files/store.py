"""Files in Redis and the payload store: written in parts, read, listed, deleted.

A part is written in the order of every payload: an entry in the account, the part in its store,
then its reference in the file's record. An incomplete file can be neither read nor listed. If no
part arrives for ABANDONED_S seconds its record expires, and the sweep deletes its parts.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from headrace.access.api_key import EVERYBODY, Caller
from headrace.batches.files.pages import FilePage, page_of
from headrace.batches.files.record import (
    KEEP_MAX_S,
    PURPOSES,
    StoredFile,
    is_file_id,
    new_file_id,
    read_file,
)
from headrace.errors import FileMissing, HeadraceError, StoreUnavailable
from headrace.payloads.index import GRACE_S
from headrace.payloads.store import PayloadEntry, PayloadMissing
from headrace.payloads.stores import PayloadStores
from headrace.redis import keys
from headrace.redis.fields import FileField
from headrace.redis.script_client import ScriptClient
from headrace.redis.scripts import batches as batch_scripts

logger = logging.getLogger(__name__)

#: The largest part; a writer and a reader hold one in memory.
PART_BYTES: Final = 4 * 1024 * 1024
#: An upload is abandoned if no part arrives for this long. It is shorter than the time for which
#: the account protects a part that no record names yet.
ABANDONED_S: Final = GRACE_S - 60
#: The longest time that a part stays in Redis if it is never swept.
_PART_TTL_S: Final = KEEP_MAX_S + 86_400
_MODEL: Final = "-"
_PAGE_IDS: Final = 500


class FileStore:
    """Files. Its methods block and may be called from any thread.

    Args:
        stores: store their parts.
        client: stores their records.
        ttl_s: how long a file is kept by default.
    """

    def __init__(self, stores: PayloadStores, client: ScriptClient, ttl_s: int) -> None:
        self.stores = stores
        self.client = client
        self.ttl_s = ttl_s

    def begin(self, name: str, owner: str) -> FileWriter:
        """Begin to write a file.

        Args:
            name: the name that the client gave.
            owner: the id of the API key that owns it; "" without keys.

        Raises:
            BrokerError: Redis is unavailable or full.
        """
        file_id = new_file_id()
        fields = (FileField.NAME, name, FileField.OWNER, owner)
        self.client.call(batch_scripts.begin_file(file_id, ABANDONED_S * 1000, fields))
        return FileWriter(self, file_id)

    def get(self, file_id: str, caller: Caller = EVERYBODY) -> StoredFile:
        """Return a complete file.

        Args:
            file_id: its id.
            caller: the API key of the request; it sees only its own files.

        Raises:
            FileMissing: no such file.
            BrokerError: Redis is unavailable.
        """
        found = self._read([file_id])[0] if is_file_id(file_id) else None
        if found is None or not caller.may_see(found.owner):
            raise missing_file(file_id)
        return found

    def page(
        self, caller: Caller, *, after: str, limit: int, newest_first: bool, purpose: str
    ) -> FilePage[StoredFile]:
        """Return a page of files.

        Args:
            caller: the API key of the request; it sees only its own files.
            after: the id of the last file before the page, which may be gone; "" for the beginning.
            limit: the most files.
            newest_first: the order.
            purpose: return only files with this purpose; "" for any.

        Raises:
            BrokerError: Redis is unavailable.
        """
        return page_of(
            self.client,
            keys.FILES,
            self._read,
            after=after,
            limit=limit,
            newest_first=newest_first,
            keep=lambda file: (
                file.purpose in ([purpose] if purpose else PURPOSES) and caller.may_see(file.owner)
            ),
        )

    def delete(self, file_id: str, caller: Caller = EVERYBODY) -> None:
        """Delete a file. The sweep deletes parts that cannot be deleted now.

        Raises:
            FileMissing: no such file.
            BrokerError: Redis is unavailable.
        """
        self.get(file_id, caller)
        self.forget(file_id)

    def forget(self, file_id: str) -> None:
        """Delete a file, complete or not.

        Raises:
            BrokerError: Redis is unavailable.
        """
        refs = self._refs(file_id)
        self.client.execute("UNLINK", keys.file(file_id), keys.file_parts(file_id))
        self.client.execute("ZREM", keys.FILES, file_id)
        self.drop(file_id, refs)

    def drop(self, file_id: str, refs: list[str]) -> None:
        """Delete parts that the file's record does not name (any more)."""
        entries = [PayloadEntry(ref, file_id, _MODEL, "f") for ref in refs]
        for at in range(0, len(entries), _PAGE_IDS):
            try:
                self.stores.drop(*entries[at : at + _PAGE_IDS])
            except HeadraceError as error:
                logger.warning(
                    "file parts not deleted, left to the sweep: %s",
                    error.message,
                    extra={"file": file_id},
                )

    def put(self, file_id: str, body: bytes, *, bounded: bool = True) -> str:
        """Write a part that no record names yet; return its reference.

        Raises:
            StoreError, BrokerError: it was not written, or the sweep will delete it.
        """
        entry = self.stores.new_entry(file_id, _MODEL, "f")
        self.stores.put(entry, body, bounded=bounded)
        return entry.ref

    def open(self, file_id: str, caller: Caller = EVERYBODY) -> FileReader:
        """Return a reader of a complete file.

        Raises:
            FileMissing: no such file.
            BrokerError: Redis is unavailable.
        """
        found = self.get(file_id, caller)
        command = ("ZRANGE", keys.file_parts(file_id), 0, -1, "WITHSCORES")
        placed = self.client.execute(*command, withscores=True)
        return FileReader(self.stores, found, [(int(at), ref.decode()) for ref, at in placed])

    def _refs(self, file_id: str) -> list[str]:
        placed = self.client.execute("ZRANGE", keys.file_parts(file_id), 0, -1)
        return [raw.decode() for raw in placed]

    def _read(self, ids: list[str]) -> list[StoredFile | None]:
        found = self.client.read_all([("HGETALL", keys.file(one)) for one in ids])
        return [read_file(one, record) for one, record in zip(ids, found, strict=True)]


class FileWriter:
    """A file that is being written, by one writer.

    Attributes:
        id: its id.
        bytes: the bytes written so far.
    """

    def __init__(self, files: FileStore, file_id: str) -> None:
        self.id = file_id
        self.bytes = 0
        self._files = files

    def add(self, body: bytes) -> None:
        """Write a part of at most PART_BYTES.

        Raises:
            FileMissing: the last part is too long ago, and the file was abandoned.
            StoreError, BrokerError: it was not written; the file can only be abandoned.
        """
        ref = self._files.put(self.id, body)
        size = self.bytes + len(body)
        part = batch_scripts.add_part(
            self.id, ref, offset=self.bytes, size=size, abandoned_ms=ABANDONED_S * 1000,
            part_ttl_ms=_PART_TTL_S * 1000,
        )  # fmt: skip
        (added,) = self._files.client.call(part)
        if not added:
            self._files.drop(self.id, [ref])
            raise _abandoned(self.id)
        self.bytes = size

    def finish(self, purpose: str, ttl_s: int | None = None) -> StoredFile:
        """Complete the file, and return it.

        Args:
            purpose: one of PURPOSES.
            ttl_s: how long it is kept; None for the default.

        Raises:
            FileMissing: the last part is too long ago, and the file was abandoned.
            BrokerError: Redis is unavailable.
        """
        kept_s = self._files.ttl_s if ttl_s is None else ttl_s
        finish = batch_scripts.finish_file(self.id, purpose, kept_s)
        record = self._files.client.call(finish)
        found = read_file(self.id, dict(zip(record[::2], record[1::2], strict=True)))
        if found is None:
            raise _abandoned(self.id)
        return found

    def abandon(self) -> None:
        """Delete what was written; without Redis it expires by itself."""
        try:
            self._files.forget(self.id)
        except HeadraceError as error:
            logger.warning(
                "unfinished file not deleted, it will expire: %s",
                error.message,
                extra={"file": self.id},
            )


class FileReader:
    """The bytes of a complete file. Its methods block and may be called from any thread.

    Attributes:
        file: the file.
    """

    def __init__(
        self, stores: PayloadStores, file: StoredFile, parts: list[tuple[int, str]]
    ) -> None:
        self.file = file
        self._stores = stores
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
        store = self._stores.of(ref)
        try:
            body = store.read(ref, at - self._offsets[place], store.chunk_bytes)
        except PayloadMissing:
            raise missing_file(self.file.id) from None
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


def missing_file(file_id: str) -> FileMissing:
    """Return the error for an unknown file id."""
    return FileMissing(
        f"there is no file {file_id[:64]!r}",
        hint="It was deleted, it has expired, or its upload was not completed.",
    )


def _abandoned(file_id: str) -> FileMissing:
    return FileMissing(
        f"the upload of {file_id} was abandoned: no data for {ABANDONED_S} s",
        hint="Upload it again.",
    )
