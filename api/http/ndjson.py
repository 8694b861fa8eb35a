"""Split a body that arrives in pieces into lines. Independent of jobs and HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from headrace.jobs.values.media_types import BOM

_LF: Final = b"\n"


# gc=False: no field can lead back to it (CONTRIBUTING.md, Rules).
class Line(msgspec.Struct, frozen=True, gc=False):
    """One line.

    Attributes:
        number: 1 for the first; empty lines count too.
        text: without its line feed; None for a line above the limit.
    """

    number: int
    text: bytes | None


class LineSplitter:
    """Splits a stream into lines; it buffers at most `limit_bytes` of a line."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._begun: list[bytes] = []
        self._begun_bytes = 0
        self._number = 0

    def feed(self, piece: bytes) -> list[Line]:
        """Return the lines that end in this piece, without blank lines."""
        *ended, rest = piece.split(_LF)
        lines: list[Line] = []
        if ended:
            self._begin(ended[0])
            lines += self._end()
            # The other lines are complete within this piece.
            limit_bytes, number = self._limit_bytes, self._number
            for text in ended[1:]:
                number += 1
                if len(text) > limit_bytes:
                    lines.append(Line(number, None))
                elif text and not text.isspace():
                    lines.append(Line(number, text))
            self._number = number
        self._begin(rest)
        return lines

    def finish(self) -> list[Line]:
        """Return the last line if no line feed ends it."""
        return self._end()

    def _begin(self, text: bytes) -> None:
        self._begun_bytes += len(text)
        if self._begun_bytes > self._limit_bytes:
            self._begun.clear()
        elif text:
            self._begun.append(text)

    def _end(self) -> list[Line]:
        self._number += 1
        too_long = self._begun_bytes > self._limit_bytes
        text = None if too_long else b"".join(self._begun)
        self._begun.clear()
        self._begun_bytes = 0
        if text is not None and self._number == 1:
            text = text.removeprefix(BOM)
        if text is not None and (not text or text.isspace()):
            return []
        return [Line(self._number, text)]


def batches(lines: Sequence[Line], max_lines: int, max_bytes: int) -> Iterator[Sequence[Line]]:
    """Group lines by at most `max_lines` and `max_bytes`; a longer line is a group of its own."""
    begin = size = 0
    for at, line in enumerate(lines):
        length = len(line.text or b"")
        if at > begin and (at - begin >= max_lines or size + length > max_bytes):
            yield lines[begin:at]
            begin, size = at, 0
        size += length
    if begin < len(lines):
        yield lines[begin:]
