"""Files over Redis and the payload store: written part by part, read, listed, deleted.

The order of a write is that of every payload: an entry in the account, the part in its store, then
the part in the file's record. A file that is not whole is nobody's: it cannot be read or listed,
and where no part comes for a while its record runs out, and the sweep deletes its parts.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from headrace.access.api_key import EVERYBODY
from headrace.access.api_key import Caller as Asker
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
from headrace.redis.keys import FileField
from headrace.redis.script_client import ScriptClient
from headrace.redis.scripts import batches as batch_scripts

logger = logging.getLogger(__name__)

#: A part is so long at the most: what a writer and a reader hold in memory.
PART_BYTES: Final = 4 * 1024 * 1024
#: A file that is being written is given up where no part has come for so long. Shorter than the
#: account leaves a part alone that no record names yet.
ABANDONED_S: Final = GRACE_S - 60
#: How long a part in Redis is kept at the most, should no sweep ever come.
_PART_TTL_S: Final = KEEP_MAX_S + 86_400
_MODEL: Final = "-"
_PAGE_IDS: Final = 500


class FileStore:
    """Files. Its methods block and may be called from any thread.

    Args:
        stores: where their parts lie.
        caller: where their records lie.
        ttl_s: how long a file is kept that does not say.
    """

    def __init__(self, stores: PayloadStores, caller: ScriptClient, ttl_s: int) -> None:
        self.stores = stores
        self.caller = caller
        self.ttl_s = ttl_s

    def begin(self, name: str, owner: str) -> FileWriter:
        """Begin to write a file.

        Args:
            name: as its owner calls it.
            owner: the id of the API key whose it is; "" for nobody's.

        Raises:
            BrokerError: Redis does not answer, or takes no more.
        """
        file_id = new_file_id()
        fields = (FileField.NAME, name, FileField.OWNER, owner)
        self.caller.call(batch_scripts.begin_file(file_id, ABANDONED_S * 1000, fields))
        return FileWriter(self, file_id)

    def get(self, file_id: str, asker: Asker = EVERYBODY) -> StoredFile:
        """A file that is whole.

        Args:
            file_id: which.
            asker: who asks; files of others do not exist for it.

        Raises:
            FileMissing: there is none of that id.
            BrokerError: Redis does not answer.
        """
        found = self._read([file_id])[0] if is_file_id(file_id) else None
        if found is None or not asker.may_see(found.owner):
            raise missing_file(file_id)
        return found

    def page(
        self, asker: Asker, *, after: str, limit: int, newest_first: bool, purpose: str
    ) -> FilePage[StoredFile]:
        """A page of files.

        Args:
            asker: who asks; files of others do not exist for it.
            after: the id of a file, which may be gone; "" for the beginning.
            limit: files at the most.
            newest_first: the order.
            purpose: only of this purpose; "" for any.

        Raises:
            BrokerError: Redis does not answer.
        """
        return page_of(
            self.caller,
            keys.FILES,
            self._read,
            after=after,
            limit=limit,
            newest_first=newest_first,
            keep=lambda file: (
                file.purpose in ([purpose] if purpose else PURPOSES) and asker.may_see(file.owner)
            ),
        )

    def delete(self, file_id: str, asker: Asker = EVERYBODY) -> None:
        """Delete a file. What of its parts cannot be deleted now is left to the sweep.

        Raises:
            FileMissing: there is none of that id.
            BrokerError: Redis does not answer.
        """
        self.get(file_id, asker)
        self.forget(file_id)

    def forget(self, file_id: str) -> None:
        """Delete whatever there is of a file, be it whole or not.

        Raises:
            BrokerError: Redis does not answer.
        """
        refs = self._refs(file_id)
        self.caller.execute("UNLINK", keys.file(file_id), keys.file_parts(file_id))
        self.caller.execute("ZREM", keys.FILES, file_id)
        self.drop(file_id, refs)

    def drop(self, file_id: str, refs: list[str]) -> None:
        """Delete those of these parts that the file's record does not name (any more)."""
        entries = [PayloadEntry(ref, file_id, _MODEL, "f") for ref in refs]
        for at in range(0, len(entries), _PAGE_IDS):
            try:
                self.stores.drop(*entries[at : at + _PAGE_IDS])
            except HeadraceError as error:
                logger.warning(
                    "parts of the file are left to the sweep: %s",
                    error.message,
                    extra={"file": file_id},
                )

    def put(self, file_id: str, body: bytes, *, bounded: bool = True) -> str:
        """Write a part, which no record names yet; its reference.

        Raises:
            StoreError, BrokerError: it is not there, or only until the sweep.
        """
        entry = self.stores.new_entry(file_id, _MODEL, "f")
        self.stores.put(entry, body, bounded=bounded)
        return entry.ref

    def open(self, file_id: str, asker: Asker = EVERYBODY) -> FileReader:
        """Read a file that is whole.

        Raises:
            FileMissing: there is none of that id.
            BrokerError: Redis does not answer.
        """
        found = self.get(file_id, asker)
        command = ("ZRANGE", keys.file_parts(file_id), 0, -1, "WITHSCORES")
        placed = self.caller.execute(*command, withscores=True)
        return FileReader(self.stores, found, [(int(at), ref.decode()) for ref, at in placed])

    def _refs(self, file_id: str) -> list[str]:
        placed = self.caller.execute("ZRANGE", keys.file_parts(file_id), 0, -1)
        return [raw.decode() for raw in placed]

    def _read(self, ids: list[str]) -> list[StoredFile | None]:
        found = self.caller.read_all([("HGETALL", keys.file(one)) for one in ids])
        return [read_file(one, record) for one, record in zip(ids, found, strict=True)]


