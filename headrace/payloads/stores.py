"""Payloads in a folder, in Redis and in S3, and ranges of them.

By its settings a deployment has one store for new payloads, and all for reads. It may change
payload_store while the old store still has payloads. All stores whose settings are present are read
and swept.
"""

from __future__ import annotations

import base64
import errno
import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec
import redis
from redis.exceptions import RedisError
from typing_extensions import override

from headrace.config.settings import Settings
from headrace.errors import (
    BrokerError,
    ConfigError,
    HeadraceError,
    InputUnavailable,
    PayloadTooLarge,
    StoreFull,
    StoreUnavailable,
)
from headrace.jobs.message import PayloadRange
from headrace.payloads.index import PayloadIndex
from headrace.payloads.s3_client import PAYLOAD_READ_TIMEOUT_S, TRIES, Bucket, s3_client
from headrace.payloads.store import Note, PayloadEntry, PayloadStore, missing, name_in, new_entry
from headrace.redis import keys
from headrace.redis.connection import connect
from headrace.redis.outages import translate

logger = logging.getLogger(__name__)

_READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class FilePayloadStore(PayloadStore):
    """Payloads in a folder, the same on every host, which is created if it is missing."""

    name: ClassVar[str] = "file"

    def __init__(self, note: Note, folder: Path) -> None:
        super().__init__(note)
        self.folder = folder.absolute()

    @override
    def read(self, ref: str, start: int, length: int | None) -> bytes:
        try:
            with open(os.open(self._path(ref), _READ_FLAGS), "rb") as file:
                file.seek(start)
                return file.read(-1 if length is None else length)
        except OSError as error:
            raise self._why(error, ref) from error

    @override
    def size(self, ref: str) -> int:
        try:
            return self._path(ref).lstat().st_size
        except OSError as error:
            raise self._why(error, ref) from error

    @override
    def delete(self, ref: str) -> None:
        path = self._path(ref)
        try:
            for leftover in (_unfinished(path), path):
                leftover.unlink(missing_ok=True)
        except OSError as error:
            raise self._why(error, ref) from error

    @override
    def check(self) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"payload_dir: {self.folder} cannot be created: {error.strerror}",
                hint="Set it to a folder that the API and all workers may write to.",
            ) from None
        if not os.access(self.folder, os.R_OK | os.W_OK | os.X_OK):
            raise ConfigError(
                f"payload_dir: this user may not read and write {self.folder}",
                hint="Run the API and all workers as the owner of the folder.",
            )

    @override
    def _write(self, name: str, body: bytes) -> None:
        path = self._path(f"{self.name}:{name}")
        unfinished = _unfinished(path)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(os.open(unfinished, _WRITE_FLAGS, 0o600), "wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(path)
            sync_folder(path.parent)
        except OSError as error:
            # A disk that is full needs the room.
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise self._why(error, name) from error

    def _path(self, ref: str) -> Path:
        # Subfolders keep the folders small for the file system.
        name = name_in(ref, self.name)
        return self.folder / name[:2] / name

    def _why(self, error: OSError, ref: str) -> Exception:
        if isinstance(error, FileNotFoundError) and self.folder.is_dir():
            return missing(ref)
        # Clients see no path; the log does, by the cause.
        if error.errno in _NO_ROOM:
            return StoreFull(
                "the disk of the payload store is full",
                hint="Make room, or move payload_dir.",
            )
        return StoreUnavailable(
            f"the payload store `file` cannot be used: {os.strerror(error.errno or errno.EIO)}",
            hint="See the server's log. payload_dir must be the same folder on all hosts.",
        )


def _unfinished(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, even if the machine crashes; raise OSError if not."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


#: Redis' own limit of a string (proto-max-bulk-len).
VALUE_MAX_BYTES: Final = 512 * 1024 * 1024


class RedisPayloadStore(PayloadStore):
    """Payloads in Redis."""

    name: ClassVar[str] = "redis"
    together: ClassVar[bool] = True

    def __init__(self, index: PayloadIndex, client: redis.Redis) -> None:
        super().__init__(index.note)
        self.index = index
        self._client: Any = client

    @override
    def put(
        self, entry: PayloadEntry, body: bytes, *, bounded: bool = True, spare: bool = False
    ) -> None:
        name_in(entry.ref, self.name)
        if len(body) >= VALUE_MAX_BYTES:
            raise PayloadTooLarge(
                f"a payload of {len(body)} bytes is too large for Redis ({VALUE_MAX_BYTES})",
                hint="Set payload_store to file or s3.",
            )
        self.index.note(entry, body, bounded=bounded, spare=spare)

    @override
    def put_all(self, payloads: Sequence[tuple[PayloadEntry, bytes]]) -> list[HeadraceError | None]:
        try:
            written = self.index.note_all(payloads)
        except BrokerError as error:
            # One by one they would wait just as long again.
            return [error for _ in payloads]
        return [
            None if done else self._error_of(*one)
            for one, done in zip(payloads, written, strict=True)
        ]

    @override
    def read(self, ref: str, start: int, length: int | None) -> bytes:
        if not start and length is None:
            body: bytes = self._ask(ref, "GET")  # which does not copy, as GETRANGE does
        else:
            end = -1 if length is None else start + length - 1
            body = self._ask(ref, "GETRANGE", start, end)
        if not body and not start:
            raise missing(ref)
        return body

    @override
    def size(self, ref: str) -> int:
        length = int(self._ask(ref, "STRLEN"))
        if not length:
            # Empty payloads are never stored, so this one is missing.
            raise missing(ref)
        return length

    @override
    def delete(self, ref: str) -> None:
        self._ask(ref, "UNLINK")

    def _ask(self, ref: str, command: str, *arguments: int) -> Any:
        key = keys.payload(name_in(ref, self.name))
        try:
            return self._client.execute_command(command, key, *arguments)
        except RedisError as error:
            raise translate(error) from error


#: A request takes tens of milliseconds, whatever its size.
S3_CHUNK_BYTES: Final = 2 * 1024 * 1024


class S3PayloadStore(PayloadStore):
    """Payloads as objects under a prefix of a bucket, where only Headrace may write."""

    name: ClassVar[str] = "s3"
    chunk_bytes: int = S3_CHUNK_BYTES

    def __init__(self, note: Note, bucket: Bucket, prefix: str) -> None:
        super().__init__(note)
        self._bucket = bucket
        self._prefix = prefix

    @override
    def read(self, ref: str, start: int, length: int | None) -> bytes:
        return self._bucket.read(self._key(ref), start, length)

    @override
    def size(self, ref: str) -> int:
        return self._bucket.size(self._key(ref))

    @override
    def delete(self, ref: str) -> None:
        self._bucket.delete(self._key(ref))

    @override
    def check(self) -> None:
        wrong = self._bucket.problem()
        if wrong in ("404", "NoSuchBucket"):
            raise ConfigError(
                f"payload_bucket: the S3 server has no bucket {self._bucket.name}",
                hint="Create it, or correct payload_bucket and payload_endpoint_url.",
            )
        if wrong:
            raise ConfigError(
                f"payload_bucket: the bucket {self._bucket.name} cannot be used: {wrong}",
                hint="Give boto credentials that may read, write and delete in it.",
            )

    @override
    def _write(self, name: str, body: bytes) -> None:
        self._bucket.write(self._prefix + name, body)

    def _key(self, ref: str) -> str:
        return self._prefix + name_in(ref, self.name)


#: Large payloads take longer than a command does.
SOCKET_TIMEOUT_S: Final = 30.0
#: How many payloads one process moves at a time.
THREADS: Final = 8


class PayloadStores:
    """All configured stores, of which `default` gets new payloads, and their index."""

    def __init__(
        self, index: PayloadIndex, stores: list[PayloadStore], default: str, client: redis.Redis
    ) -> None:
        self.index = index
        self._stores = {store.name: store for store in stores}
        self.default = self._stores[default]
        self.client = client

    def check(self) -> None:
        """Check at the start whether new payloads can be stored; raise ConfigError if not."""
        try:
            self.default.check()
        except ConfigError:
            raise
        except HeadraceError as error:
            logger.warning("payload store %s: %s", self.default.name, error.message)

    def new_entry(self, job_id: str, model: str, kind: str, owner: str = "") -> PayloadEntry:
        """Return an entry for a new payload; see `PayloadEntry`."""
        return new_entry(self.default.name, job_id, model, kind, owner)

    def put(
        self, entry: PayloadEntry, body: bytes, *, bounded: bool = True, spare: bool = False
    ) -> None:
        """Write a new payload; see `PayloadStore.put`."""
        self._stores[entry.store].put(entry, body, bounded=bounded, spare=spare)

    def of(self, ref: str) -> PayloadStore:
        """Return the store of a reference; raise InputUnavailable if it is not configured here."""
        kind = ref.partition(":")[0]
        store = self._stores.get(kind)
        if store is None:
            raise InputUnavailable(
                f"the payload is in the store {kind[:16]!r}, which is not configured on this server"
            )
        return store

    def drop(self, *entries: PayloadEntry) -> None:
        """Delete payloads that are not needed any more; after an error the sweep tries again."""
        self._delete(self.index.look(*entries))

    def sweep(self) -> int:
        """Delete due payloads not needed; return how many were checked, or raise BrokerError."""
        looked, unneeded = self.index.due()
        for entry in unneeded:
            try:
                self._delete([entry])
            except HeadraceError as error:
                logger.warning(
                    "payload %s not deleted, the next sweep retries: %s", entry.ref, error.message
                )
        return looked

    def close(self) -> None:
        """Close the connection to Redis."""
        self.client.close()

    def _delete(self, entries: list[PayloadEntry]) -> None:
        for entry in entries:
            self.of(entry.ref).delete(entry.ref)
            self.index.forget(entry)


def build_stores(settings: Settings, redis_url: str, s3_tries: int = TRIES) -> PayloadStores:
    """Return the stores of the settings. They connect when they are first used.

    Args:
        s3_tries: how often one request to S3 is tried; once, if the caller tries it again itself.

    Raises:
        ConfigError: the settings of payload_store are missing.
    """
    client = connect(redis_url, socket_timeout=SOCKET_TIMEOUT_S)
    index = PayloadIndex(client, settings.max_payload_memory_bytes, settings.payload_bytes_per_key)
    stores: list[PayloadStore] = [RedisPayloadStore(index, client)]
    if settings.payload_dir is not None:
        stores.append(FilePayloadStore(index.note, settings.payload_dir))
    if settings.payload_bucket is not None:
        url = settings.payload_endpoint_url
        s3 = s3_client(url, THREADS, s3_tries, PAYLOAD_READ_TIMEOUT_S)
        bucket = Bucket(settings.payload_bucket, s3)
        stores.append(S3PayloadStore(index.note, bucket, settings.payload_prefix))
    wanted = {"file": "payload_dir", "s3": "payload_bucket"}
    if settings.payload_store not in {store.name for store in stores}:
        raise ConfigError(
            f"payload_store: {settings.payload_store} needs {wanted[settings.payload_store]}, "
            "which is not set",
            hint=f"Set it, or HEADRACE_{wanted[settings.payload_store].upper()}.",
        )
    return PayloadStores(index, stores, settings.payload_store, client)


#: Around the base64 of a range that is not JSON.
_HEAD = b'{"content_type":%s,"base64":"'
_TAIL = b'"}'


def read_parts(stores: PayloadStores, parts: Iterable[str | PayloadRange]) -> bytes:
    """Join texts and payload ranges; a range that is not JSON becomes an object with its base64.

    Raises:
        PayloadMissing, StoreError, BrokerError: a payload cannot be read.
        InputUnavailable: a payload is shorter than its range.
    """
    texts = []
    for part in parts:
        text = part.encode() if isinstance(part, str) else read_bytes(stores, part)
        if isinstance(part, PayloadRange) and part.type:
            text = b"%s%s%s" % (_head(part.type), base64.b64encode(text), _TAIL)
        texts.append(text)
    return b"".join(texts)


def read_bytes(stores: PayloadStores, part_range: PayloadRange) -> bytes:
    """Read the bytes of a range; errors as for `read_parts`."""
    body = stores.of(part_range.ref).read(part_range.ref, part_range.start, part_range.length)
    if len(body) != part_range.length:
        raise InputUnavailable(f"the payload store has {len(body)} of {part_range.length} bytes")
    return body


def size_of(parts: Iterable[str | PayloadRange]) -> int:
    """Return the length of the joined text in bytes."""
    total = 0
    for part in parts:
        if isinstance(part, str):
            total += len(part.encode())
        elif part.type:
            total += len(_head(part.type)) + (part.length + 2) // 3 * 4 + len(_TAIL)
        else:
            total += part.length
    return total


def _head(content_type: str) -> bytes:
    return _HEAD % msgspec.json.encode(content_type)
