"""Lines of batches for OpenAI's endpoints. Each line is one job, and its row has the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from extensions.openai.schema.answers import Answer, Embeddings, answer, read_generation
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
from extensions.openai.schema.responses import RESPONSES, Response, ResponseRequest, response_of
from headrace.errors import InvalidParameter
from headrace.jobs.job import Job, State
from headrace.redis.clock import US_PER_S

#: The endpoints whose requests can be lines, with the shape of these.
SHAPES: Final[Mapping[str, type[OpenAIRequest]]] = {
    CHAT: ChatRequest, COMPLETIONS: CompletionRequest, EMBEDDINGS: EmbeddingRequest,
    RESPONSES: ResponseRequest,
}  # fmt: skip
#: What the row of a line carries that its endpoint refuses: the parameter at fault.
PARAM: Final = "param"
#: What the answer to a response shows of the metadata of its job.
_METADATA: Final = "metadata"
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
            name = request.several
            raise InvalidParameter(
                f"{name} is above 1, and a line of a batch has one answer", name,
                hint="Add more lines.",
            )  # fmt: skip
    if isinstance(request, ResponseRequest):
        for name in ("stream", "background", "previous_response_id"):
            if getattr(request, name):
                raise InvalidParameter(f"{name} is not for batches", name, hint="Leave it out.")
        request = msgspec.structs.replace(request, service_tier=_TIER)
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
    metadata = request.options().metadata
    if isinstance(request, ResponseRequest):
        shown[_METADATA] = msgspec.json.encode(metadata).decode()
    (value,) = inputs
    return LineJob(request.model, msgspec.Raw(value), metadata, shown)


def line_answer(
    endpoint: str, shown: Mapping[str, Any], job_id: str, created: int, result: bytes
) -> Answer | Embeddings | Response:
    """Return the answer to a line.

    Args:
        shown: what `line_job` returned as such.
        created: the time of the answer, in seconds since 1970.

    Raises:
        InvalidParameter: the result does not fit the endpoint.
    """
    if endpoint == RESPONSES:
        at_us = created * US_PER_S
        job = Job(
            id=job_id, model=shown["model"], version="", state=State.SUCCEEDED, created_us=at_us,
            ended_us=at_us, metadata_json=shown[_METADATA],
        )  # fmt: skip
        return response_of(job, read_generation(result, job.model))
    fields: dict[str, Any] = {**shown, "service_tier": _TIER}
    shape = SHAPES[endpoint]
    request = shape(**{**fields, shape.text_field: ""})
    return answer(request, job_id, created, [result])
