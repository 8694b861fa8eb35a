"""Inputs that are files: all files below a folder, in the order of their paths.

Up to SORTED_NAMES names of one folder are sorted in memory. With more, sorted parts of them are
written to temporary files and merged.
"""

from __future__ import annotations

import errno
import heapq
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

from headrace.errors import ConfigError
from headrace.runs.checkpoint_file import is_of_output, path_text
from headrace.runs.interfaces import NOTHING_CARRIED, Cursor, Entry
from headrace.runs.sources.options import SourceOptions
from headrace.runs.sources.patterns import is_pattern, pattern_regex

#: The most names that are sorted in memory.
SORTED_NAMES: Final = 100_000
_BLOCK_BYTES: Final = 1 << 16
_END: Final = b"\0"
#: A name in a folder, and whether it is a folder itself.
_Name: TypeAlias = tuple[bytes, bool]


class FolderSource:
    """Reads the files below a folder; hidden files and links to folders are skipped.

    Args:
        name: a folder, or a pattern such as `photos/**/*.jpg`.
        options: `glob` picks files by their path below the folder, or by name if it has no `/`.

    Raises:
        ConfigError: the folder does not exist, or no file matches.
    """

    def __init__(self, name: str, options: SourceOptions) -> None:
        parts = Path(name).parts
        plain = 0
        while plain < len(parts) and not is_pattern(parts[plain]):
            plain += 1
        is_folder = Path(name).is_dir()
        below = "" if is_folder else "/".join(parts[plain:])
        self._folder = Path(name if is_folder else Path(*parts[:plain])).resolve()
        self._globs = (*options.glob, *([f"/{below}"] if below else []))
        self._matches = _matcher(options.glob, below)
        self._own = str(Path(options.output).resolve()) if options.output else ""
        if not self._folder.is_dir():
            raise ConfigError(f"{name}: no such folder: {self._folder}")
        self._known: tuple[int, int] | None = None
        if not self._survey()[0]:
            raise ConfigError(
                f"{name}: no file {'matches' if self._globs else 'is in it'}",
                hint="Hidden files are skipped.",
            )

    def describe(self) -> dict[str, Any]:
        """Return the folder, the number of its files, and a digest of their names."""
        count, names = self._survey()
        described = {
            "kind": "folder",
            "path": path_text(self._folder),
            "files": count,
            "names": f"{names:x}",
        }
        return {**described, "glob": list(self._globs)} if self._globs else described

    def count(self) -> int | None:
        """Return the number of files."""
        return self._survey()[0]

    def entries(self, after: Cursor | None, n: int) -> Iterator[Entry]:
        """Yield the files behind a cursor, which is the path of one below the folder.

        Raises:
            ConfigError: a folder cannot be read.
        """
        behind = _path_of(after).split(b"/") if after is not None else []
        for path in self._walk(b"", behind):
            name = os.fsdecode(path)
            if self._is_input(name):
                key = path.decode("utf-8", "backslashreplace")
                yield Entry(n, key, self._folder / name, NOTHING_CARRIED, _cursor_of(path))
                n += 1

    def _is_input(self, path: str) -> bool:
        """Return whether a file below the folder is an input; the run's own files are not."""
        return self._matches(path) and not is_of_output(f"{self._folder}/{path}", self._own)

    def _walk(self, below: bytes, after: Sequence[bytes]) -> Iterator[bytes]:
        for name, is_folder in self._sorted_names(below):
            if after and name < after[0]:
                continue
            path = below + name
            reached = bool(after) and name == after[0]
            if is_folder:
                yield from self._walk(path + b"/", after[1:] if reached else ())
            elif not reached:
                yield path

    def _sorted_names(self, below: bytes) -> Iterator[_Name]:
        names = self._names(below)
        runs: list[Iterator[_Name]] = []
        while head := sorted(islice(names, SORTED_NAMES)):
            if not runs and len(head) < SORTED_NAMES:
                return iter(head)
            runs.append(_spill(head))
        return heapq.merge(*runs)

    def _names(self, below: bytes) -> Iterator[_Name]:
        folder = os.path.join(os.fsencode(self._folder), below)
        try:
            with os.scandir(folder) as found:
                for one in found:
                    if one.name.startswith(b"."):
                        continue
                    if one.is_dir(follow_symlinks=False):
                        yield one.name, True
                    elif _is_file(one):
                        yield one.name, False
        except OSError as error:
            raise ConfigError(f"{os.fsdecode(folder)}: cannot be read: {error.strerror}") from None

    def _survey(self) -> tuple[int, int]:
        """Return the number of files, and a digest of their paths that does not depend on order."""
        if self._known is None:
            count = names = 0
            folders = [b""]
            while folders:
                below = folders.pop()
                for name, is_folder in self._names(below):
                    path = below + name
                    if is_folder:
                        folders.append(path + b"/")
                    elif self._is_input(os.fsdecode(path)):
                        count += 1
                        names += int.from_bytes(blake2b(path, digest_size=8).digest())
            self._known = count, names % (1 << 64)
        return self._known


def _cursor_of(path: bytes) -> Cursor:
    """Return a path as JSON: text, or if it is not UTF-8 a list of its bytes in hexadecimal."""
    try:
        return path.decode()
    except UnicodeDecodeError:
        return [path.hex()]


def _path_of(cursor: Cursor) -> bytes:
    return os.fsencode(cursor) if isinstance(cursor, str) else bytes.fromhex(cursor[0])


def _is_file(one: os.DirEntry[bytes]) -> bool:
    """Return whether an entry is a file or a link to one; a pipe would block the run."""
    try:
        return one.is_file()
    except OSError as error:
        # A link to itself is skipped. Any other file that cannot be examined is an input that
        # fails alone.
        return error.errno != errno.ELOOP


def _spill(names: Sequence[_Name]) -> Iterator[_Name]:
    """Write names to a temporary file, and yield them from there."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by its reader
    for name, is_folder in names:
        file.write(name + (b"/" if is_folder else b"") + _END)
    file.seek(0)
    return _read_names(file)


def _read_names(file: IO[bytes]) -> Iterator[_Name]:
    with file:
        rest = b""
        while block := file.read(_BLOCK_BYTES):
            *whole, rest = (rest + block).split(_END)
            for name in whole:
                yield name.removesuffix(b"/"), name.endswith(b"/")


def _matcher(globs: Sequence[str], below: str) -> Callable[[str], bool]:
    """Return the test of a path below the folder: one of the globs and the pattern match."""
    names = [pattern_regex(glob) for glob in globs if "/" not in glob]
    paths = [pattern_regex(glob.lstrip("/")) for glob in globs if "/" in glob]
    pattern = pattern_regex(below) if below else None

    def matches(path: str) -> bool:
        if pattern is not None and not pattern.fullmatch(path):
            return False
        if not globs:
            return True
        name = path.rpartition("/")[2]
        return any(regex.fullmatch(name) for regex in names) or any(
            regex.fullmatch(path) for regex in paths
        )

    return matches
