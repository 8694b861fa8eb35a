"""Errors as OpenAI's API writes them, for the operations below `/v1/`, which its SDK calls."""

from __future__ import annotations

import msgspec

from api.http.messages import Reply
from api.http.problems import error_headers
from headrace.errors import HeadraceError
from headrace.openai.errors import openai_error


def envelope(error: HeadraceError) -> Reply:
    """Return an error as the answer to a request."""
    body = msgspec.json.encode(openai_error(error))
    return Reply(error.status, body, headers=error_headers(error))
