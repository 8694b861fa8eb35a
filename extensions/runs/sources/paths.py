"""Inputs that are files: all below a folder in the order of their paths, or those of a list.

Up to SORTED_NAMES names of one folder are sorted in memory. With more, sorted parts of them are
written to temporary files and merged.
"""

from __future__ import annotations

import errno
import heapq
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, TypeAlias

from typing_extensions import override

from extensions.runs.sources.files import text_start
from extensions.runs.sources.options import SourceOptions, check_no_more
from extensions.runs.sources.patterns import is_of_output, pattern_regex, plain_parts
from headrace.errors import ConfigError, Conflict, InvalidRequest
from headrace.runs.interfaces import NOTHING_CARRIED, Cursor, Entry, Source
from headrace.text import path_text

#: The most names that are sorted in memory.
SORTED_NAMES: Final = 100_000
_BLOCK_BYTES: Final = 1 << 16
_END: Final = b"\0"
_SAME_LIST: Final = "Give the same list, or use another output."
#: A name in a folder, and whether it is a folder itself.
_Name: TypeAlias = tuple[bytes, bool]
#: A path below the folder, and why a folder there cannot be read; None for a file.
_Found: TypeAlias = tuple[bytes, InvalidRequest | None]


class FolderSource(Source):
    """Reads the files below a folder; hidden files and links to folders are skipped.

    A folder below it that cannot be read is an input that fails alone.

    Args:
        name: a folder, or a pattern such as `photos/**/*.jpg`.
        options: `glob` picks files by their path below the folder, or by name if it has no `/`.

    Raises:
        ConfigError: the folder does not exist, or no file matches.
    """

    def __init__(self, name: str, options: SourceOptions) -> None:
        parts = Path(name).parts
        plain = plain_parts(parts)
        is_folder = Path(name).is_dir()
        below = "" if is_folder else "/".join(parts[plain:])
        self._folder = Path(name if is_folder else Path(*parts[:plain])).resolve()
        self._globs = (*options.glob, *([f"/{below}"] if below else []))
        self._matches = _matcher(options.glob, below)
        self._reaches = _reacher(options.glob, below)
        self._own = str(Path(options.output).resolve()) if options.output else ""
        if not self._folder.is_dir():
            raise ConfigError(f"{name}: no such folder: {self._folder}")
        self._known: tuple[int, int] | None = None
        if not self._survey()[0]:
            raise ConfigError(
                f"{name}: no file {'matches' if self._globs else 'is in it'}",
                hint="Hidden files are skipped.",
            )

    @override
    def describe(self) -> dict[str, Any]:
        count, names = self._survey()
        described = {
            "kind": "folder",
            "path": path_text(self._folder),
            "files": count,
            "names": f"{names:x}",
        }
        return {**described, "glob": list(self._globs)} if self._globs else described

    @override
    def count(self) -> int | None:
        return self._survey()[0]

    @override
    def entries(self, after: Cursor | None, n: int) -> Iterator[Entry]:
        # A cursor is the path of a file below the folder.
        behind = _path_of(after).split(b"/") if after is not None else []
        for path, unreadable in self._walk(b"", behind):
            name = os.fsdecode(path)
            if unreadable is not None or self._is_input(name):
                key = path.decode("utf-8", "backslashreplace")
                value = self._folder / name if unreadable is None else unreadable
                yield Entry(n, key, value, NOTHING_CARRIED, _cursor_of(path))
                n += 1

    def _is_input(self, path: str) -> bool:
        """Return whether a file below the folder is an input; the run's own files are not."""
        return self._matches(path) and not is_of_output(f"{self._folder}/{path}", self._own)

    def _walk(self, below: bytes, after: Sequence[bytes]) -> Iterator[_Found]:
        try:
            names = self._sorted_names(below)
        except OSError as error:
            unreadable = self._unreadable(below, error)
            if after or not below:
                raise ConfigError(unreadable.message) from None
            yield below.removesuffix(b"/"), unreadable
            return
        for name, is_folder in names:
            if after and name < after[0]:
                continue
            path = below + name
            reached = bool(after) and name == after[0]
            if reached and len(after) == 1:
                continue
            if is_folder:
                yield from self._walk(path + b"/", after[1:] if reached else ())
            else:
                yield path, None

    def _unreadable(self, below: bytes, error: OSError) -> InvalidRequest:
        folder = path_text(os.path.join(self._folder, os.fsdecode(below)))
        return InvalidRequest(
            f"the folder {folder} cannot be read: {error.strerror}",
            hint="Make it readable, and start another run for it.",
        )

    def _sorted_names(self, below: bytes) -> Iterator[_Name]:
        names = self._names(below)
        runs: list[Iterator[_Name]] = []
        while head := sorted(islice(names, SORTED_NAMES)):
            if not runs and len(head) < SORTED_NAMES:
                return iter(head)
            runs.append(_spill(head))
        return heapq.merge(*runs)

    def _names(self, below: bytes) -> Iterator[_Name]:
        with os.scandir(os.path.join(os.fsencode(self._folder), below)) as found:
            for one in found:
                if one.name.startswith(b"."):
                    continue
                if one.is_dir(follow_symlinks=False):
                    if self._reaches(os.fsdecode(below + one.name)):
                        yield one.name, True
                elif _is_file(one):
                    yield one.name, False

    def _survey(self) -> tuple[int, int]:
        """Return the number of files, and a digest of their paths that does not depend on order."""
        if self._known is None:
            count = names = 0
            folders = [b""]
            while folders:
                below = folders.pop()
                try:
                    more, digest, inner = self._survey_of(below)
                except OSError as error:
                    if not below:
                        raise ConfigError(self._unreadable(below, error).message) from None
                    more, digest, inner = 1, _digest(below), []
                count += more
                names += digest
                folders += inner
            self._known = count, names % (1 << 64)
        return self._known

    def _survey_of(self, below: bytes) -> tuple[int, int, list[bytes]]:
        """Return number and digest of the files of one folder, and the folders in it."""
        count = names = 0
        folders = []
        for name, is_folder in self._names(below):
            path = below + name
            if is_folder:
                folders.append(path + b"/")
            elif self._is_input(os.fsdecode(path)):
                count += 1
                names += _digest(path)
        return count, names, folders


