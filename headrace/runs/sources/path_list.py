"""Inputs that are files whose paths come on standard input, one per line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Final

from headrace.errors import Conflict, InvalidRequest
from headrace.runs.checkpoint_file import path_text
from headrace.runs.interfaces import NOTHING_CARRIED, Cursor, Entry

_DIGEST_BYTES: Final = 8


class PathsSource:
    """Reads paths; blank lines are skipped.

    The list can neither be counted nor read twice: to resume a run, the user gives the same list
    again. A digest of the lines before the cursor shows that it is the same.

    Args:
        lines: the list.
    """

    def __init__(self, lines: BinaryIO) -> None:
        self._lines = lines

    def describe(self) -> dict[str, Any]:
        """Return the folder of relative paths; `entries` checks the list itself."""
        return {"kind": "paths", "path": path_text(Path.cwd())}

    def count(self) -> int | None:
        """Return None: the length is unknown."""
        return None

    def entries(self, after: Cursor | None, n: int) -> Iterator[Entry]:
        """Yield the paths behind a cursor: the number of lines before it, and their digest.

        Raises:
            Conflict: the list does not begin as it did before.
        """
        skip, expected = (0, "") if after is None else (int(after[0]), str(after[1]))
        number, digest = 0, b""
        for line in self._lines:
            name = line.strip(b"\r\n")
            number += 1
            digest = blake2b(name, digest_size=_DIGEST_BYTES, key=digest).digest()
            if number == skip and digest.hex() != expected:
                break
            if number > skip and name.strip():
                key = name.decode("utf-8", "backslashreplace")
                path = _checked(Path(os.fsdecode(name)), key)
                yield Entry(n, key, path, NOTHING_CARRIED, [number, digest.hex()])
                n += 1
        if number <= skip and (digest.hex() != expected if number == skip else skip):
            raise Conflict(
                f"standard input is not the list that this run began with: its first {skip} lines"
                " differ",
                hint="Give the same list, or use another output.",
            )


def _checked(path: Path, key: str) -> Path | InvalidRequest:
    """Return the path; an error for a pipe or a device, which might never end."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        return InvalidRequest(f"{key} is not a file", hint="Pipes and devices are not read.")
    return path
