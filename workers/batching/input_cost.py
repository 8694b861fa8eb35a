"""The cost of an input for `max_batch_cost`, and its `batch_key`, read from its bytes.

It runs in the worker, which never runs a handler's code, for each input of a model with one of
these options. It decodes no more than it needs, and no input can make it raise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from headrace.config.inputs.tensors import rows_of
from headrace.config.model.catalog import ModelConfig
from headrace.errors import InvalidRequest
from headrace.jobs.values.encoding import binary_head, decode_input, input_bytes, loads
from headrace.jobs.values.media_types import JSON_TYPE, image_size

#: The key of an input without a value at the JSON pointer.
ABSENT: Final = None
#: The key of inputs that cannot be read; each fails by itself, in a batch with others like it.
UNREADABLE: Final = "unreadable"
CONTENT_TYPE: Final = "content_type"
#: English has about four letters per token; other scripts have fewer, but more bytes per letter.
BYTES_PER_TOKEN: Final = 4
#: How much of an image's base64 is decoded to find its size, before all of it is.
IMAGE_HEAD_BYTES: Final = 16 * 1024
_encode: Final = msgspec.json.Encoder(order="sorted").encode

#: What reading a hostile input may raise: deep nesting, huge integers, broken characters.
_UNREADABLE_ERRORS: Final = (InvalidRequest, ValueError, TypeError, OverflowError, RecursionError)

#: Reads an input as in its message, or as it was fetched, with its content type.
Cost = Callable[[bytes, str], int]
Key = Callable[[bytes, str], str | None]


class InputCost:
    """Reads the inputs of a model."""

    def __init__(self, model: ModelConfig) -> None:
        self._limit = model.max_batch_cost
        self._cost = COSTS[model.cost] if model.max_batch_cost is not None else None
        self._key = _key(model.batch_key) if model.batch_key is not None else None
        self.needed = self._cost is not None or self._key is not None

    def cost(self, raw: bytes, kind: str = "") -> int:
        """Return the cost of an input; without a cost it counts as a whole batch, and runs alone.

        `raw` is its JSON text as in the message. If it was fetched, it has a content type, and
        `raw` is its bytes.
        """
        if self._cost is None or self._limit is None:
            return 0
        try:
            return self._cost(raw, kind)
        except (_Unmeasured, *_UNREADABLE_ERRORS):
            return self._limit

    def key(self, raw: bytes, kind: str = "") -> str | None:
        """Return the key that inputs of a batch share; the arguments are as for `cost`."""
        if self._key is None:
            return None
        try:
            return self._key(raw, kind)
        except _UNREADABLE_ERRORS:
            return UNREADABLE


class _Unmeasured(Exception):
    """The size of the input cannot be read."""


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
    # A JPEG with long metadata in front, or a client that writes the base64 first.
    value, _ = decode_input(raw)
    return image_size(value) if isinstance(value, bytes) else None


def _rows(raw: bytes, kind: str) -> int:
    head = None if kind else binary_head(raw, 0)
    rows = rows_of(kind if head is None else head[0])
    # An input that is no tensors is one row.
    return 1 if rows is None else rows


COSTS: Final[dict[str, Cost]] = {
    "bytes": _bytes,
    "pixels": _pixels,
    "tokens": _tokens,
    "rows": _rows,
}


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
