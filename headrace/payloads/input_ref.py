"""`input_ref`: files and objects of the operator that a client names as its input.

Clients may only name files in `input_roots` and objects in `input_buckets`, both empty by default.
The text is used unchanged: no percent-decoding, no `~`, no variables. A file is opened folder by
folder from its root, without symbolic links. The check is of the open file. So a process that
writes below a root cannot lead a reader out of it, or replace the file after the check.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from headrace.config.settings import Settings
from headrace.errors import (
    InputForbidden,
    InputUnavailable,
    InvalidRequest,
    PayloadTooLarge,
    StoreUnavailable,
)
from headrace.jobs.values.media_types import BINARY_TYPE, type_by_name
from headrace.payloads.s3_client import PAYLOAD_READ_TIMEOUT_S, TRIES, Bucket, s3_client
from headrace.payloads.store import PayloadMissing
from headrace.schema.lines import REFERENCE_MAX_CHARS

_FORMS: Final = (
    "Write file:/folder/name in a folder of input_roots, or s3://bucket/key in a bucket of "
    "input_buckets, as in docs/payloads.md."
)
_UNCHANGED: Final = (
    "Correct input_ref. Its name is used without any decoding, and must be in input_roots or "
    "input_buckets."
)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a fifo waits for its writer.
_FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_LINKS: Final = frozenset({errno.ELOOP, errno.EMLINK})


class _File(NamedTuple):
    root: Path
    parts: tuple[str, ...]


class _Object(NamedTuple):
    bucket: str
    key: str


def type_of(reference: str) -> str:
    """Return the content type of a name by its suffix, else `application/octet-stream`."""
    return type_by_name(reference) or BINARY_TYPE


class InputRefs:
    """Reads what clients name, by settings such as `input_roots`; blocks any calling thread."""

    def __init__(self, settings: Settings, threads: int, s3_tries: int = TRIES) -> None:
        roots = {Path(os.path.normpath(root.absolute())) for root in settings.input_roots}
        # A name is opened from the innermost root that contains it.
        self._roots = sorted(roots, key=lambda root: len(root.parts), reverse=True)
        self._limit_bytes = settings.body_limit_bytes
        self._buckets: dict[str, Bucket] = {}
        if settings.input_buckets:
            url = settings.payload_endpoint_url
            client: Any = s3_client(url, threads, s3_tries, PAYLOAD_READ_TIMEOUT_S)
            self._buckets = {name: Bucket(name, client) for name in settings.input_buckets}

    def look(self, reference: str) -> int:
        """Return the size in bytes of what a client names; -1 if this host has no such root.

        Raises:
            InvalidRequest: it is malformed, or names nothing that can be read.
            InputForbidden: clients may not name it.
            PayloadTooLarge: it is larger than a body may be.
            StoreUnavailable: the S3 server does not answer.
        """
        target = self._target(reference)
        try:
            if isinstance(target, _Object):
                return self._fitting(self._object(target, reference, "size"), reference)
            if not target.root.is_dir():
                return -1
            with self._opened(target, reference) as handle:
                return self._fitting(os.fstat(handle).st_size, reference)
        except InputUnavailable as error:
            raise InvalidRequest(error.message, hint=_UNCHANGED) from None

    def read(self, reference: str) -> bytes:
        """Return the bytes that a client named.

        Raises:
            InvalidRequest, InputForbidden, PayloadTooLarge: as for `look`.
            InputUnavailable: it does not exist, is not a regular file, or access is denied.
            StoreUnavailable: the S3 server or the disk does not answer.
        """
        target = self._target(reference)
        if isinstance(target, _Object):
            self._fitting(self._object(target, reference, "size"), reference)
            # It may have been replaced since.
            body: bytes = self._object(target, reference, "read", 0, self._limit_bytes + 1)
        else:
            with self._opened(target, reference) as handle, open(handle, "rb", closefd=False) as it:
                self._fitting(os.fstat(handle).st_size, reference)
                # It may grow.
                body = it.read(self._limit_bytes + 1)
        self._fitting(len(body), reference)
        return body

    def _fitting(self, size: int, reference: str) -> int:
        if size > self._limit_bytes:
            raise PayloadTooLarge(
                f"{_shown(reference)} has {size} bytes; the limit is {self._limit_bytes}",
                hint="Use a smaller one, or raise body_limit_bytes (HEADRACE_BODY_LIMIT_BYTES).",
            )
        return size

    def _target(self, reference: str) -> _File | _Object:
        if len(reference) > REFERENCE_MAX_CHARS or _CONTROL.search(reference):
            raise _unreadable(reference, "it is too long, or has control characters")
        scheme, colon, rest = reference.partition(":")
        if colon and scheme == "file":
            return self._file(reference, rest)
        if colon and scheme == "s3" and rest.startswith("//"):
            return self._s3_object(reference, rest[2:])
        raise _unreadable(reference, "it must begin with file:/ or s3://")

    def _file(self, reference: str, path: str) -> _File:
        if not path.startswith("/"):
            raise _unreadable(reference, "the path must be absolute")
        if path.startswith("//"):
            raise _unreadable(
                reference,
                "it names a host; write file:/folder/name, in input_roots of the server",
            )
        parts = tuple(path[1:].split("/"))
        if any(part in ("", ".", "..") for part in parts):
            raise _unreadable(
                reference,
                "the path must not have an empty part, `.` or `..`; use its path in input_roots",
            )
        for root in self._roots:
            inside = root.parts[1:]
            if parts[: len(inside)] == inside and len(parts) > len(inside):
                return _File(root, parts[len(inside) :])
        raise InputForbidden(
            f"{_shown(reference)} is not in a folder of input_roots",
            hint="The operator can add the folder to input_roots (HEADRACE_INPUT_ROOTS).",
        )

    def _s3_object(self, reference: str, rest: str) -> _Object:
        bucket, _, key = rest.partition("/")
        if not _BUCKET.fullmatch(bucket) or not key:
            raise _unreadable(reference, "it must name a bucket and a key")
        if any(part in (".", "..") for part in key.split("/")):
            raise _unreadable(
                reference,
                "the key must not have `.` or `..`; write its own key in input_buckets",
            )
        if bucket not in self._buckets:
            raise InputForbidden(
                f"{_shown(reference)} is not in a bucket of input_buckets",
                hint="The operator can add the bucket to input_buckets (HEADRACE_INPUT_BUCKETS).",
            )
        return _Object(bucket, key)

    def _object(self, target: _Object, reference: str, what: str, *more: int) -> Any:
        try:
            return getattr(self._buckets[target.bucket], what)(target.key, *more)
        except PayloadMissing:
            raise InputUnavailable(f"{_shown(reference)} does not exist") from None

    @contextmanager
    def _opened(self, target: _File, reference: str) -> Iterator[int]:
        """Open the file from its root without following links; yield its descriptor."""
        try:
            handle = os.open(target.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise _why(error, reference) from None
        try:
            for at, part in enumerate(target.parts):
                last = at == len(target.parts) - 1
                inner = _step(handle, part, reference, last=last)
                os.close(handle)
                handle = inner
            yield handle
        finally:
            os.close(handle)


def _step(folder: int, name: str, reference: str, *, last: bool) -> int:
    """Open one part of a path inside an open folder."""
    try:
        # For a precise error, and to open no device. The open file is checked below.
        _check_mode(os.stat(name, dir_fd=folder, follow_symlinks=False), reference, last=last)
        handle = os.open(name, _FILE_FLAGS if last else _FOLDER_FLAGS, dir_fd=folder)
    except OSError as error:
        raise _why(error, reference) from None
    try:
        _check_mode(os.fstat(handle), reference, last=last)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _check_mode(found: os.stat_result, reference: str, *, last: bool) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise _link(reference)
    if last and not stat.S_ISREG(found.st_mode):
        raise InputUnavailable(f"{_shown(reference)} is not a regular file")


def _link(reference: str) -> InputForbidden:
    return InputForbidden(
        f"{_shown(reference)} contains a symbolic link, which is not followed below input_roots",
        hint="Use the file's real path, and add its folder to input_roots.",
    )


def _why(error: OSError, reference: str) -> Exception:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return InputUnavailable(f"{_shown(reference)} does not exist")
    if error.errno in _LINKS:
        return _link(reference)
    if error.errno in (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ENXIO):
        return InputUnavailable(
            f"{_shown(reference)} cannot be read by the server: {error.strerror}"
        )
    return StoreUnavailable(f"{_shown(reference)} cannot be read now: {error.strerror}")


def _unreadable(reference: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"input_ref {_shown(reference)}: {why}", hint=_FORMS)


def _shown(reference: str) -> str:
    return repr(reference if len(reference) <= 200 else f"{reference[:200]}...")
