"""What an input counts towards `max_batch_cost`, and its `batch_key`, read from its bytes alone.

This runs in the worker, which never runs a handler's code, for each input of a model that has one
of the two keys. Nothing is decoded that is not needed, and no input can make it raise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from headrace.config.model_catalog import ModelConfig
from headrace.errors import InvalidRequest
from headrace.jobs.encoding import binary_head, decode_input, input_bytes, loads
from headrace.jobs.media_types import JSON_TYPE, image_size

#: The key of an input in which there is nothing where the pointer leads.
ABSENT: Final = None
#: The key of an input that cannot be read; it fails on its own, with others of its kind.
UNREADABLE: Final = "unreadable"
CONTENT_TYPE: Final = "content_type"
#: English has about four letters a token; most other scripts have fewer, but more bytes a letter.
BYTES_PER_TOKEN: Final = 4
#: How much of an image's base64 is read for its size before all of it is.
IMAGE_HEAD_BYTES: Final = 16 * 1024
_encode: Final = msgspec.json.Encoder(order="sorted").encode

#: What reading a hostile input may raise: depth, integers of any length, half a character.
_UNREADABLE_ERRORS: Final = (InvalidRequest, ValueError, TypeError, OverflowError, RecursionError)

#: Reads an input as it is in its message, or as it was fetched, with its content type.
Cost = Callable[[bytes, str], int]
Key = Callable[[bytes, str], str | None]


class InputCost:
    """Reads the inputs of one model.

    Args:
        model: its configuration; without `max_batch_cost` and `batch_key` there is nothing to read.
    """

    def __init__(self, model: ModelConfig) -> None:
        self._limit = model.max_batch_cost
        self._cost = COSTS[model.cost] if model.max_batch_cost is not None else None
        self._key = _key(model.batch_key) if model.batch_key is not None else None
        self.needed = self._cost is not None or self._key is not None

    def cost(self, raw: bytes, kind: str = "") -> int:
        """What an input costs; one that cannot be measured costs a whole batch, and runs alone.

        Args:
            raw: its JSON text as in the message, or its bytes if it was fetched.
            kind: content type of what was fetched, else empty.
        """
        if self._cost is None or self._limit is None:
            return 0
        try:
            return self._cost(raw, kind)
        except (_Unmeasured, *_UNREADABLE_ERRORS):
            return self._limit

    def key(self, raw: bytes, kind: str = "") -> str | None:
        """Which inputs it may run with; the arguments are those of `cost`."""
        if self._key is None:
            return None
        try:
            return self._key(raw, kind)
        except _UNREADABLE_ERRORS:
            return UNREADABLE


class _Unmeasured(Exception):
    """The input does not say how large it is."""


def _bytes(raw: bytes, kind: str) -> int:
    return len(raw) if kind else input_bytes(raw)


def _tokens(raw: bytes, kind: str) -> int:
    return -(-_bytes(raw, kind) // BYTES_PER_TOKEN)


def _pixels(raw: bytes, kind: str) -> int:
    size = image_size(raw) if kind else _inline_image_size(raw)
    if size is None:
        raise _Unmeasured
    return size[0] * size[1]


def _inline_image_size(raw: bytes) -> tuple[int, int] | None:
    head = binary_head(raw, IMAGE_HEAD_BYTES)
    if head is not None:
        size = image_size(head[1])
        if size is not None or len(raw) <= IMAGE_HEAD_BYTES:
            return size
    # A JPEG whose camera wrote much before the picture, or a client that wrote its base64 first.
    value, _ = decode_input(raw)
    return image_size(value) if isinstance(value, bytes) else None


COSTS: Final[dict[str, Cost]] = {"bytes": _bytes, "pixels": _pixels, "tokens": _tokens}


def _key(batch_key: str) -> Key:
    if batch_key == CONTENT_TYPE:
        return _content_type
    steps = [_unescape(step) for step in batch_key.split("/")[1:]]

    def at_pointer(raw: bytes, kind: str) -> str | None:
        if kind or binary_head(raw, 0) is not None:
            return ABSENT
        value = loads(raw)
        for step in steps:
            value = _member(value, step)
        return ABSENT if value is _NOTHING else _encode(value).decode()

    return at_pointer


_NOTHING: Final = object()


def _unescape(step: str) -> str:
    # RFC 6901, section 4: in this order, so that ~01 is ~1.
    return step.replace("~1", "/").replace("~0", "~")


def _member(value: Any, step: str) -> Any:
    if isinstance(value, dict):
        return value.get(step, _NOTHING)
    if isinstance(value, list) and step.isascii() and step.isdigit() and len(step) < 10:
        return value[int(step)] if int(step) < len(value) else _NOTHING
    return _NOTHING


def _content_type(raw: bytes, kind: str) -> str:
    if not kind:
        head = binary_head(raw, 0)
        kind = JSON_TYPE if head is None else head[0]
    return kind.partition(";")[0].strip().lower()
