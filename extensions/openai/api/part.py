"""What this extension adds to the API."""

from __future__ import annotations

import re
from typing import Final

from api.extension import ApiPart
from api.http.messages import Reply
from api.routes.media import Examples, PathParameter
from api.services import Services
from extensions.openai.api.errors import envelope
from extensions.openai.api.files import FileService
from extensions.openai.api.operations import OPERATIONS
from headrace.errors import HeadraceError
from headrace.jobs.ids import ID

_PREFIX: Final = "/v1/"
#: Where OpenAI's SDK sends requests if the address that it was given has no /v1.
_WITHOUT_PREFIX: Final = re.compile(
    "/(chat|completions|embeddings|models|responses|files|batches)(/|$)"
)
#: By the name of the type, for the description.
_EXAMPLES: Final[Examples] = {
    "ChatRequest": [
        {
            "model": "python_docs", "max_tokens": 60,
            "messages": [{"role": "user", "content": "What is random.choice?"}],
        }
    ],
    "ChatCompletion": [
        {
            "created": 1795519268, "model": "python_docs", "service_tier": "default",
            "usage": {"prompt_tokens": 13, "completion_tokens": 11, "total_tokens": 24},
            "id": "chatcmpl-0195d0b2-7c4e-7d1a-9f3b-2c5e8a7d6f10", "object": "chat.completion",
            "choices": [
                {
                    "index": 0, "logprobs": None, "finish_reason": "stop",
                    "message": {
                        "role": "assistant", "refusal": None,
                        "content": "Choose a random element from a non-empty sequence.",
                    },
                }
            ],
        }
    ],
}  # fmt: skip


def _error_reply(path: str, error: HeadraceError) -> Reply | None:
    ours = path.startswith(_PREFIX) or _WITHOUT_PREFIX.match(path)
    return envelope(error) if ours else None


def _hint(_: str, path: str) -> str | None:
    if _WITHOUT_PREFIX.match(path):
        return "Give OpenAI's SDK an address with /v1 at its end, as base_url."
    return None


def _files(services: Services) -> FileService:
    settings = services.settings
    return FileService(settings, settings.needed_redis_url("the API"))


PART: Final = ApiPart(
    routes=OPERATIONS,
    path_parameters={
        "file_id": PathParameter(r"^[^\s/]{1,64}$", may_be_empty=True),
        "batch_id": PathParameter(r"^[^\s/]{1,64}$", may_be_empty=True),
        "response_id": PathParameter(ID, may_be_empty=True),
    },
    tags={
        "files": "By OpenAI's conventions, for its SDK: what batches read and write.",
        "batches": "By OpenAI's conventions: files of requests, run in the background.",
    },
    error_form="below `/v1/` it has the form of OpenAI's API",
    service=_files,
    error_reply=_error_reply,
    hint=_hint,
    # The headers that the SDK adds to each request.
    header_prefixes=("x-stainless-", "openai-"),
    examples=_EXAMPLES,
)
