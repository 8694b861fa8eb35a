"""The files of a source, local or remote: each has a name, a size, a version and bytes.

A local file is here, an S3 object in s3.py. A reader of one kind of file (csv.py, parquet.py,
webdataset.py) does not know where the files are stored.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from glob import escape, iglob
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, cast

import msgspec
from typing_extensions import override

from extensions.runs.sources.patterns import (
    expand_braces,
    is_of_output,
    is_pattern,
    plain_parts,
)
from headrace.errors import ConfigError, Conflict, HeadraceError, InvalidRequest
from headrace.jobs.values.media_types import BOM, UTF16_MARKS
from headrace.text import path_text

READ_BYTES: Final = 1 << 20
#: What a read raises if gzip data is broken or ends too early.
BROKEN: Final = (EOFError, zlib.error, gzip.BadGzipFile)
_GZIP: Final = (".gz", ".tgz")


class SourceFile(Protocol):
    """Bytes with a name."""

    @property
    def name(self) -> str:
        """The absolute path or the URL."""

    @property
    def bytes(self) -> int:
        """The size."""

    @property
    def version(self) -> str:
        """Text that changes when the file does."""

    @property
    def local(self) -> bool:
        """Whether a read needs no network."""

    def open(self, at: int = 0) -> BinaryIO:
        """Open the file at a byte; the caller closes it.

        Raises:
            Conflict: it has changed since the run began.
            ConfigError: it cannot be read.
        """


class LocalFile:
    """A local file.

    Raises:
        ConfigError: it does not exist.
    """

    local: Final = True

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()
        if not self._path.is_file():
            raise ConfigError(f"{path}: no such file")
        found = self._path.stat()
        self.name: Final = path_text(self._path)
        self.bytes: Final = found.st_size
        self.version: Final = str(found.st_mtime_ns)

    def open(self, at: int = 0) -> BinaryIO:
        """Open the file at a byte."""
        try:
            stream = io.BufferedReader(_CheckedStream(self, self._path), READ_BYTES)
        except OSError as error:
            raise ConfigError(f"{self.name}: cannot be read: {error.strerror}") from None
        try:
            self.check(stream.fileno())
        except Conflict:
            stream.close()
            raise
        stream.seek(at)
        return cast("BinaryIO", stream)

    def check(self, descriptor: int) -> None:
        """Compare an open file with the one that was found.

        Raises:
            Conflict: it has changed.
        """
        now = os.fstat(descriptor)
        if (now.st_size, str(now.st_mtime_ns)) != (self.bytes, self.version):
            raise changed(self)


class _CheckedStream(io.FileIO):
    """Checks after each block that the file has not changed: half a written line is no input."""

    def __init__(self, file: LocalFile, path: Path) -> None:
        super().__init__(path, "rb")
        self._file = file

    @override
    def readinto(self, buffer: Any) -> int | None:
        count = super().readinto(buffer)
        self._file.check(self.fileno())
        return count


def is_gzip(file: SourceFile) -> bool:
    """Return whether a file is compressed by gzip, according to its name."""
    return file.name.lower().endswith(_GZIP)


def open_unpacked(file: SourceFile, at: int = 0) -> BinaryIO:
    """Open a file at a byte of its content; a gzip file is read from its beginning.

    Raises:
        Conflict, ConfigError: as for `SourceFile.open`.
    """
    if not is_gzip(file):
        return file.open(at)
    stream = cast("BinaryIO", _Unpacked(file.open()))
    # The caller's next read finds the same error and reports it.
    with suppress(*BROKEN):
        stream.seek(at)
    return stream


class _Unpacked(gzip.GzipFile):
    """Also closes the compressed stream."""

    def __init__(self, packed: BinaryIO) -> None:
        super().__init__(fileobj=packed, mode="rb")
        self._packed = packed

    @override
    def close(self) -> None:
        super().close()
        self._packed.close()


def local_files(name: str, output: str = "") -> list[SourceFile]:
    """Return the files of a path, a pattern, or a range of names, in order.

    An existing path is never a pattern.

    Args:
        output: the run's output, which no pattern matches.

    Raises:
        ConfigError: no file matches, or a named one is missing.
    """
    if Path(name).exists():
        return [LocalFile(Path(name))]
    files: list[SourceFile] = []
    for one in expand_braces(name):
        of = "" if one == name else f" (of {name})"
        if is_pattern(one) and not Path(one).exists():
            own = str(Path(output).resolve()) if output else ""
            paths = sorted(
                path
                for path in map(Path, iglob(_glob(one), recursive=True))
                if path.is_file() and not is_of_output(str(path.resolve()), own)
            )
            if not paths:
                raise ConfigError(f"{one}: no file matches{of}")
            files.extend(map(LocalFile, paths))
        elif not Path(one).is_file():
            raise ConfigError(f"{one}: no such file{of}")
        else:
            files.append(LocalFile(Path(one)))
    return files


def _glob(pattern: str) -> str:
    """Return a pattern whose existing folders are no patterns."""
    parts = Path(pattern).parts
    plain = plain_parts(parts)
    return os.path.join(*map(escape, parts[:plain]), *parts[plain:])


def short_names(files: Sequence[SourceFile]) -> list[str]:
    """Return the files' names without the folder that all of them are in."""
    if len(files) == 1:
        return [files[0].name.rpartition("/")[2]]
    folders = [file.name.split("/")[:-1] for file in files]
    first, last = min(folders), max(folders)
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    depth = sum(1 for _ in same)
    return ["/".join(file.name.split("/")[depth:]) for file in files]


def changed(file: SourceFile) -> Conflict:
    """Return the error for a file that is not what it was when it was found."""
    return Conflict(
        f"{file.name} has changed since the run began to read it",
        hint="Restore it, or start a new run with another output.",
    )


def text_start(name: str, head: bytes) -> int:
    """Return where text begins: behind its byte order mark, if it has one.

    Raises:
        ConfigError: it is UTF-16.
    """
    if head.startswith(UTF16_MARKS):
        raise ConfigError(
            f"{name} is UTF-16, not UTF-8", hint="Convert it: iconv -f UTF-16 -t UTF-8."
        )
    return len(BOM) if head.startswith(BOM) else 0


def cut_off(file: SourceFile, error: Exception) -> HeadraceError:
    """Return the error for the rest of a gzip file that is broken."""
    return InvalidRequest(
        f"{file.name}: the gzip data is cut off or broken, and what follows is lost: {error}",
        hint="Create the file again.",
    )


def versions(files: Sequence[SourceFile]) -> str:
    """Return a digest of all names, sizes and versions: equal if no file has changed."""
    text = msgspec.json.encode([(file.name, file.bytes, file.version) for file in files])
    return hashlib.blake2b(text, digest_size=16).hexdigest()
