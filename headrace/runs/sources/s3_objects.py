"""The objects under a prefix of S3, each of them an input, in the order of their keys.

All are listed at the start, as a number must stay with its object: where one has come, gone or
changed, the source is another one. They are fetched a few at a time ahead of the run, and in order.
"""

from __future__ import annotations

import mimetypes
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import blake2b
from typing import Any, Final

from headrace.errors import ConfigError, Conflict, InvalidRequest
from headrace.runs.interfaces import NOTHING_CARRIED, Cursor, Entry
from headrace.runs.sources.options import SourceOptions
from headrace.runs.sources.s3 import THREADS, Bucket, ObjectInfo, as_regex

#: Objects that are fetched ahead, and their bytes, about.
AHEAD: Final = 2 * THREADS
AHEAD_BYTES: Final = 64 << 20
_TYPES: Final = mimetypes.MimeTypes()


class S3Objects:
    """Objects as inputs.

    Args:
        bucket: where they lie.
        named: what their keys begin with; one that holds `*`, `?` or `[` is a pattern.
        options: `glob` is matched to what is behind the prefix.

    Raises:
        ConfigError: there is none.
    """

    def __init__(self, bucket: Bucket, named: str, options: SourceOptions) -> None:
        self._bucket = bucket
        self._options = options
        start = next((at for at, mark in enumerate(named) if mark in "*?["), None)
        self._url = bucket.url(named)
        # A name stands for what lies in it as in a folder, and not for its neighbours.
        self._prefix = named[:start] if start is not None else _as_folder(named)
        self._patterns = [as_regex(named)] if start is not None else []
        if options.glob:
            self._patterns = [as_regex(self._prefix + glob) for glob in options.glob]
        self._known: tuple[int, str] | None = None
        if next(self._found(""), None) is None:
            raise ConfigError(
                f"{self._url}: no object",
                hint=f"For all keys that begin so, whatever follows: '{self._url}**'.",
            )

    def describe(self) -> dict[str, Any]:
        """Where they lie, how many there are, and a digest of their keys and versions."""
        count, version = self._survey()
        said = {"kind": "s3", "path": self._url, "objects": count, "version": version}
        return {**said, **self._options.told()}

    def count(self) -> int | None:
        """How many there are."""
        return self._survey()[0]

    def entries(self, after: Cursor | None, n: int) -> Iterator[Entry]:
        """The objects behind a cursor, which is a key.

        Raises:
            ConfigError, StoreUnavailable: S3 cannot be read (on).
        """
        waiting: deque[tuple[ObjectInfo, Future[bytes]]] = deque()
        held = 0
        found = self._found("" if after is None else str(after))
        pool = ThreadPoolExecutor(THREADS, "s3-objects")
        try:
            coming = next(found, None)
            while coming is not None or waiting:
                while coming is not None and (
                    not waiting or (len(waiting) < AHEAD and held + coming.bytes <= AHEAD_BYTES)
                ):
                    waiting.append((coming, pool.submit(self._bucket.read, coming)))
                    held += coming.bytes
                    coming = next(found, None)
                first, body = waiting.popleft()
                yield self._entry(n, first, body)
                held -= first.bytes
                n += 1
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _entry(self, n: int, found: ObjectInfo, body: Future[bytes]) -> Entry:
        value: Any
        try:
            value = body.result()
        except (InvalidRequest, Conflict) as error:
            value = error
        kind = self._options.content_type or _TYPES.guess_type(found.key)[0]
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
        """The objects that are inputs; hidden ones and the marks of folders are passed over."""
        for found in self._bucket.list(self._prefix, after):
            below = found.key[len(self._prefix) :]
            hidden = any(part.startswith(".") for part in below.split("/"))
            fits = not self._patterns or any(one.fullmatch(found.key) for one in self._patterns)
            is_own = self._bucket.url(found.key) == self._options.output
            if fits and not hidden and not is_own and not found.key.endswith("/"):
                yield found


def _as_folder(named: str) -> str:
    return named if not named or named.endswith("/") else f"{named}/"
