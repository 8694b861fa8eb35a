"""Rows as one object of S3, made from a local spool when all of them are there: see spooled.py.

Long ones go up in parts. Which upload it is stands in a file beside the spool, so that after a kill
only the parts that are missing follow; the object appears, whole, with the last request.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import msgspec

from headrace.errors import ConfigError
from headrace.runs.checkpoint_file import replace_file
from headrace.runs.sources.s3 import Bucket, ObjectInfo, S3File

ENV_SPOOL_DIR: Final = "HEADRACE_SPOOL_DIR"
#: An upload has 10,000 parts at the most, and each but the last 5 MiB at the least.
PART_BYTES: Final = 16 << 20
PARTS_MAX: Final = 9_000
UPLOADERS: Final = 4
_DIGEST: Final = "headrace-digest"
_NAME_CHARS: Final = 80


class _Upload(msgspec.Struct):
    """An upload that has begun: of what, and under which id."""

    digest: str
    part_bytes: int
    upload_id: str


class OutputFormat(Protocol):
    """How the lines of a spool become the bytes of an object, and back."""

    def make(self, spool: Path) -> Path:
        """The file to upload: the spool itself, or one beside it."""

    def unmake(self, body: Path, out: BinaryIO) -> None:
        """Write the lines again."""


class Lines:
    """The lines as they are."""

    def make(self, spool: Path) -> Path:
        """The spool itself."""
        return spool

    def unmake(self, body: Path, out: BinaryIO) -> None:
        """Copy them."""
        with body.open("rb") as file:
            shutil.copyfileobj(file, out)


class S3Target:
    """An object as what a spool is made into.

    Args:
        bucket: where it goes.
        key: its name.
        form: what it holds.
    """

    def __init__(self, bucket: Bucket, key: str, form: OutputFormat) -> None:
        self._bucket = bucket
        self._key = key
        self._form = form

    def describe(self) -> str:
        """Its URL."""
        return self._bucket.url(self._key)

    def look(self) -> Any:
        """Size and ETag; None where there is none."""
        found = self._bucket.find(self._key)
        return None if found is None else {"bytes": found.bytes, "etag": found.etag}

    def check(self) -> None:
        """Begin an upload and end it at once: a night later would be too late to be refused.

        Raises:
            ConfigError: nothing may be written there.
        """
        with self._asked() as asked:
            begun = self._bucket.client.create_multipart_upload(**asked)
            self._bucket.client.abort_multipart_upload(**asked, UploadId=begun["UploadId"])

    def publish(self, spool: Path) -> Any:
        """Upload what is made of the spool."""
        made = self._form.make(spool)
        digest, size = _digest(made)
        note = spool.with_name(f"{spool.name}.upload")
        if self._digest_there() != digest:
            if size <= PART_BYTES:
                with self._asked() as asked, made.open("rb") as file:
                    self._bucket.client.put_object(**asked, Body=file, Metadata={_DIGEST: digest})
            else:
                self._upload(made, size, digest, note)
        note.unlink(missing_ok=True)
        if made != spool:
            made.unlink()
        return self.look()

    def withdraw(self, out: BinaryIO) -> None:
        """Fetch it, and write its rows as lines."""
        found = self._bucket.find(self._key)
        if found is None:
            raise ConfigError(f"{self.describe()}: no such object")
        body = Path(f"{out.name}.object")
        try:
            self._fetch(found, body)
            self._form.unmake(body, out)
        finally:
            body.unlink(missing_ok=True)

    def _fetch(self, found: ObjectInfo, body: Path) -> None:
        with S3File(self._bucket, found).open() as source, body.open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)

    def _digest_there(self) -> str | None:
        """What the object was made from, where it was made by a run."""
        if self._bucket.find(self._key) is None:
            return None
        with self._asked() as asked:
            found = self._bucket.client.head_object(**asked)
        digest: str | None = found["Metadata"].get(_DIGEST)
        return digest

    def _upload(self, made: Path, size: int, digest: str, note: Path) -> None:
        upload = self._begun(note, digest) or self._begin(size, digest, note)
        there = self._parts(upload)
        count = -(-size // upload.part_bytes)

        def part(number: int) -> dict[str, Any]:
            offset = (number - 1) * upload.part_bytes
            length = min(upload.part_bytes, size - offset)
            known = there.get(number)
            if known is not None and known[0] == length:
                return {"PartNumber": number, "ETag": known[1]}
            with made.open("rb") as file:
                body = os.pread(file.fileno(), length, offset)
            with self._asked() as asked:
                done = self._bucket.client.upload_part(
                    **asked, UploadId=upload.upload_id, PartNumber=number, Body=body
                )
            return {"PartNumber": number, "ETag": done["ETag"]}

        with ThreadPoolExecutor(UPLOADERS, "s3-upload") as pool:
            parts = list(pool.map(part, range(1, count + 1)))
        with self._asked() as asked:
            self._bucket.client.complete_multipart_upload(
                **asked, UploadId=upload.upload_id, MultipartUpload={"Parts": parts}
            )

    def _begun(self, note: Path, digest: str) -> _Upload | None:
        """The upload of the same bytes that a process before this one had begun."""
        try:
            upload = msgspec.json.decode(note.read_bytes(), type=_Upload)
        except (OSError, msgspec.DecodeError):
            return None
        if upload.digest == digest and self._lives(upload):
            return upload
        with suppress(ConfigError), self._asked() as asked:
            self._bucket.client.abort_multipart_upload(**asked, UploadId=upload.upload_id)
        return None

    def _begin(self, size: int, digest: str, note: Path) -> _Upload:
        with self._asked() as asked:
            begun = self._bucket.client.create_multipart_upload(**asked, Metadata={_DIGEST: digest})
        part_bytes = max(PART_BYTES, -(-size // PARTS_MAX))
        upload = _Upload(digest, part_bytes, begun["UploadId"])
        replace_file(note, msgspec.json.encode(upload))
        return upload

    def _lives(self, upload: _Upload) -> bool:
        from botocore.exceptions import ClientError

        with self._asked() as asked:
            try:
                self._bucket.client.list_parts(**asked, UploadId=upload.upload_id, MaxParts=1)
            except ClientError:
                return False
        return True

    def _parts(self, upload: _Upload) -> dict[int, tuple[int, str]]:
        """The parts that are there: length and ETag of each."""
        with self._asked() as asked:
            pages = self._bucket.client.get_paginator("list_parts")
            return {
                part["PartNumber"]: (part["Size"], part["ETag"])
                for page in pages.paginate(**asked, UploadId=upload.upload_id)
                for part in page.get("Parts", ())
            }

    @contextmanager
    def _asked(self) -> Iterator[dict[str, str]]:
        with self._bucket.errors(self._key):
            yield {"Bucket": self._bucket.name, "Key": self._key}


def spool_of(bucket: Bucket, key: str) -> Path:
    """Where the spool and the checkpoint of an output lie: in a folder of this machine.

    Raises:
        ConfigError: the folder cannot be made.
    """
    default = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    folder = Path(os.environ.get(ENV_SPOOL_DIR) or Path(default, "headrace", "spool"))
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot be made: {error.strerror}",
            hint=f"Name another folder for spools by {ENV_SPOOL_DIR}.",
        ) from None
    said = f"{bucket.client.meta.endpoint_url} {bucket.name} {key}"
    mark = hashlib.blake2b(said.encode(), digest_size=6).hexdigest()
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{bucket.name}-{key}")[-_NAME_CHARS:]
    return folder / f"{readable}.{mark}"


def _digest(path: Path) -> tuple[str, int]:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256")
        return found.hexdigest(), file.tell()
