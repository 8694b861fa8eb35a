"""JSON text made of ranges of payloads."""

from __future__ import annotations

import base64
from collections.abc import Iterable

import msgspec

from headrace.errors import InputUnavailable
from headrace.jobs.message import PayloadRange
from headrace.payloads.stores import PayloadStores

#: Around the base64 of a range that is not JSON.
_HEAD = b'{"content_type":%s,"base64":"'
_TAIL = b'"}'


def read_parts(stores: PayloadStores, parts: Iterable[str | PayloadRange]) -> bytes:
    """Join texts and payload ranges.

    Raises:
        PayloadMissing, StoreError, BrokerError: a payload cannot be read.
        InputUnavailable: a payload is shorter than its range.
    """
    return b"".join(
        part.encode() if isinstance(part, str) else read_range(stores, part) for part in parts
    )


def read_range(stores: PayloadStores, part_range: PayloadRange) -> bytes:
    """Read a range as JSON text; errors as for `read_parts`."""
    body = read_bytes(stores, part_range)
    return binary_json(part_range.type, body) if part_range.type else body


def read_bytes(stores: PayloadStores, part_range: PayloadRange) -> bytes:
    """Read the bytes of a range; errors as for `read_parts`."""
    body = stores.of(part_range.ref).read(part_range.ref, part_range.start, part_range.length)
    if len(body) != part_range.length:
        raise InputUnavailable(f"the payload store has {len(body)} of {part_range.length} bytes")
    return body


def binary_json(content_type: str, body: bytes) -> bytes:
    """Return bytes as a JSON object with their base64."""
    return b"%s%s%s" % (_head(content_type), base64.b64encode(body), _TAIL)


def size_of(parts: Iterable[str | PayloadRange]) -> int:
    """Return the length of the joined text in bytes."""
    total = 0
    for part in parts:
        if isinstance(part, str):
            total += len(part.encode())
        elif part.type:
            total += len(_head(part.type)) + (part.length + 2) // 3 * 4 + len(_TAIL)
        else:
            total += part.length
    return total


def _head(content_type: str) -> bytes:
    return _HEAD % msgspec.json.encode(content_type)
