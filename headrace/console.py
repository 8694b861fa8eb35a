"""One console for many processes: each line behind the aligned, coloured name of who wrote it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final, TextIO

_COLOURS: Final = (36, 32, 35, 33, 34, 96, 92, 95, 93, 94)
_RESET: Final = "\x1b[0m"
#: A line that never ends is cut here, so that no child can fill the supervisor's memory.
MAX_LINE_BYTES: Final = 64 * 1024


class Console:
    """Writes whole lines with their prefix; never raises because nobody reads any more.

    Args:
        stream: where to write.
        names: every name that will write, so that the prefixes align.
        colour: whether to colour the prefixes.
        hidden: by name, parts of lines that are not worth showing.
    """

    def __init__(
        self,
        stream: TextIO,
        names: Sequence[str],
        *,
        colour: bool,
        hidden: Mapping[str, Sequence[bytes]] | None = None,
    ) -> None:
        self._stream = stream
        self._hidden = hidden or {}
        self._width = max((len(name) for name in names), default=0)
        self._colour = colour
        self._codes = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}
        self._partial: dict[str, bytes] = {}

    def feed(self, name: str, data: bytes) -> None:
        """Take bytes that a process wrote; complete lines come out, the rest waits."""
        *lines, rest = (self._partial.get(name, b"") + data).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            lines, rest = [*lines, rest], b""
        self._partial[name] = rest
        self._write("".join(self._line(name, line) for line in lines if self._shows(name, line)))

    def flush(self, name: str) -> None:
        """Write what a process left without a newline when it ended."""
        rest = self._partial.pop(name, b"")
        if rest:
            self._write(self._line(name, rest))

    def say(self, name: str, text: str) -> None:
        """Write a message of our own under a name, line by line."""
        self._write("".join(self._line(name, line.encode()) for line in text.split("\n")))

    def _shows(self, name: str, line: bytes) -> bool:
        return not any(part in line for part in self._hidden.get(name, ()))

    def _line(self, name: str, line: bytes) -> str:
        text = line[:MAX_LINE_BYTES].decode(errors="replace").rstrip("\r")
        prefix = f"{name:<{self._width}} |"
        if self._colour:
            prefix = f"\x1b[{self._codes.get(name, 37)}m{prefix}{_RESET}"
        return f"{prefix} {text}\n"

    def _write(self, text: str) -> None:
        if not text:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # The reader has gone (`headrace up | head`). The queue is worth more than its log.
            self._stream = open(os.devnull, "w")  # noqa: SIM115


def wants_colour(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether a stream shows colours: a terminal, and NO_COLOR (no-color.org) is not set."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def console_for(
    names: Sequence[str], hidden: Mapping[str, Sequence[bytes]] | None = None
) -> Console:
    """The console on standard output."""
    colour = wants_colour(sys.stdout, os.environ)
    return Console(sys.stdout, names, colour=colour, hidden=hidden)
