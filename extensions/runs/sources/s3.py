"""S3 as a run uses it, with the credentials of its user: objects as files, and as inputs.

Needs boto3 (the extra `s3`), which finds credentials, region and `AWS_ENDPOINT_URL` by itself.
During an outage it tries again for about a minute; then the run ends, and can be resumed.
"""

from __future__ import annotations

import io
import re
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from typing_extensions import override

from extensions.runs.sources.files import SourceFile, changed
from extensions.runs.sources.options import SourceOptions
from extensions.runs.sources.patterns import (
    expand_braces,
    is_pattern,
    pattern_regex,
    plain_prefix,
)
from headrace.errors import ConfigError, Conflict, HeadraceError, InvalidRequest, StoreUnavailable
from headrace.jobs.values.media_types import type_by_name
from headrace.payloads.s3_client import (
    NO_ANSWER,
    NO_CREDENTIALS,
    Bucket,
    ObjectInfo,
    S3Failure,
    s3_client,
)
from headrace.runs.interfaces import NOTHING_CARRIED, Cursor, Entry, Source

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

SCHEME: Final = "s3://"
THREADS: Final = 16
TRIES: Final = 10
PATIENCE_S: Final = 60.0
#: Bytes of one request behind a seek; each request that follows it doubles them, up to the most.
FETCH_BYTES: Final = 256 << 10
FETCH_MAX_BYTES: Final = 8 << 20
#: About the most objects that are fetched ahead, and their bytes.
AHEAD: Final = 2 * THREADS
AHEAD_BYTES: Final = 64 << 20
_GONE: Final = frozenset({"NoSuchKey", "404", "NotFound", "NoSuchUpload"})
_DENIED: Final = frozenset({"AccessDenied", "403", "Forbidden", "AllAccessDisabled"})
_BAD_CREDENTIALS: Final = frozenset(
    {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"}
)
_CHANGED: Final = frozenset({"PreconditionFailed", "412"})
#: Errors of one object that can never be read, while others can.
_UNREADABLE: Final = frozenset({"InvalidObjectState", "InvalidRange", "416"})


class RunBucket(Bucket):
    """A bucket whose errors are for the user of a run. They name the object and its bucket.

    Raises:
        ConfigError: boto3 is not installed, or cannot make a client.
    """

    patience_s = PATIENCE_S

    def __init__(self, name: str, client: Any = None) -> None:
        super().__init__(name, client or s3_client(None, THREADS, TRIES, mode="adaptive"))

    def url(self, key: str) -> str:
        """Return the URL of an object."""
        return f"{SCHEME}{self.name}/{key}"

    def find(self, key: str) -> ObjectInfo | None:
        """Return the object with this key; None if it does not exist.

        Raises:
            ConfigError: the bucket does not exist or may not be listed.
        """
        first = next(self.list(key), None)
        if first is not None and first.key == key:
            return first
        # Some servers list a key in another form than it was written, such as one with a `+`.
        with suppress(ConfigError, StoreUnavailable), self.errors(key):
            head = self.client.head_object(Bucket=self.name, Key=key)
            return ObjectInfo(key, head["ContentLength"], head["ETag"].strip('"'))
        return None

    def read_object(self, found: ObjectInfo, start: int = 0, length: int | None = None) -> bytes:
        """Read bytes of an object that must not have changed.

        Raises:
            Conflict: it has changed.
            InvalidRequest: it is gone or may not be read.
            ConfigError: no object may be read.
            StoreUnavailable: S3 does not respond.
        """
        return self.read(found.key, start, length, etag=found.etag)

    @override
    def error_for(self, failure: S3Failure) -> HeadraceError:
        url, code = self.url(failure.key), failure.code
        if code == NO_CREDENTIALS:
            return ConfigError(
                f"{url}: no credentials: {failure.text}",
                hint="Set them for boto: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile "
                "(AWS_PROFILE), or a role of the machine.",
            )
        if code == NO_ANSWER:
            return StoreUnavailable(
                f"{url}: the S3 server does not respond: {failure.text}",
                hint="Start the same command again to resume.",
            )
        if code == "NoSuchBucket":
            return ConfigError(
                f"{url}: no such bucket: {self.name}",
                hint="Correct its name, AWS_ENDPOINT_URL or the region.",
            )
        if code in _BAD_CREDENTIALS or (code in _DENIED and not failure.reading):
            return ConfigError(
                f"{url}: S3 denies access: {code}",
                hint="Use credentials that may list, read and write there.",
            )
        if code in _CHANGED:
            return Conflict(
                f"{url} has changed since the run began to read it",
                hint="Start a new run with another output.",
            )
        if failure.reading and code in _GONE | _DENIED | _UNREADABLE:
            return InvalidRequest(f"{url}: cannot be read: {code}")
        if code in _GONE:
            return ConfigError(f"{url}: no such object")
        return StoreUnavailable(
            f"{url}: the S3 server reports {code}", hint="Start the same command again to resume."
        )


class S3File:
    """An object as a file of a source."""

    local: Final = False

    def __init__(self, bucket: RunBucket, found: ObjectInfo) -> None:
        self._bucket = bucket
        self._found = found
        self.name: Final = bucket.url(found.key)
        self.bytes: Final = found.bytes
        self.version: Final = found.etag

    def open(self, at: int = 0) -> BinaryIO:
        """Open the object at a byte.

        It is read in ranges, so that no connection stays open while the run waits.
        """
        stream = io.BufferedReader(_Ranges(self._bucket, self._found), FETCH_BYTES)
        stream.seek(at)
        return cast("BinaryIO", stream)


class _Ranges(io.RawIOBase):
    """An object as a stream that is read in ranges."""

    def __init__(self, bucket: RunBucket, found: ObjectInfo) -> None:
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
                self._block = self._bucket.read_object(self._found, self._at, length)
            except InvalidRequest:
                # It existed when the run began.
                raise changed(S3File(self._bucket, self._found)) from None
            self._block_at, inside = self._at, 0
        part = self._block[inside : inside + len(view)]
        view[: len(part)] = part
        self._at += len(part)
        return len(part)


def split(url: str) -> tuple[str, str]:
    """Return bucket and key of a URL.

    Raises:
        ConfigError: it names no bucket.
    """
    bucket, _, key = url[len(SCHEME) :].partition("/")
    if not bucket or is_pattern(bucket):
        raise ConfigError(f"{url}: names no bucket", hint="Use s3://bucket/key.")
    return bucket, key


def s3_files(url: str, output: str = "") -> list[SourceFile]:
    """Return the objects of a URL, a pattern, or a range of names, in order.

    Args:
        output: the URL of the run's output, which no pattern matches.

    Raises:
        ConfigError: no object matches, or a named one is missing.
        StoreUnavailable: S3 does not respond.
    """
    files: list[SourceFile] = []
    bucket: RunBucket | None = None
    names = expand_braces(url)
    if names != [url] and "{" not in (name := url[len(SCHEME) :].partition("/")[0]):
        bucket = RunBucket(name)
        if (whole := bucket.find(split(url)[1])) is not None:
            return [S3File(bucket, whole)]
    for one in names:
        name, key = split(one)
        if bucket is None or bucket.name != name:
            bucket = RunBucket(name)
        # An existing key is no pattern.
        whole = bucket.find(key)
        if whole is None and is_pattern(key):
            regex = pattern_regex(key)
            matching = [
                found
                for found in bucket.list(plain_prefix(key))
                if regex.fullmatch(found.key) and bucket.url(found.key) != output
            ]
        else:
            matching = [] if whole is None else [whole]
        if not matching:
            of = "" if one == url else f" (of {url})"
            raise ConfigError(f"{one}: no such object{of}")
        files.extend(S3File(bucket, found) for found in matching)
    return files


class S3Objects(Source):
    """The objects under a prefix, or a single one: each is an input, in the order of their keys.

    All are listed at the start, because an object must keep its number: if an object was added,
    removed or changed, it is another source. A few objects are fetched ahead of the run, in order.

    Args:
        name: the beginning of their keys; with `*`, `?` or `[` it is a pattern. If it is the key of
            an object, and no others are below it, it is this object.
        options: `glob` is matched to the key behind the prefix.

    Raises:
        ConfigError: no object matches.
    """

    def __init__(self, bucket: RunBucket, name: str, options: SourceOptions) -> None:
        self._bucket = bucket
        self._options = options
        self._url = bucket.url(name)
        # `images` is the folder `images/`, without keys such as `images-old/1.png`.
        folder = name if not name or name.endswith("/") else f"{name}/"
        self._prefix = plain_prefix(name) if is_pattern(name) else folder
        self._patterns = [pattern_regex(name)] if is_pattern(name) else []
        if options.glob:
            self._patterns = [pattern_regex(self._prefix + glob) for glob in options.glob]
        self._known: tuple[int, str] | None = None
        is_below = not is_pattern(name) and next(self._found(""), None) is not None
        if name and not is_below and bucket.find(name) is not None:
            self._prefix, self._patterns = name, [re.compile(re.escape(name))]
        if not is_below and next(self._found(""), None) is None:
            raise ConfigError(
                f"{self._url}: no object",
                hint=f"For all keys with this beginning, use '{self._url}**'.",
            )

    @override
    def describe(self) -> dict[str, Any]:
        count, version = self._survey()
        described = {"kind": "s3", "path": self._url, "objects": count, "version": version}
        return {**described, **self._options.described()}

    @override
    def count(self) -> int | None:
        return self._survey()[0]

    @override
    def entries(self, after: Cursor | None, n: int) -> Iterator[Entry]:
        # A cursor is a key.
        waiting: deque[tuple[ObjectInfo, Future[bytes]]] = deque()
        waiting_bytes = 0
        found = self._found("" if after is None else str(after))
        pool = ThreadPoolExecutor(THREADS, "s3-objects")
        try:
            following = next(found, None)
            while following is not None or waiting:
                while following is not None and (
                    not waiting
                    or (len(waiting) < AHEAD and waiting_bytes + following.bytes <= AHEAD_BYTES)
                ):
                    waiting.append((following, pool.submit(self._bucket.read_object, following)))
                    waiting_bytes += following.bytes
                    following = next(found, None)
                first, body = waiting.popleft()
                yield self._entry(n, first, body)
                waiting_bytes -= first.bytes
                n += 1
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _entry(self, n: int, found: ObjectInfo, body: Future[bytes]) -> Entry:
        value: Any
        try:
            value = body.result()
        except (InvalidRequest, Conflict) as error:
            value = error.kept()
        kind = self._options.content_type or type_by_name(found.key)
        url = self._bucket.url(found.key)
        return Entry(n, url, value, NOTHING_CARRIED, found.key, kind)

    def _survey(self) -> tuple[int, str]:
        if self._known is None:
            count, digest = 0, blake2b(digest_size=16)
            for found in self._found(""):
                digest.update(f"{found.key}\0{found.etag}\0".encode())
                count += 1
            self._known = count, digest.hexdigest()
        return self._known

    def _found(self, after: str) -> Iterator[ObjectInfo]:
        """Yield the objects that are inputs; hidden ones and markers of folders are skipped."""
        for found in self._bucket.list(self._prefix, after):
            below = found.key[len(self._prefix) :]
            hidden = any(part.startswith(".") for part in below.split("/"))
            matches = not self._patterns or any(one.fullmatch(found.key) for one in self._patterns)
            is_own = self._bucket.url(found.key) == self._options.output
            if matches and not hidden and not is_own and not found.key.endswith("/"):
                yield found
