"""Lines of batches for OpenAI's endpoints. Each line is one job, and its row has the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from extensions.openai.schema.answers import Answer, Embeddings, answer
from extensions.openai.schema.requests import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    GenerationRequest,
    OpenAIRequest,
    read_request,
)
from headrace.errors import InvalidParameter

#: The endpoints whose requests can be lines, with the shape of these.
SHAPES: Final[Mapping[str, type[OpenAIRequest]]] = {
    CHAT: ChatRequest, COMPLETIONS: CompletionRequest, EMBEDDINGS: EmbeddingRequest,
}  # fmt: skip
#: What the row of a line carries that its endpoint refuses: the parameter at fault.
PARAM: Final = "param"
#: A batch is offline work.
_TIER: Final = "flex"


class LineJob(NamedTuple):
    """The job of a line.

    Attributes:
        metadata: that of the job; None for none.
        shown: what the answer repeats of the request.
    """

    model: str
    input: msgspec.Raw
    metadata: dict[str, Any] | None
    shown: dict[str, str]


def line_job(endpoint: str, body: msgspec.Raw) -> LineJob:
    """Read the body of a line.

    Raises:
        InvalidRequest: it is no request for this endpoint, or needs several jobs.
    """
    request = read_request(body, SHAPES[endpoint])
    if isinstance(request, GenerationRequest):
        if request.stream:
            raise InvalidParameter("stream is not for batches", "stream", hint="Leave it out.")
        if request.choices > 1:
            raise InvalidParameter(
                "n is above 1, and a line of a batch has one answer", "n", hint="Add more lines."
            )
    inputs = request.inputs()
    if len(inputs) > 1:
        name = request.several
        raise InvalidParameter(
            f"{name} has {len(inputs)} texts, and a line of a batch has one",
            name,
            hint="Add more lines.",
        )
    shown = {"model": request.model}
    if isinstance(request, EmbeddingRequest):
        shown["encoding_format"] = request.encoding_format
    (value,) = inputs
    return LineJob(request.model, msgspec.Raw(value), request.options().metadata, shown)


def line_answer(
    endpoint: str, shown: Mapping[str, Any], job_id: str, created: int, result: bytes
) -> Answer | Embeddings:
    """Return the answer to a line.

    Args:
        shown: what `line_job` returned as such.
        created: the time of the answer, in seconds since 1970.

    Raises:
        InvalidParameter: the result does not fit the endpoint.
    """
    fields: dict[str, Any] = {**shown, "service_tier": _TIER}
    own = {CHAT: "messages", COMPLETIONS: "prompt", EMBEDDINGS: "input"}[endpoint]
    request = SHAPES[endpoint](**{**fields, own: ""})
    return answer(request, job_id, created, [result])
