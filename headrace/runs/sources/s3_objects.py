"""The objects under a prefix of S3: each is an input, in the order of their keys.

All are listed at the start, because an object must keep its number: if an object was added, removed
or changed, it is another source. A few objects are fetched ahead of the run, in order.
"""

from __future__ import annotations

import mimetypes
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import blake2b
from typing import Any, Final

from headrace.errors import ConfigError, Conflict, InvalidRequest
from headrace.payloads.s3_client import ObjectInfo
from headrace.runs.interfaces import NOTHING_CARRIED, Cursor, Entry
from headrace.runs.sources.options import SourceOptions
from headrace.runs.sources.patterns import is_pattern, pattern_regex, plain_prefix
from headrace.runs.sources.s3 import THREADS, RunBucket

#: About the most objects that are fetched ahead, and their bytes.
AHEAD: Final = 2 * THREADS
AHEAD_BYTES: Final = 64 << 20
_TYPES: Final = mimetypes.MimeTypes()


class S3Objects:
    """Objects as inputs.

    Args:
        bucket: their bucket.
        name: the beginning of their keys; with `*`, `?` or `[` it is a pattern.
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
        if next(self._found(""), None) is None:
            raise ConfigError(
                f"{self._url}: no object",
                hint=f"For all keys with this beginning, use '{self._url}**'.",
            )

    def describe(self) -> dict[str, Any]:
        """Return the URL, the number of objects, and a digest of their keys and versions."""
        count, version = self._survey()
        described = {"kind": "s3", "path": self._url, "objects": count, "version": version}
        return {**described, **self._options.described()}

    def count(self) -> int | None:
        """Return the number of objects."""
        return self._survey()[0]

    def entries(self, after: Cursor | None, n: int) -> Iterator[Entry]:
        """Yield the objects behind a cursor, which is a key.

        Raises:
            ConfigError, StoreUnavailable: S3 cannot be read (further).
        """
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
        """Yield the objects that are inputs; hidden ones and markers of folders are skipped."""
        for found in self._bucket.list(self._prefix, after):
            below = found.key[len(self._prefix) :]
            hidden = any(part.startswith(".") for part in below.split("/"))
            matches = not self._patterns or any(one.fullmatch(found.key) for one in self._patterns)
            is_own = self._bucket.url(found.key) == self._options.output
            if matches and not hidden and not is_own and not found.key.endswith("/"):
                yield found