def _digest(path: bytes) -> int:
    return int.from_bytes(blake2b(path, digest_size=8).digest())


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


def _reacher(globs: Sequence[str], below: str) -> Callable[[str], bool]:
    """Return the test of a folder below the folder: a file in it, or further below, may match."""
    groups = [[below]] if below else []
    if globs and all("/" in glob for glob in globs):
        groups.append([glob.lstrip("/") for glob in globs])
    tests = [[_folder_patterns(pattern) for pattern in group] for group in groups]

    def reaches(path: str) -> bool:
        names = path.split("/")
        return all(any(_leads_to(names, patterns) for patterns in group) for group in tests)

    return reaches


def _folder_patterns(pattern: str) -> list[re.Pattern[str] | None]:
    """Return the pattern of each folder; None for one that may match several folders."""
    parts = pattern.split("/")[:-1] if "**" not in pattern else pattern.split("/")
    return [None if "**" in part or "[" in part else pattern_regex(part) for part in parts]


def _leads_to(names: Sequence[str], patterns: Sequence[re.Pattern[str] | None]) -> bool:
    for name, pattern in zip(names, patterns, strict=False):
        if pattern is None:
            return True
        if not pattern.fullmatch(name):
            return False
    return len(names) <= len(patterns)


class PathsSource(Source):
    """Reads paths; blank lines are skipped.

    The list can neither be counted nor read twice: to resume a run, the user gives the same list
    again. A digest of the lines before the cursor shows that it is the same.
    """

    def __init__(self, lines: BinaryIO) -> None:
        self._lines = lines

    @override
    def describe(self) -> dict[str, Any]:
        # Relative paths begin in this folder. `entries` checks the list itself.
        return {"kind": "paths", "path": path_text(Path.cwd())}

    @override
    def count(self) -> int | None:
        return None

    @override
    def entries(self, after: Cursor | None, n: int) -> Iterator[Entry]:
        # A cursor is the number of lines up to a path, and their digest.
        skip, expected = (0, "") if after is None else (int(after[0]), str(after[1]))
        number, digest = 0, b""
        for line in self._lines:
            number += 1
            begin = text_start("standard input", line) if number == 1 else 0
            name = line[begin:].strip(b"\r\n")
            digest = blake2b(name, digest_size=8, key=digest).digest()
            if number == skip and digest.hex() != expected:
                break
            if number > skip and name.strip():
                key = name.decode("utf-8", "backslashreplace")
                path = _checked(name, key)
                yield Entry(n, key, path, NOTHING_CARRIED, [number, digest.hex()])
                n += 1
        if number <= skip and (digest.hex() != expected if number == skip else skip):
            raise Conflict(
                f"standard input is not the list that this run began with: its first {skip} lines"
                " differ",
                hint=_SAME_LIST,
            )

    @override
    def check_ended(self, end: Cursor | None, *, whole: bool = True) -> None:
        check_no_more(
            self, end, whole=whole,
            problem="standard input has more lines than the list that this run began with",
            hint=_SAME_LIST,
        )  # fmt: skip


def _checked(name: bytes, key: str) -> Path | InvalidRequest:
    """Return the path; an error for a pipe or a device, which might never end."""
    if b"\0" in name:
        return InvalidRequest(
            f"{key!a} is no file name: it has a NUL",
            hint="Put each name on a line of its own, in UTF-8; omit -print0 of find.",
        )
    path = Path(os.fsdecode(name))
    try:
        mode = path.stat().st_mode
    except OSError:
        return path  # the error of its read is the input's
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return InvalidRequest(f"{key} is not a file", hint="Pipes and devices are not read.")
    return path
