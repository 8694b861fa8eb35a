"""How many tokens a job may need, as the API estimates it without a tokenizer, and its order."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

#: English has about four letters per token; other scripts have fewer, but more bytes per letter.
BYTES_PER_TOKEN: Final = 4
#: Jobs whose prompts begin with the same so many characters have a common prefix.
PREFIX_CHARS: Final = 256
#: In the place of a deadline and of a prefix.
NO_DEADLINE: Final = "~"
NO_PREFIX: Final = "-"
#: The header of a bulk request with the deadline of its jobs. An older server ignores it.
DEADLINE_HEADER: Final = "Headrace-Deadline"
#: The most tokens that one job counts as.
TOKENS_MAX: Final = 1_000_000_000
#: The new tokens of a request, by handler, where neither it nor the model's options name them.
_NEW_TOKENS: Final = {"language_model": 256}


class _Part(msgspec.Struct):
    role: Any = None
    content: Any = None


class _Request(msgspec.Struct):
    """What is read of an input; its other members are not decoded."""

    messages: list[_Part] | None = None
    prompt: str | list[Any] | None = None
    max_tokens: int | float | None = None


_REQUEST: Final = msgspec.json.Decoder(_Request)


def estimate(
    input_json: bytes, stored_bytes: int | None, options: Mapping[str, Any], handler: str
) -> tuple[int, str]:
    """Return how many tokens a job may need, those of its prompt and new ones, and its prefix.

    An input that cannot be read counts by its bytes. The model process finds out what is wrong.

    Args:
        input_json: the input in its message.
        stored_bytes: the length of an input that is not in its message; None if it is there.
        options: those of the model.
        handler: that of the model.
    """
    usual = options.get("max_tokens")
    new = usual if isinstance(usual, int) else _NEW_TOKENS.get(handler, 0)
    size, prefix = len(input_json) if stored_bytes is None else stored_bytes, NO_PREFIX
    prompt = -(-size // BYTES_PER_TOKEN)
    if stored_bytes is None and input_json.startswith(b"{"):
        try:
            request = _REQUEST.decode(input_json)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            request = _Request()
        if request.max_tokens is not None:
            new = int(min(max(request.max_tokens, 0), TOKENS_MAX))
        if isinstance(request.prompt, list):
            prompt = len(request.prompt)
        prefix = _prefix(request)
    return min(prompt + new, TOKENS_MAX), prefix


def _prefix(request: _Request) -> str:
    begin: Any = request.prompt
    if request.messages:
        # A system prompt counts as a whole.
        first = request.messages[0]
        begin = first.content
        if first.role in ("system", "developer") and isinstance(begin, str):
            return _digest(begin)
    if isinstance(begin, str):
        return _digest(begin[:PREFIX_CHARS])
    return NO_PREFIX


def _digest(text: str) -> str:
    return f"{zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"


def token_field(tokens: int, prefix: str, deadline_s: float | None) -> str:
    """Return the record's `tk`; `deadline_s` is in seconds since 1970."""
    if deadline_s is None:
        return f"{tokens} {NO_DEADLINE} {prefix}"
    # Whole seconds with the same number of digits, so that they sort as text.
    return f"{tokens} {min(max(int(deadline_s), 0), 9_999_999_999):010d} {prefix}"