class FileWriter:
    """A file that is being written, by one writer.

    Attributes:
        id: what it will be called.
        bytes: how much has been written.
    """

    def __init__(self, files: FileStore, file_id: str) -> None:
        self.id = file_id
        self.bytes = 0
        self._files = files

    def add(self, body: bytes) -> None:
        """Write a part, PART_BYTES at the most.

        Raises:
            FileMissing: no part came for too long, and the file was given up.
            StoreError, BrokerError: it was not written; the file can only be dropped.
        """
        ref = self._files.put(self.id, body)
        size = self.bytes + len(body)
        part = batch_scripts.add_part(
            self.id, ref, offset=self.bytes, size=size, abandoned_ms=ABANDONED_S * 1000,
            part_ttl_ms=_PART_TTL_S * 1000,
        )  # fmt: skip
        (joined,) = self._files.caller.call(part)
        if not joined:
            self._files.drop(self.id, [ref])
            raise _given_up(self.id)
        self.bytes = size

    def finish(self, purpose: str, ttl_s: int | None = None) -> StoredFile:
        """The file is whole, and there from now on.

        Args:
            purpose: one of PURPOSES.
            ttl_s: how long it is kept; None for as long as files are.

        Raises:
            FileMissing: no part came for too long, and the file was given up.
            BrokerError: Redis does not answer.
        """
        kept_s = self._files.ttl_s if ttl_s is None else ttl_s
        finish = batch_scripts.finish_file(self.id, purpose, kept_s)
        answer = self._files.caller.call(finish)
        found = read_file(self.id, dict(zip(answer[::2], answer[1::2], strict=True)))
        if found is None:
            raise _given_up(self.id)
        return found

    def abandon(self) -> None:
        """Delete what was written; where Redis does not answer, it runs out by itself."""
        try:
            self._files.forget(self.id)
        except HeadraceError as error:
            logger.warning(
                "the unfinished file is left to run out: %s", error.message, extra={"file": self.id}
            )


class FileReader:
    """A whole file's bytes. Its methods block and may be called from any thread.

    Attributes:
        file: what it reads.
    """

    def __init__(
        self, stores: PayloadStores, file: StoredFile, parts: list[tuple[int, str]]
    ) -> None:
        self.file = file
        self._stores = stores
        self._offsets = [offset for offset, _ in parts]
        self._refs = [ref for _, ref in parts]

    def read(self, at: int) -> bytes:
        """Some bytes from `at` on, at least one before the end, and none behind it.

        Raises:
            FileMissing: the file was deleted meanwhile, or has expired.
            StoreError, BrokerError: the store does not answer.
        """
        if at >= self.file.bytes:
            return b""
        place = bisect_right(self._offsets, at) - 1
        if place < 0:
            raise StoreUnavailable(f"the beginning of the file {self.file.id} is not to be found")
        ref = self._refs[place]
        store = self._stores.of(ref)
        try:
            body = store.read(ref, at - self._offsets[place], store.chunk_bytes)
        except PayloadMissing:
            raise missing_file(self.file.id) from None
        if not body:
            raise StoreUnavailable(f"a part of the file {self.file.id} is shorter than it was")
        return body

    def chunks(self, at: int = 0) -> Iterator[bytes]:
        """All bytes from `at` on; errors as for `read`."""
        while chunk := self.read(at):
            yield chunk
            at += len(chunk)


def missing_file(file_id: str) -> FileMissing:
    """The error for an id under which there is no file."""
    return FileMissing(
        f"there is no file {file_id[:64]!r}",
        hint="It was deleted, or has expired, or its upload was never completed.",
    )


def _given_up(file_id: str) -> FileMissing:
    return FileMissing(
        f"the upload of {file_id} was given up: nothing came for {ABANDONED_S} s",
        hint="Upload it again.",
    )
