"""Rows as one object of S3, made from a local spool when all of them are there: see spooled.py.

boto3 uploads a large object in parts; it appears, complete, with the last request. A killed upload
is repeated from the beginning: the spool still has all rows.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from typing_extensions import override

from extensions.runs.sinks.spooled import Target
from extensions.runs.sources.s3 import RunBucket, S3File
from headrace.errors import ConfigError

ENV_SPOOL_DIR: Final = "HEADRACE_SPOOL_DIR"
_NAME_CHARS: Final = 80


class S3Target(Target):
    """The object that a spool becomes, with its lines as they are."""

    def __init__(self, bucket: RunBucket, key: str) -> None:
        self._bucket = bucket
        self._key = key

    @override
    def describe(self) -> str:
        return self._bucket.url(self._key)

    @override
    def state(self) -> Any:
        found = self._bucket.find(self._key)
        return None if found is None else {"bytes": found.bytes, "etag": found.etag}

    @override
    def check(self) -> None:
        """Begin an upload and abort it, to find out at the start that a write is denied."""
        with self._request() as request:
            begun = self._bucket.client.create_multipart_upload(**request)
            self._bucket.client.abort_multipart_upload(**request, UploadId=begun["UploadId"])

    @override
    def publish(self, spool: Path) -> Any:
        with self._request() as request:
            self._bucket.client.upload_file(str(spool), **request)
        return self.state()

    @override
    def withdraw(self, out: BinaryIO) -> None:
        found = self._bucket.find(self._key)
        if found is None:
            raise ConfigError(f"{self.describe()}: no such object")
        with S3File(self._bucket, found).open() as source:
            shutil.copyfileobj(source, out, 1 << 20)

    @contextmanager
    def _request(self) -> Iterator[dict[str, str]]:
        with self._bucket.errors(self._key):
            yield {"Bucket": self._bucket.name, "Key": self._key}


def spool_path(bucket: RunBucket, key: str) -> Path:
    """Return the path of an output's spool and checkpoint: in a folder of this machine.

    Raises:
        ConfigError: the folder cannot be created.
    """
    default = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    folder = Path(os.environ.get(ENV_SPOOL_DIR) or Path(default, "headrace", "spool"))
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot be created: {error.strerror}",
            hint=f"Set {ENV_SPOOL_DIR} to another folder for spools.",
        ) from None
    identity = f"{bucket.client.meta.endpoint_url} {bucket.name} {key}"
    digest = hashlib.blake2b(identity.encode(), digest_size=6).hexdigest()
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{bucket.name}-{key}")[-_NAME_CHARS:]
    return folder / f"{readable}.{digest}"
