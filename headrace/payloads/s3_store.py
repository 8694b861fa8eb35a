"""The payload store `s3`: objects in a bucket of an S3 server."""

from __future__ import annotations

from typing import ClassVar, Final

from typing_extensions import override

from headrace.errors import ConfigError
from headrace.payloads.s3_client import Bucket
from headrace.payloads.store import Note, PayloadStore, name_in

#: A request takes tens of milliseconds, whatever its size.
S3_CHUNK_BYTES: Final = 2 * 1024 * 1024


class S3PayloadStore(PayloadStore):
    """Payloads as objects under a prefix of a bucket.

    Args:
        bucket: the bucket; only Headrace may write under the prefix.
    """

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
