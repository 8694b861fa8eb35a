"""Errors as OpenAI's API writes them, for the operations below `/v1/`, which its SDK calls."""

from __future__ import annotations

import msgspec

from api.http.messages import Reply
from api.http.problems import error_headers
from extensions.openai.schema.errors import openai_error, status_of
from headrace.errors import HeadraceError, TokensUsed, drop_tracebacks


def envelope(error: HeadraceError) -> Reply:
    """Return an error as the answer to a request; the error loses its traceback."""
    drop_tracebacks(error)
    body = msgspec.json.encode(openai_error(error))
    headers = error_headers(error)
    if isinstance(error, TokensUsed):
        headers += (
            (b"x-ratelimit-limit-tokens", b"%d" % error.limit),
            (b"x-ratelimit-remaining-tokens", b"%d" % error.left),
            (b"x-ratelimit-reset-tokens", b"%ds" % error.retry_after_s),
        )
    return Reply(status_of(error), body, headers=headers)
