"""Turns the arguments of the command line into single inputs.

Inputs are read one by one. So a folder of a million files, or an endless standard input, needs no
more memory than one file. Knows files and JSON; knows no jobs and no server.
"""

from __future__ import annotations

import glob
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import typer

from headrace.errors import InvalidRequest
from headrace.jobs.values.media_types import BOM
from headrace.text import path_text

#: A folder with at most this many files is sorted; a larger one is read in file system order.
SORTED_MAX: Final = 10_000
STDIN: Final = "-"
_COUNT_BLOCK_BYTES: Final = 1 << 20
_JSON_STARTS: Final = (b"{", b"[", b'"')
_GLOB: Final = frozenset("*?[")


class StdinAs(StrEnum):
    """The kind of the lines on standard input."""

    AUTO = "auto"
    PATHS = "paths"
    JSON = "json"
    TEXT = "text"
    REFS = "refs"


@dataclass(frozen=True, slots=True)
class Input:
    """One input.

    Attributes:
        key: the input's name for the user: its path or reference, or `stdin:<line>`.
        value: a path, a JSON value, a reference, or the error why it cannot be read.
    """

    key: str
    value: Any


@dataclass(frozen=True)
class Sources:
    """The inputs that the command line names.

    Attributes:
        arguments: files, folders, patterns, or `-`.
        stdin: standard input, if `-` is an argument.
        stdin_as: the kind of its lines.
        refs: files and objects that the server reads.
    """

    arguments: Sequence[str]
    json_inputs: Sequence[str] = ()
    texts: Sequence[str] = ()
    stdin: BinaryIO | None = None
    stdin_as: StdinAs = StdinAs.AUTO
    refs: Sequence[str] = ()
    _json_values: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Validate the arguments before anything is submitted.

        Raises:
            typer.BadParameter: there is no input, a file does not exist, a pattern or folder has
                no file, or a JSON value cannot be parsed.
        """
        if not (self.arguments or self._option_count):
            raise _bad("no input: give a file, a folder, a pattern, or - for standard input")
        if self.arguments.count(STDIN) > 1:
            raise _bad("- is given more than once; standard input can only be read once")
        for argument in self.arguments:
            try:
                if argument != STDIN and next(_files(argument), None) is None:
                    raise _bad(_why_nothing(argument))
            except OSError as error:
                raise _bad(f"{argument}: cannot be read: {error.strerror or error}") from None
        for text in self.json_inputs:
            try:
                self._json_values.append(msgspec.json.decode(text))
            except (msgspec.DecodeError, UnicodeError) as error:
                raise typer.BadParameter(
                    f"{text}: not JSON: {error}", param_hint="--json-input"
                ) from None

    @property
    def single(self) -> bool:
        """Return whether the command line names exactly one input, and not by a folder or `-`."""
        count = len(self.arguments) + self._option_count
        return count == 1 and all(one != STDIN and Path(one).is_file() for one in self.arguments)

    def __iter__(self) -> Iterator[Input]:
        for argument in self.arguments:
            if argument == STDIN:
                yield from self._lines()
            else:
                yield from map(_from_file, _files(argument))
        for number, value in enumerate(self._json_values, 1):
            yield Input(f"json-input:{number}", value)
        for number, text in enumerate(self.texts, 1):
            yield Input(f"text:{number}", text)
        for ref in self.refs:
            yield _from_reference(ref)

    def count(self) -> int | None:
        """Return the number of inputs; None if only reading them would show it."""
        total = self._option_count
        for argument in self.arguments:
            if argument == STDIN:
                lines = _lines_ahead(self.stdin)
                if lines is None:
                    return None
                total += lines
            else:
                total += sum(1 for _ in _files(argument))
        return total

    @property
    def _option_count(self) -> int:
        return len(self.json_inputs) + len(self.texts) + len(self.refs)

    def _lines(self) -> Iterator[Input]:
        lines = (
            (number, (line.removeprefix(BOM) if number == 1 else line).strip(b"\r\n"))
            for number, line in enumerate(self.stdin or (), 1)
        )
        filled = ((number, line) for number, line in lines if line.strip())
        first = next(filled, None)
        if first is None:
            return
        kind = self.stdin_as
        if kind is StdinAs.AUTO:
            is_json = first[1].lstrip().startswith(_JSON_STARTS)
            kind = StdinAs.JSON if is_json else StdinAs.PATHS
        for number, line in chain([first], filled):
            yield _from_line(kind, number, line)


def given_ids(arguments: Sequence[str]) -> Iterator[str]:
    """Yield job ids; `-` means the first word of each line of standard input."""
    for argument in arguments:
        if argument != STDIN:
            yield argument
            continue
        for line in sys.stdin.buffer:
            words = line.split(maxsplit=1)
            if words:
                yield words[0].decode("utf-8", "backslashreplace")


def _from_file(found: Path | OSError) -> Input:
    if isinstance(found, Path):
        return Input(path_text(found), found)
    folder = path_text(found.filename or "")
    return Input(folder, InvalidRequest(f"{folder}: cannot be read: {found.strerror}"))


def _from_reference(ref: str) -> Input:
    # Imported here because it imports the client.
    from headrace.client.inputs import InputRef

    return Input(ref, InputRef(ref))


def _from_line(kind: StdinAs, number: int, line: bytes) -> Input:
    where = f"standard input, line {number}"
    if kind is StdinAs.PATHS:
        path = Path(os.fsdecode(line))
        if b"\0" in line:
            problem = "has a NUL; give a path on each line, in UTF-8"
        else:
            try:
                mode = path.stat().st_mode
            except OSError as error:
                missing = isinstance(error, FileNotFoundError)
                problem = "no such file" if missing else f"cannot be read: {error.strerror}"
            else:
                if stat.S_ISREG(mode):
                    return Input(path_text(path), path)
                problem = "is a folder; give its files" if stat.S_ISDIR(mode) else "is not a file"
        return Input(path_text(path), InvalidRequest(f"{where}: {problem}"))
    key = f"stdin:{number}"
    try:
        value = msgspec.json.decode(line) if kind is StdinAs.JSON else line.decode()
    except (msgspec.DecodeError, UnicodeError) as error:
        expected = "JSON" if kind is StdinAs.JSON else "UTF-8"
        return Input(key, InvalidRequest(f"{where}: not {expected}: {error}"))
    return _from_reference(value.strip()) if kind is StdinAs.REFS else Input(key, value)


def _files(argument: str) -> Iterator[Path | OSError]:
    """Yield the files that an argument names. An existing path is never read as a pattern."""
    path = Path(argument)
    if path.is_dir():
        return _walk(path)
    if path.exists():
        return iter([path])
    if _GLOB & set(argument):
        matches = map(Path, glob.iglob(argument, recursive=True))
        return (match for match in _in_order(matches) if match.is_file())
    return iter(())


def _walk(folder: Path) -> Iterator[Path | OSError]:
    """Yield the files below a folder, not hidden ones or linked folders; the error of a bad one."""
    try:
        with os.scandir(folder) as entries:
            visible = (Path(entry) for entry in entries if not entry.name.startswith("."))
            for path in _in_order(visible):
                if path.is_file():
                    yield path
                elif path.is_dir() and not path.is_symlink():
                    yield from _walk(path)
    except OSError as error:
        yield error


def _in_order(paths: Iterator[Path]) -> Iterator[Path]:
    head = list(islice(paths, SORTED_MAX + 1))
    if len(head) <= SORTED_MAX:
        head.sort()
    return chain(head, paths)


def _why_nothing(argument: str) -> str:
    if Path(argument).is_dir():
        return f"{argument}: the folder has no files"
    if _GLOB & set(argument):
        return f"{argument}: no file matches the pattern"
    if argument.lstrip().startswith(("{", "[", '"')):
        return f"{argument}: no such file; for a JSON value use --json-input '{argument}'"
    if argument.startswith(("file:/", "s3://")):
        return f"{argument}: no such file; for a file of the server use --input-ref '{argument}'"
    return f"{argument}: no such file or folder; for text use --text {argument!r}"


def _lines_ahead(stdin: BinaryIO | None) -> int | None:
    """Return the number of unread lines of a file without moving its position; None for a pipe."""
    try:
        descriptor, at = stdin.fileno(), stdin.tell()  # type: ignore[union-attr]
        count = 0
        while block := os.pread(descriptor, _COUNT_BLOCK_BYTES, at):
            at += len(block)
            count += block.count(b"\n")
    except (AttributeError, OSError):
        return None
    return count


def _bad(message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint="INPUT...")
