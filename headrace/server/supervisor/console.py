"""One console for many processes: each line behind the aligned, coloured name of who wrote it.

Where lines are to be JSON, what a process wrote as JSON passes as it is, and everything else (a
server's own log, the last words of an interpreter) becomes the `event` of a line of its own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
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
        as_json: each line is to be a JSON object.
    """

    def __init__(
        self,
        stream: TextIO,
        names: Sequence[str],
        *,
        colour: bool,
        hidden: Mapping[str, Sequence[bytes]] | None = None,
        as_json: bool = False,
    ) -> None:
        self._stream = stream
        self._hidden = hidden or {}
        self._width = max((len(name) for name in names), default=0)
        self._colour = colour
        self._codes = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}
        self._partial: dict[str, bytes] = {}
        self._line = self._json_line if as_json else self._plain_line
        self._as_json = as_json

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
        lines = [text] if self._as_json else text.split("\n")
        self._write("".join(self._line(name, line.encode()) for line in lines))

    def _shows(self, name: str, line: bytes) -> bool:
        return not any(part in line for part in self._hidden.get(name, ()))

    def _plain_line(self, name: str, line: bytes) -> str:
        text = line[:MAX_LINE_BYTES].decode(errors="replace").rstrip("\r")
        prefix = f"{name:<{self._width}} |"
        if self._colour:
            prefix = f"\x1b[{self._codes.get(name, 37)}m{prefix}{_RESET}"
        return f"{prefix} {text}\n"

    def _json_line(self, name: str, line: bytes) -> str:
        text = line.decode(errors="replace").strip()
        if not text or said_in_json(text) is not None:
            return f"{text}\n" if text else ""
        told = {
            "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            "level": "info",
            "logger": name,
            "event": text[:MAX_LINE_BYTES],
            "part": name,
        }
        return json.dumps(told) + "\n"

    def _write(self, text: str) -> None:
        if not text:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # The reader has gone (`headrace up | head`). The queue is worth more than its log.
            self._stream = open(os.devnull, "w")  # noqa: SIM115


def said_in_json(line: str) -> str | None:
    """What a line of a log says that is JSON; None where it is none."""
    if not (line.startswith('{"') and line.endswith("}")):
        return None
    try:
        told = json.loads(line)
    except ValueError:
        return None
    return str(told.get("event", line))


def wants_colour(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether a stream shows colours: a terminal, and NO_COLOR (no-color.org) is not set."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def console_for(
    names: Sequence[str],
    hidden: Mapping[str, Sequence[bytes]] | None = None,
    *,
    as_json: bool = False,
) -> Console:
    """The console on standard output."""
    colour = not as_json and wants_colour(sys.stdout, os.environ)
    return Console(sys.stdout, names, colour=colour, hidden=hidden, as_json=as_json)
