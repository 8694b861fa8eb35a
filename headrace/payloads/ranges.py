"""JSON text that is put together from stretches of payloads, where it is needed."""

from __future__ import annotations

import base64
from collections.abc import Iterable

import msgspec

from headrace.errors import InputUnavailable
from headrace.jobs.message import PayloadRange
from headrace.payloads.stores import PayloadStores

#: What stands around the base64 of a stretch that is not JSON.
_HEAD = b'{"content_type":%s,"base64":"'
_TAIL = b'"}'


def read_parts(stores: PayloadStores, parts: Iterable[str | PayloadRange]) -> bytes:
    """The text of which these are the parts.

    Raises:
        PayloadMissing, StoreError, BrokerError: a payload cannot be read.
        InputUnavailable: it is not what it was.
    """
    return b"".join(
        part.encode() if isinstance(part, str) else read_stretch(stores, part) for part in parts
    )


def read_stretch(stores: PayloadStores, stretch: PayloadRange) -> bytes:
    """A stretch as it stands in JSON text; errors as for `read_parts`."""
    body = read_bytes(stores, stretch)
    return binary_json(stretch.type, body) if stretch.type else body


def read_bytes(stores: PayloadStores, stretch: PayloadRange) -> bytes:
    """A stretch as it lies in the store; errors as for `read_parts`."""
    body = stores.of(stretch.ref).read(stretch.ref, stretch.start, stretch.length)
    if len(body) != stretch.length:
        raise InputUnavailable(
            f"of {stretch.length} bytes in the payload store {len(body)} are left"
        )
    return body


def binary_json(content_type: str, body: bytes) -> bytes:
    """Bytes as they stand in JSON text."""
    return b"%s%s%s" % (_head(content_type), base64.b64encode(body), _TAIL)


def size_of(parts: Iterable[str | PayloadRange]) -> int:
    """How many bytes the text has."""
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
