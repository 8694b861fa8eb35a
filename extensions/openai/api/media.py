"""Bodies of requests and answers, as the description of the operations has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from api.routes.media import BINARY, Body, Success
from extensions.openai.api.files import ANCHOR
from extensions.openai.api.upload import FILE_FIELD
from extensions.openai.batches.files import BATCH, KEEP_MAX_S
from extensions.openai.schema.answers import ChatChunk, ChatCompletion, Completion
from extensions.openai.schema.responses import Response


def _chunked(whole: type[msgspec.Struct], chunk: type[msgspec.Struct]) -> Mapping[int, Success]:
    """Return the answers of an operation that sends one answer, or with `stream` its chunks."""
    return {
        200: Success(
            f"The whole answer. With `stream`, events with a {chunk.__name__} each, and `[DONE]`.",
            whole,
            events=True,
        )
    }


CHAT: Final = _chunked(ChatCompletion, ChatChunk)
COMPLETION: Final = _chunked(Completion, Completion)
RESPONSE: Final = {
    200: Success("The response. With `stream`, the events of OpenAI's API.", Response, events=True),
}

_ANCHOR: Final = "expires_after[anchor]"
_SECONDS: Final = "expires_after[seconds]"
_FILE: Final = '{"custom_id": "a"}\n'
UPLOAD: Final = Body(
    {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": [FILE_FIELD, "purpose"],
                "properties": {
                    FILE_FIELD: BINARY,
                    "purpose": {"enum": [BATCH]},
                    _ANCHOR: {"const": ANCHOR},
                    _SECONDS: {"type": "integer", "minimum": 1, "maximum": KEEP_MAX_S},
                },
                "additionalProperties": False,
                "dependentRequired": {_ANCHOR: [_SECONDS], _SECONDS: [_ANCHOR]},
            },
            "example": {FILE_FIELD: _FILE, "purpose": BATCH},
        }
    }
)
CONTENT: Final = Success(
    "All of its bytes.", {"application/octet-stream": {"schema": BINARY, "example": _FILE}}
)
