"""Files that a source consists of, wherever they lie: each has a name, a size, a version and bytes.

A local file here; an object of S3 in s3_blobs.py. What reads a kind of table (csv_table.py,
parquet_table.py, tar_samples.py) knows blobs and not where they lie.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from glob import iglob
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, cast

import msgspec
from typing_extensions import override

from headrace.errors import ConfigError, Conflict, HeadraceError, InvalidRequest
from headrace.runs.checkpoint_file import is_of_output, path_text
from headrace.runs.sources.brace_expansion import expand

READ_BYTES: Final = 1 << 20
#: What reading raises where compressed bytes are broken or end too early.
BROKEN: Final = (EOFError, zlib.error, gzip.BadGzipFile)
_GLOB: Final = frozenset("*?[")
_PACKED: Final = (".gz", ".tgz")


class SourceFile(Protocol):
    """Bytes with a name."""

    @property
    def name(self) -> str:
        """As people know it: an absolute path, or a URL."""

    @property
    def bytes(self) -> int:
        """Its size."""

    @property
    def version(self) -> str:
        """Another one when it has changed."""

    @property
    def local(self) -> bool:
        """Whether reading it needs no network."""

    def open(self, at: int = 0) -> BinaryIO:
        """Its bytes from a place on; who has opened it closes it.

        Raises:
            Conflict: it has changed since the run began.
            ConfigError: it cannot be read.
        """


class LocalFile:
    """A local file.

    Args:
        path: where it lies.

    Raises:
        ConfigError: there is no such file.
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
        """The file, from a place on."""
        try:
            file = io.BufferedReader(_LocalFile(self, self._path), READ_BYTES)
        except OSError as error:
            raise ConfigError(f"{self.name}: cannot be read: {error.strerror}") from None
        try:
            self.check(file.fileno())
        except Conflict:
            file.close()
            raise
        file.seek(at)
        return cast("BinaryIO", file)

    def check(self, descriptor: int) -> None:
        """See that an open file is what was found.

        Raises:
            Conflict: it has changed.
        """
        now = os.fstat(descriptor)
        if (now.st_size, str(now.st_mtime_ns)) != (self.bytes, self.version):
            raise changed(self)


class _LocalFile(io.FileIO):
    """Looks again with each block whether it has changed: half a line of a writer is no input."""

    def __init__(self, blob: LocalFile, path: Path) -> None:
        super().__init__(path, "rb")
        self._blob = blob

    @override
    def readinto(self, buffer: Any) -> int | None:
        count = super().readinto(buffer)
        self._blob.check(self.fileno())
        return count


def packed(blob: SourceFile) -> bool:
    """Whether it is compressed by gzip, by its name."""
    return blob.name.lower().endswith(_PACKED)


def unpacked(blob: SourceFile, at: int = 0) -> BinaryIO:
    """What a blob holds, from a place on; one that is compressed is read from its beginning.

    Raises:
        Conflict, ConfigError: as `SourceFile.open`.
    """
    if not packed(blob):
        return blob.open(at)
    inner = blob.open()
    file = cast("BinaryIO", _Unpacked(inner))
    # Who reads on finds it again, and says so.
    with suppress(*BROKEN):
        file.seek(at)
    return file


class _Unpacked(gzip.GzipFile):
    """Closes what it reads, too."""

    def __init__(self, inner: BinaryIO) -> None:
        super().__init__(fileobj=inner, mode="rb")
        self._inner = inner

    @override
    def close(self) -> None:
        super().close()
        self._inner.close()


def local_blobs(named: str, output: str = "") -> list[SourceFile]:
    """The files that a path, a pattern or a range of names stands for, in order.

    A path that exists is never read as a pattern.

    Args:
        named: as the user wrote it.
        output: the run's own, which no pattern stands for.

    Raises:
        ConfigError: there is none, or one of those that are named is missing.
    """
    if Path(named).exists():
        return [LocalFile(Path(named))]
    found: list[SourceFile] = []
    for one in expand(named):
        if _GLOB & set(one) and not Path(one).exists():
            own = str(Path(output).resolve()) if output else ""
            paths = sorted(
                path
                for path in map(Path, iglob(one, recursive=True))
                if path.is_file() and not is_of_output(str(path.resolve()), own)
            )
            if not paths:
                raise ConfigError(f"{one}: no file matches{_of(one, named)}")
            found.extend(map(LocalFile, paths))
        elif not Path(one).is_file():
            raise ConfigError(f"{one}: no such file{_of(one, named)}")
        else:
            found.append(LocalFile(Path(one)))
    return found


def short_names(blobs: Sequence[SourceFile]) -> list[str]:
    """The blobs' names, as short as tells them apart: without the folder that all lie in."""
    if len(blobs) == 1:
        return [blobs[0].name.rpartition("/")[2]]
    folders = [blob.name.split("/")[:-1] for blob in blobs]
    first, last = min(folders), max(folders)
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    depth = sum(1 for _ in same)
    return ["/".join(blob.name.split("/")[depth:]) for blob in blobs]


def changed(blob: SourceFile) -> Conflict:
    """What it means that a blob is not what it was when it was found."""
    return Conflict(
        f"{blob.name} has changed since the run began to read it",
        hint="Bring it back as it was, or begin anew, into another output.",
    )


def cut_off(blob: SourceFile, error: Exception) -> HeadraceError:
    """What becomes of the rest of a compressed file that is broken."""
    return InvalidRequest(
        f"{blob.name}: the gzip data is cut off or broken, and what is behind it is lost: {error}",
        hint="Write the file anew.",
    )


def versions(blobs: Sequence[SourceFile]) -> str:
    """A digest of all names, sizes and versions: equal where no file has changed."""
    said = msgspec.json.encode([(blob.name, blob.bytes, blob.version) for blob in blobs])
    return hashlib.blake2b(said, digest_size=16).hexdigest()


def _of(one: str, named: str) -> str:
    return "" if one == named else f" (of {named})"
