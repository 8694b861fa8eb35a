"""S3 as a run uses it, with its user's own credentials: objects found, read and written.

Needs boto3 (the extra `s3`), which finds credentials, region and `AWS_ENDPOINT_URL` by itself. An
outage is borne for about a minute by boto's own tries; then the run ends, and can be gone on with.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, cast

from typing_extensions import override

from headrace.errors import ConfigError, Conflict, HeadraceError, InvalidRequest, StoreUnavailable
from headrace.payloads.s3_store import error_code, s3_client
from headrace.runs.sources.brace_expansion import expand
from headrace.runs.sources.files import SourceFile, changed

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

SCHEME: Final = "s3://"
THREADS: Final = 16
TRIES: Final = 10
#: What is fetched at once behind a seek; in sequence it doubles, to the most.
FETCH_BYTES: Final = 256 << 10
FETCH_MAX_BYTES: Final = 8 << 20
_GLOB: Final = re.compile(r"[*?\[]")
_GONE: Final = frozenset({"NoSuchKey", "404", "NotFound", "NoSuchUpload"})
_DENIED: Final = frozenset({"AccessDenied", "403", "Forbidden", "AllAccessDisabled"})
_BAD_CREDENTIALS: Final = frozenset(
    {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"}
)
_CHANGED: Final = frozenset({"PreconditionFailed", "412"})
#: What S3 says of one object that will never be read, while others are.
_UNREADABLE: Final = frozenset({"InvalidObjectState", "InvalidRange", "416"})


class ObjectInfo(NamedTuple):
    """An object as a listing shows it."""

    key: str
    bytes: int
    etag: str


class Bucket:
    """A bucket, with what S3 says turned into errors for who runs a run.

    Args:
        name: the bucket.
        client: of boto3; by default one is made.

    Raises:
        ConfigError: boto3 is not installed, or makes no client.
    """

    def __init__(self, name: str, client: Any = None) -> None:
        self.name = name
        self.client: Any = client or s3_client(None, THREADS, TRIES)

    def url(self, key: str) -> str:
        """An object as people name it."""
        return f"{SCHEME}{self.name}/{key}"

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """The objects whose keys begin so, in the order of their keys, behind one of them."""
        options = {"StartAfter": after} if after else {}
        while True:
            with self.errors(prefix):
                page = self.client.list_objects_v2(Bucket=self.name, Prefix=prefix, **options)
            for item in page.get("Contents", ()):
                yield ObjectInfo(item["Key"], item["Size"], item["ETag"].strip('"'))
            if not page.get("IsTruncated"):
                return
            options = {"ContinuationToken": page["NextContinuationToken"]}

    def find(self, key: str) -> ObjectInfo | None:
        """The object of this key; None where there is none.

        Raises:
            ConfigError: there is no such bucket, or it may not be listed.
        """
        first = next(self.list(key), None)
        return first if first is not None and first.key == key else None

    def read(self, found: ObjectInfo, start: int = 0, length: int | None = None) -> bytes:
        """Bytes of an object that is still as it was found.

        Raises:
            Conflict: it has changed.
            InvalidRequest: it is gone, or alone may not be read.
            ConfigError: nothing may be read.
            StoreUnavailable: no answer.
        """
        options = {}
        if length is not None:
            options["Range"] = f"bytes={start}-{start + length - 1}"
        with self.errors(found.key, alone=True):
            answer = self.client.get_object(
                Bucket=self.name, Key=found.key, IfMatch=found.etag, **options
            )
            return bytes(answer["Body"].read())

    @contextmanager
    def errors(self, key: str, *, alone: bool = False) -> Iterator[None]:
        """What boto raises, as our own errors.

        Args:
            key: what is asked for.
            alone: whether others may be well where this one is not.
        """
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            NoCredentialsError,
            PartialCredentialsError,
        )
        from urllib3.exceptions import HTTPError

        try:
            yield
        except ClientError as error:
            raise self._said(error_code(error), key, alone=alone) from None
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise ConfigError(
                f"{self.url(key)}: there are no credentials: {error}",
                hint="Give boto some: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile "
                "(AWS_PROFILE), or the machine's role.",
            ) from None
        except (BotoCoreError, HTTPError, OSError) as error:
            raise StoreUnavailable(
                f"{self.url(key)}: the S3 server does not answer: {error}",
                hint="Start the same command again to go on.",
            ) from None

    def _said(self, code: str, key: str, *, alone: bool) -> HeadraceError:
        url = self.url(key)
        if code == "NoSuchBucket":
            return ConfigError(
                f"{url}: there is no bucket {self.name}",
                hint="Correct its name, or AWS_ENDPOINT_URL and the region.",
            )
        if code in _BAD_CREDENTIALS or (code in _DENIED and not alone):
            return ConfigError(
                f"{url}: S3 refuses: {code}",
                hint="Give boto credentials that may list, read and write there.",
            )
        if code in _CHANGED:
            return Conflict(
                f"{url} has changed since the run began to read it",
                hint="Begin anew, into another output.",
            )
        if code in _GONE and not alone:
            return ConfigError(f"{url}: no such object")
        if alone and code in _GONE | _DENIED | _UNREADABLE:
            return InvalidRequest(f"{url}: cannot be read: {code}")
        return StoreUnavailable(
            f"{url}: the S3 server says {code}", hint="Start the same command again to go on."
        )


class S3File:
    """An object as a file of a source.

    Args:
        bucket: where it lies.
        found: as it was found.
    """

    local: Final = False

    def __init__(self, bucket: Bucket, found: ObjectInfo) -> None:
        self._bucket = bucket
        self._found = found
        self.name: Final = bucket.url(found.key)
        self.bytes: Final = found.bytes
        self.version: Final = found.etag

    def open(self, at: int = 0) -> BinaryIO:
        """Its bytes, fetched by ranges, so that no connection waits while a run is held back."""
        file = io.BufferedReader(_Ranges(self._bucket, self._found), FETCH_BYTES)
        file.seek(at)
        return cast("BinaryIO", file)


class _Ranges(io.RawIOBase):
    """An object as a file that is read by ranges."""

    def __init__(self, bucket: Bucket, found: ObjectInfo) -> None:
        super().__init__()
        self._bucket = bucket
        self._found = found
        self._at = 0
        self._block = b""
        self._block_at = 0
        self._fetch = FETCH_BYTES

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        return self._at

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._found.bytes}[whence]
        self._at = max(0, base + offset)
        return self._at

    @override
    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        if self._at >= self._found.bytes:
            return 0
        inside = self._at - self._block_at
        if not 0 <= inside < len(self._block):
            in_sequence = inside == len(self._block) and self._block
            self._fetch = min(2 * self._fetch, FETCH_MAX_BYTES) if in_sequence else FETCH_BYTES
            length = min(max(self._fetch, len(view)), self._found.bytes - self._at)
            try:
                self._block = self._bucket.read(self._found, self._at, length)
            except InvalidRequest:
                # It was there when the run began.
                raise changed(S3File(self._bucket, self._found)) from None
            self._block_at, inside = self._at, 0
        part = self._block[inside : inside + len(view)]
        view[: len(part)] = part
        self._at += len(part)
        return len(part)


def split(url: str) -> tuple[str, str]:
    """Bucket and key of a URL.

    Raises:
        ConfigError: it names no bucket.
    """
    bucket, _, key = url[len(SCHEME) :].partition("/")
    if not bucket or _GLOB.search(bucket):
        raise ConfigError(f"{url}: names no bucket", hint="Give s3://bucket/key.")
    return bucket, key


def s3_blobs(url: str, output: str = "") -> list[SourceFile]:
    """The objects that a URL, a pattern or a range of names stands for, in order.

    Args:
        url: as the user wrote it.
        output: the URL of the run's own, which no pattern stands for.

    Raises:
        ConfigError: there is none, or one of those that are named is missing.
        StoreUnavailable: no answer.
    """
    blobs: list[SourceFile] = []
    bucket: Bucket | None = None
    for one in expand(url):
        name, key = split(one)
        if bucket is None or bucket.name != name:
            bucket = Bucket(name)
        if _GLOB.search(key):
            found = matches(bucket, key)
            matching = [one for one in found if bucket.url(one.key) != output]
        else:
            whole = bucket.find(key)
            matching = [] if whole is None else [whole]
        if not matching:
            of = "" if one == url else f" (of {url})"
            raise ConfigError(f"{one}: no such object{of}")
        blobs.extend(S3File(bucket, found) for found in matching)
    return blobs


def matches(bucket: Bucket, pattern: str, after: str = "") -> Iterator[ObjectInfo]:
    """The objects whose keys match a pattern, in the order of their keys."""
    start = _GLOB.search(pattern)
    prefix = pattern[: start.start()] if start else pattern
    wanted = as_regex(pattern)
    return (found for found in bucket.list(prefix, after) if wanted.fullmatch(found.key))


def as_regex(pattern: str) -> re.Pattern[str]:
    """A pattern of keys: `*` and `?` stay within a folder, `**` goes through folders."""
    out = []
    at = 0
    while at < len(pattern):
        rest = pattern[at:]
        bracket = re.match(r"\[!?\]?[^\]]*\]", rest)
        if rest.startswith("**/"):
            out.append("(?:.*/)?")
            at += 3
        elif rest.startswith("**"):
            out.append(".*")
            at += 2
        elif bracket is not None:
            inside = bracket[0][1:-1]
            no = inside.startswith("!")
            body = inside[no:].replace("\\", r"\\").replace("[", r"\[").replace("]", r"\]")
            out.append(f"[{'^' if no else ''}{body}]")
            at += bracket.end()
        else:
            out.append({"*": "[^/]*", "?": "[^/]"}.get(rest[0], re.escape(rest[0])))
            at += 1
    return re.compile("".join(out), re.DOTALL)
