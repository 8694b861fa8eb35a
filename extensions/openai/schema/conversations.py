"""The items of a response: what its model was given, in the form in which the API shows them.

They are kept with the job of the response, so that another response can go on from there.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

#: The most bytes of the kept items of one response, compressed: they are in Redis.
ITEMS_MAX_BYTES: Final = 64 * 1024
#: The most before that: who reads them has all of them in memory.
_WRITTEN_MAX_BYTES: Final = 1024 * 1024
REFERENCE: Final = "item_reference"
MESSAGE: Final = "message"
#: How the ids of responses and of their output messages begin.
RESPONSE_PREFIX: Final = "resp_"
MESSAGE_PREFIX: Final = "msg_"
#: How the ids of other items begin, by their type.
_PREFIXES: Final = {
    MESSAGE: MESSAGE_PREFIX, "function_call": "fc_", "function_call_output": "fco_",
}  # fmt: skip
_ITEMS: Final = msgspec.json.Decoder(list[dict[str, Any]])


def message_id(job_id: str) -> str:
    """Return the id of the message that a response makes."""
    return MESSAGE_PREFIX + job_id.removeprefix(RESPONSE_PREFIX)


def responses_of(item_id: str) -> Sequence[str]:
    """Return which responses can have an item; none for an id that is not of this server."""
    _, mark, name = item_id.partition("_")
    name = name.partition(".")[0]
    # One that was made with an idempotency key has an id without a prefix.
    return (RESPONSE_PREFIX + name, name) if mark and name else ()


def reference_of(item: Mapping[str, Any]) -> str | None:
    """Return the id of the item that this one refers to; None if it refers to none."""
    item_id = item.get("id")
    bare = "type" not in item and "role" not in item and "content" not in item
    names_one = isinstance(item_id, str) and (bare or item.get("type") == REFERENCE)
    return item_id if names_one else None


def as_items(given: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the input of a request as items."""
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


def shown_items(job_id: str, items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the items of a response as the API shows them, each with an id."""
    return [
        _shown(f"{job_id.removeprefix(RESPONSE_PREFIX)}.{n}", item) for n, item in enumerate(items)
    ]


def _shown(name: str, item: dict[str, Any]) -> dict[str, Any]:
    kind = item.get("type") or MESSAGE
    own_id = item.get("id") or _PREFIXES.get(kind, f"{kind}_") + name
    shown = {"status": "completed", **item, "id": own_id, "type": kind}
    content = item.get("content")
    if kind == MESSAGE and isinstance(content, str):
        of_model = item.get("role") == "assistant"
        part = {"type": "output_text" if of_model else "input_text", "text": content}
        shown["content"] = [part | {"annotations": [], "logprobs": []} if of_model else part]
    return shown


def packed(items: Sequence[dict[str, Any]]) -> bytes:
    """Return items as they are kept; b"" if they are too long for that."""
    written = msgspec.json.encode(items)
    if len(written) > _WRITTEN_MAX_BYTES:
        return b""
    compressed = zlib.compress(written)
    return compressed if len(compressed) <= ITEMS_MAX_BYTES else b""


def unpacked(kept: bytes) -> list[dict[str, Any]]:
    """Return items that were kept."""
    return _ITEMS.decode(zlib.decompress(kept))
