"""How many tokens a job may need: the API's estimate, made without a tokenizer.

Queues with `schedule: tokens` order their jobs by it. The record's field `tk` holds the estimate,
the deadline and the prompt's prefix.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

#: English text has about four letters in a token. Other scripts have fewer letters in a token, and
#: more bytes in a letter.
BYTES_PER_TOKEN: Final = 4
#: Jobs have a common prefix if this many first characters of their prompts are equal.
PREFIX_CHARS: Final = 256
#: What `tk` holds for a job without a deadline, and for one without a prefix.
NO_DEADLINE: Final = "~"
NO_PREFIX: Final = "-"
#: The header with the deadline of the jobs of a bulk request. An older server ignores it.
DEADLINE_HEADER: Final = "Headrace-Deadline"
#: An offline job without a deadline is due at the end of the next day, in 24 to 48 hours.
_DAY_S: Final = 86_400
#: An estimate is never larger than this.
TOKENS_MAX: Final = 1_000_000_000
#: For how many minutes at most the new tokens of one job may keep its API key from new jobs.
MINUTES_MAX: Final = 10
#: By handler: the new tokens of a request if neither it nor the model's options set `max_tokens`.
_NEW_TOKENS: Final = {"language_model": 256}


class _Part(msgspec.Struct):
    role: Any = None
    content: Any = None


class _Request(msgspec.Struct):
    """The members of an input that the estimate needs; others are not decoded."""

    messages: list[_Part] | None = None
    prompt: str | list[Any] | None = None
    max_tokens: int | float | None = None


_REQUEST: Final = msgspec.json.Decoder(_Request)


def estimate(
    input_json: bytes,
    stored_bytes: int | None,
    options: Mapping[str, Any],
    handler: str,
    tokens_per_minute: int = 0,
) -> tuple[int, str]:
    """Return how many tokens a job may need, prompt and new ones together, and its prefix.

    An input that cannot be decoded counts by its bytes; its error comes from the model process.

    Args:
        input_json: the input, if it is in the message.
        stored_bytes: the length of an input in the payload store; None if it is in the message.
        tokens_per_minute: the limit of the job's API key; 0 for none. A `max_tokens` beyond ten
            minutes of it is more often a mistake than an answer, so it counts as ten minutes.
    """
    default = options.get("max_tokens")
    new = default if isinstance(default, int) else _NEW_TOKENS.get(handler, 0)
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
    if tokens_per_minute:
        new = min(new, MINUTES_MAX * tokens_per_minute)
    return min(prompt + new, TOKENS_MAX), prefix


def _prefix(request: _Request) -> str:
    begin: Any = request.prompt
    if request.messages:
        # Prompts with the same system prompt have a common prefix, however long it is.
        first = request.messages[0]
        begin = first.content
        if first.role in ("system", "developer") and isinstance(begin, str):
            return _digest(begin)
    if isinstance(begin, str):
        return _digest(begin[:PREFIX_CHARS])
    return NO_PREFIX


def _digest(text: str) -> str:
    return f"{zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"


def usual_deadline_s(now_s: float) -> int:
    """Return by when an offline job without a deadline should have run, in seconds since 1970.

    Without one, it would wait for as long as others with one come. It is the same for all jobs of a
    day (UTC), because jobs with the same deadline are shared between API keys.
    """
    return (int(now_s) // _DAY_S + 2) * _DAY_S


def token_field(tokens: int, prefix: str, deadline_s: float | None) -> str:
    """Return the text of the record's field `tk`; the deadline is in seconds since 1970."""
    if deadline_s is None:
        return f"{tokens} {NO_DEADLINE} {prefix}"
    # Ten digits each, so that deadlines sort as text.
    return f"{tokens} {min(max(int(deadline_s), 0), 9_999_999_999):010d} {prefix}"
