"""The operations below `/v1/`, by OpenAI's conventions, for its SDK."""

from __future__ import annotations

import time
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from api.http.messages import Reply, Request, json_reply
from api.routes.media import IDEMPOTENCY_KEY
from api.routes.table import REFUSED_SUBMIT, UNREAD_JOB, Operation
from api.services import Services
from extensions.openai.api import batches, files, inference, media, responses
from extensions.openai.schema.answers import Embeddings
from extensions.openai.schema.errors import OpenAIError
from extensions.openai.schema.requests import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
)
from extensions.openai.schema.responses import RESPONSES, Response, ResponseDeleted, ResponseRequest
from headrace import errors
from headrace.access.api_key import Scope
from headrace.jobs.job import Count

#: When this process began to serve; a model has no date of its own.
_STARTED: Final = int(time.time())


class OpenAIModel(msgspec.Struct, kw_only=True):
    """A model, as OpenAI's API shows it."""

    id: Annotated[str, Meta(description="Its name, for `model` of a request.")]
    object: Literal["model"] = "model"
    created: Annotated[Count, Meta(description="When this API process started.")]
    owned_by: Literal["headrace"] = "headrace"


class OpenAIModels(msgspec.Struct, kw_only=True):
    """Every registered model."""

    object: Literal["list"] = "list"
    data: list[OpenAIModel]


async def list_openai_models(services: Services, request: Request) -> Reply:
    """Return all models, as OpenAI's API shows them."""
    request.query()
    return json_reply(OpenAIModels(data=[_model(one.name) for one in services.catalog.served]))


async def get_openai_model(services: Services, request: Request, model: str) -> Reply:
    """Return one model, as OpenAI's API shows it."""
    request.query()
    return json_reply(_model(services.catalog.get(model).name))


def _model(name: str) -> OpenAIModel:
    return OpenAIModel(id=name, created=_STARTED)


_SUBMIT, _READ = Scope.SUBMIT, Scope.READ
_FILES: Final = "/v1/files"
_BATCHES: Final = "/v1/batches"
_RESPONSE: Final = RESPONSES + "/{response_id}"
_REFUSED_PROMPT: Final = (*REFUSED_SUBMIT, errors.JobError)

_ROWS: Final[tuple[Operation, ...]] = (
    Operation(
        "GET", "/v1/models", list_openai_models, _READ, "list_openai_models",
        OpenAIModels,
    ),
    Operation(
        "GET", "/v1/models/{model}", get_openai_model, _READ, "get_openai_model",
        OpenAIModel, (errors.ModelNotFound,),
    ),
    Operation(
        "POST", CHAT, inference.create_chat_completion, _SUBMIT, "create_chat_completion",
        media.CHAT, _REFUSED_PROMPT, headers=(IDEMPOTENCY_KEY,), body=ChatRequest,
    ),
    Operation(
        "POST", COMPLETIONS, inference.create_completion, _SUBMIT, "create_completion",
        media.COMPLETION, _REFUSED_PROMPT, headers=(IDEMPOTENCY_KEY,),
        body=CompletionRequest,
    ),
    Operation(
        "POST", EMBEDDINGS, inference.create_embeddings, _SUBMIT, "create_embeddings",
        Embeddings, _REFUSED_PROMPT, headers=(IDEMPOTENCY_KEY,), body=EmbeddingRequest,
    ),
    Operation(
        "POST", RESPONSES, responses.create_response, _SUBMIT, "create_response",
        media.RESPONSE, _REFUSED_PROMPT, headers=(IDEMPOTENCY_KEY,), body=ResponseRequest,
    ),
    Operation(
        "GET", _RESPONSE, responses.get_response, _READ, "get_response", media.RESPONSE,
        (*UNREAD_JOB, errors.TooManyStreams), (responses.ResponseQuery,),
    ),
    Operation(
        "DELETE", _RESPONSE, responses.delete_response, _SUBMIT, "delete_response",
        ResponseDeleted, (*UNREAD_JOB, errors.Conflict),
    ),
    Operation(
        "POST", _RESPONSE + "/cancel", responses.cancel_response, _SUBMIT, "cancel_response",
        Response, UNREAD_JOB,
    ),
    Operation(
        "GET", _FILES, files.list_files, _READ, "list_files", files.Files,
        query=(files.FilesQuery,),
    ),
    Operation(
        "POST", _FILES, files.create_file, _SUBMIT, "create_file", files.File,
        (errors.PayloadTooLarge, errors.UnsupportedMedia, errors.StoreFull, errors.BrokerFull),
        body=media.UPLOAD,
    ),
    Operation(
        "GET", _FILES + "/{file_id}", files.get_file, _READ, "get_file", files.File,
        (errors.FileMissing,),
    ),
    Operation(
        "DELETE", _FILES + "/{file_id}", files.delete_file, _SUBMIT, "delete_file",
        files.FileDeleted, (errors.FileMissing,),
    ),
    Operation(
        "GET", _FILES + "/{file_id}/content", files.get_content, _READ, "get_file_content",
        media.CONTENT, (errors.FileMissing,),
    ),
    Operation(
        "GET", _BATCHES, batches.list_batches, _READ, "list_batches", batches.Batches,
        query=(batches.BatchesQuery,),
    ),
    Operation(
        "POST", _BATCHES, batches.create_batch, _SUBMIT, "create_batch", batches.Batch,
        (errors.PayloadTooLarge, errors.UnsupportedMedia, errors.BrokerFull),
        body=batches.BatchRequest,
    ),
    Operation(
        "GET", _BATCHES + "/{batch_id}", batches.get_batch, _READ, "get_batch", batches.Batch,
        (errors.BatchNotFound,),
    ),
    Operation(
        "POST", _BATCHES + "/{batch_id}/cancel", batches.cancel_batch, _SUBMIT, "cancel_batch",
        batches.Batch, (errors.BatchNotFound,),
    ),
)  # fmt: skip
OPERATIONS: Final = tuple(row._replace(error=OpenAIError) for row in _ROWS)
