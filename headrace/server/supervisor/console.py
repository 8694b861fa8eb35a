"""One console for many processes: each line follows the aligned, coloured name of its process.

In JSON mode, a line that is a JSON object passes unchanged. Any other line (a server's own log, a
traceback) becomes the `event` of a new JSON object. With the format of an extension that has log
files, a line of this format passes unchanged, any other becomes one, and the files get them all.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final, TextIO

from headrace.observability.extension import LogFiles
from headrace.observability.log_output import LogOutput

#: The name of the supervisor's own lines.
OWN_NAME: Final = "headrace"
_COLOURS: Final = (36, 32, 35, 33, 34, 96, 92, 95, 93, 94)
_RESET: Final = "\x1b[0m"
#: Longer lines are cut, so that no child can fill the supervisor's memory.
MAX_LINE_BYTES: Final = 64 * 1024


class Console:
    """Writes complete lines with their prefix. Neither a closed reader nor an idle one stops it.

    Args:
        names: all names that will write, so that the prefixes align.
        hidden: by name, texts whose lines are not shown.
        files: where the lines go too; each line then has their format.
    """

    def __init__(
        self,
        stream: TextIO,
        names: Sequence[str],
        *,
        colour: bool,
        hidden: Mapping[str, Sequence[bytes]] | None = None,
        as_json: bool = False,
        files: LogFiles | None = None,
    ) -> None:
        self._files = files
        self._output = LogOutput(stream, self._notice)
        self._hidden = hidden or {}
        self._width = max((len(name) for name in names), default=0)
        self._colour = colour
        self._codes = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}
        self._partial: dict[str, bytes] = {}
        self._line = self._json_line if as_json else self._plain_line
        if files is not None:
            self._line = partial(self._line_of, files)
        self._as_json = as_json

    def feed(self, name: str, data: bytes) -> None:
        """Write the complete lines of a process' output; keep the rest for the next call."""
        *lines, rest = (self._partial.get(name, b"") + data).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            lines, rest = [*lines, rest], b""
        self._partial[name] = rest
        hidden, files = self._hidden.get(name, ()), self._files
        shown = [line for line in lines if not any(part in line for part in hidden)]
        if files is None:
            self._write("".join(self._line(name, line) for line in shown))
            return
        # Lines that have the format of the files are most.
        self._write(
            b"".join(
                b"%b\n" % line if files.is_line(line) else self._line(name, line).encode()
                for line in shown
            )
        )

    def flush(self, name: str) -> None:
        """Write the last line of a process that has ended, which has no newline."""
        rest = self._partial.pop(name, b"")
        if rest:
            self._write(self._line(name, rest))

    def print(self, name: str, text: str) -> None:
        """Write a message of the supervisor itself under a name, line by line."""
        lines = [text] if self._as_json else text.split("\n")
        self._write("".join(self._line(name, line.encode()) for line in lines))

    def print_alone(self, text: str) -> None:
        """Write a line as it is, which scripts wait for."""
        self._write(f"{text}\n")

    def _plain_line(self, name: str, line: bytes) -> str:
        text = line[:MAX_LINE_BYTES].decode(errors="replace").rstrip("\r")
        prefix = f"{name:<{self._width}} |"
        if self._colour:
            prefix = f"\x1b[{self._codes.get(name, 37)}m{prefix}{_RESET}"
        return f"{prefix} {text}\n"

    def _json_line(self, name: str, line: bytes) -> str:
        text = line.decode(errors="replace").strip()
        if not text or json_event(text) is not None:
            return f"{text}\n" if text else ""
        fields = {
            "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            "level": "info",
            "logger": name,
            "event": text[:MAX_LINE_BYTES],
            "part": name,
        }
        return json.dumps(fields) + "\n"

    @staticmethod
    def _line_of(files: LogFiles, name: str, line: bytes) -> str:
        text = line[:MAX_LINE_BYTES].decode(errors="replace").rstrip()
        return files.line(name, text) if text else ""

    def _write(self, text: str | bytes) -> None:
        if text:
            self._output.write(text)
            if self._files is not None:
                self._files.write(text if isinstance(text, bytes) else text.encode())

    def _notice(self, missing: int) -> str:
        text = f"{missing} lines are missing here: nothing read this output"
        return self._line(OWN_NAME, text.encode())


def json_event(line: str) -> str | None:
    """Return the `event` of a log line that is a JSON object; None for any other line."""
    if not (line.startswith('{"') and line.endswith("}")):
        return None
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    return str(fields.get("event", line))


def console_for(
    names: Sequence[str],
    hidden: Mapping[str, Sequence[bytes]] | None = None,
    *,
    as_json: bool = False,
    files: LogFiles | None = None,
) -> Console:
    """Return a console on standard output; NO_COLOR (no-color.org) leaves the colours out."""
    plain = as_json or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    colour = sys.stdout.isatty() and not plain
    return Console(sys.stdout, names, colour=colour, hidden=hidden, as_json=as_json, files=files)
