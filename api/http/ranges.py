"""Range requests (RFC 9110, section 14): one range of bytes. Independent of jobs."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_ONE_RANGE: Final = re.compile(rb"bytes[ \t]*=[ \t]*(\d{0,19})[ \t]*-[ \t]*(\d{0,19})[ \t]*")


class ByteRange(NamedTuple):
    """The bytes from `start` to before `end`."""

    start: int
    end: int


class UnsatisfiableRange(Exception):
    """The requested range has no byte of the content."""


def requested_range(
    range_header: bytes, if_range: bytes, etag: bytes, size: int
) -> ByteRange | None:
    """Return the range that a request wants; None for all bytes.

    Several ranges, other units and invalid headers are ignored, as the RFC allows. So is a range
    whose If-Range names another version of the content.

    Raises:
        UnsatisfiableRange: the range begins after the end.
    """
    if not range_header or (if_range and if_range.strip() != etag):
        return None
    bounds = _ONE_RANGE.fullmatch(range_header.strip())
    if bounds is None or not (bounds[1] or bounds[2]):
        return None
    if not bounds[1]:
        length = int(bounds[2])
        if not length or not size:
            raise UnsatisfiableRange
        return ByteRange(max(0, size - length), size)
    start = int(bounds[1])
    last = int(bounds[2]) if bounds[2] else size - 1
    if bounds[2] and last < start:
        return None
    if start >= size:
        raise UnsatisfiableRange
    return ByteRange(start, min(last, size - 1) + 1)
