"""The operations below `/v1/`, by OpenAI's conventions, for its SDK."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from api.auth.authenticator import Open
from api.extension import model_members
from api.http.messages import Reply, Request, json_reply
from api.routes.media import BINARY, IDEMPOTENCY_KEY, Body, Success
from api.routes.service import health
from api.routes.table import REFUSED_SUBMIT, UNREAD_JOB, Answers, Endpoint, Operation
from api.services import Services
from extensions.openai.api import batches, files, inference, responses, stored_responses
from extensions.openai.api.upload import FILE_FIELD
from extensions.openai.batches.files import BATCH, KEEP_MAX_S
from extensions.openai.schema.answers import ChatChunk, ChatCompletion, Completion, Embeddings
from extensions.openai.schema.errors import OpenAIError, status_of
from extensions.openai.schema.requests import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    OpenAIRequest,
)
from extensions.openai.schema.responses import RESPONSES, Response, ResponseDeleted, ResponseRequest
from headrace import errors
from headrace.access.api_key import Scope
from headrace.config.model.catalog import ModelConfig
from headrace.jobs.job import Count

#: When this process began to serve; a model has no date of its own.
_STARTED: Final = int(time.time())


_OF_OTHERS: Final = Meta(description="For clients of KServe and TensorFlow Serving.")


class OpenAIModel(msgspec.Struct, kw_only=True):
    """A model, as OpenAI's API shows it."""

    id: Annotated[str, Meta(description="Its name, for `model` of a request.")]
    object: Literal["model"] = "model"
    created: Annotated[Count, Meta(description="When this API process started.")]
    owned_by: Literal["headrace"] = "headrace"
    name: Annotated[str | UnsetType, _OF_OTHERS] = UNSET
    ready: Annotated[bool | UnsetType, _OF_OTHERS] = UNSET
    model_version_status: Annotated[list[dict[str, Any]] | UnsetType, _OF_OTHERS] = UNSET


class OpenAIModels(msgspec.Struct, kw_only=True):
    """Every registered model."""

    object: Literal["list"] = "list"
    data: list[OpenAIModel]
    models: Annotated[list[str] | UnsetType, _OF_OTHERS] = UNSET


async def list_openai_models(services: Services, request: Request) -> Reply:
    """Return all models, as OpenAI's API shows them."""
    request.query()
    models = OpenAIModels(data=[_model(one.name) for one in services.catalog.served])
    return await _with_members(services, models, None)


async def get_openai_model(services: Services, request: Request, model: str) -> Reply:
    """Return one model, as OpenAI's API shows it."""
    request.query()
    found = services.catalog.get(model)
    return await _with_members(services, _model(found.name), found)


async def _with_members(
    services: Services, document: msgspec.Struct, model: ModelConfig | None
) -> Reply:
    """Return a document with what clients of other kinds read at the same path."""
    members = await model_members(services, model)
    return json_reply({**members, **msgspec.to_builtins(document)})


def _model(name: str) -> OpenAIModel:
    return OpenAIModel(id=name, created=_STARTED)


_ANCHOR: Final = "expires_after[anchor]"
_SECONDS: Final = "expires_after[seconds]"
_FILE_EXAMPLE: Final = '{"custom_id": "a"}\n'
_UPLOAD: Final = Body(
    {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": [FILE_FIELD, "purpose"],
                "properties": {
                    FILE_FIELD: BINARY,
                    "purpose": {"enum": [BATCH]},
                    _ANCHOR: {"const": files.ANCHOR},
                    _SECONDS: {"type": "integer", "minimum": 1, "maximum": KEEP_MAX_S},
                },
                "additionalProperties": False,
                "dependentRequired": {_ANCHOR: [_SECONDS], _SECONDS: [_ANCHOR]},
            },
            "example": {FILE_FIELD: _FILE_EXAMPLE, "purpose": BATCH},
        }
    }
)
_CONTENT: Final = Success(
    "All of its bytes.", {"application/octet-stream": {"schema": BINARY, "example": _FILE_EXAMPLE}}
)
_RESPONSE_OR_EVENTS: Final = Success(
    "The response. With `stream`, the events of OpenAI's API.", Response, events=True
)


def _operation(
    method: str, path: str, endpoint: Endpoint, answers: Answers,
    *problems: type[errors.HeadraceError], **more: Any,
) -> Operation:  # fmt: skip
    """Return an operation with the name of its function. All but a GET need the scope to submit."""
    needs = Scope.READ if method == "GET" else Scope.SUBMIT
    return Operation(
        method, path, endpoint, needs, endpoint.__name__, answers, problems, error=OpenAIError,
        status_of=status_of, **more,
    )  # fmt: skip


def _prompt(
    path: str, endpoint: Endpoint, body: type[OpenAIRequest], answers: Answers
) -> Operation:
    """Return an operation that submits jobs and answers with their results."""
    return _operation(
        "POST", path, endpoint, answers, *REFUSED_SUBMIT, errors.JobError,
        headers=(IDEMPOTENCY_KEY,), body=body,
    )  # fmt: skip


def _chunked(whole: type[msgspec.Struct], chunk: type[msgspec.Struct]) -> Success:
    return Success(
        f"The whole answer. With `stream`, events with a {chunk.__name__} each, and `[DONE]`.",
        whole,
        events=True,
    )


_FILES: Final = "/v1/files"
_FILE: Final = _FILES + "/{file_id}"
_BATCHES: Final = "/v1/batches"
_BATCH: Final = _BATCHES + "/{batch_id}"
_RESPONSE: Final = RESPONSES + "/{response_id}"
_TOO_LARGE: Final = (errors.PayloadTooLarge, errors.UnsupportedMedia)

OPERATIONS: Final = (
    # Tools that measure servers of language models ask here whether it is up.
    Operation(
        "GET", "/health", health.ready, Open.ALWAYS, "health", health.Ready,
        (errors.InvalidRequest, errors.ModelsNotReady, errors.BrokerUnavailable),
        (health.ReadyQuery,),
    ),
    _operation("GET", "/v1/models", list_openai_models, OpenAIModels),
    _operation("GET", "/v1/models/{model}", get_openai_model, OpenAIModel, errors.ModelNotFound),
    _prompt(
        CHAT, inference.create_chat_completion, ChatRequest, _chunked(ChatCompletion, ChatChunk)
    ),
    _prompt(
        COMPLETIONS, inference.create_completion, CompletionRequest,
        _chunked(Completion, Completion),
    ),
    _prompt(EMBEDDINGS, inference.create_embeddings, EmbeddingRequest, Embeddings),
    _prompt(RESPONSES, responses.create_response, ResponseRequest, _RESPONSE_OR_EVENTS),
    _operation(
        "GET", _RESPONSE, responses.get_response, _RESPONSE_OR_EVENTS,
        *UNREAD_JOB, errors.TooManyStreams, query=(responses.ResponseQuery,),
    ),
    _operation(
        "DELETE", _RESPONSE, responses.delete_response, ResponseDeleted,
        *UNREAD_JOB, errors.Conflict,
    ),
    _operation(
        "GET", _RESPONSE + "/input_items", stored_responses.list_input_items,
        stored_responses.Items, *UNREAD_JOB, errors.InvalidParameter,
        query=(stored_responses.ItemsQuery,),
    ),
    _operation("POST", _RESPONSE + "/cancel", responses.cancel_response, Response, *UNREAD_JOB),
    _operation("GET", _FILES, files.list_files, files.Files, query=(files.FilesQuery,)),
    _operation(
        "POST", _FILES, files.create_file, files.File,
        *_TOO_LARGE, errors.StoreFull, errors.BrokerFull, body=_UPLOAD,
    ),
    _operation("GET", _FILE, files.get_file, files.File, errors.FileMissing),
    _operation("DELETE", _FILE, files.delete_file, files.FileDeleted, errors.FileMissing),
    _operation("GET", _FILE + "/content", files.get_file_content, _CONTENT, errors.FileMissing),
    _operation(
        "GET", _BATCHES, batches.list_batches, batches.Batches, query=(batches.BatchesQuery,)
    ),
    _operation(
        "POST", _BATCHES, batches.create_batch, batches.Batch, *_TOO_LARGE, errors.BrokerFull,
        body=batches.BatchRequest,
    ),
    _operation("GET", _BATCH, batches.get_batch, batches.Batch, errors.BatchNotFound),
    _operation(
        "POST", _BATCH + "/cancel", batches.cancel_batch, batches.Batch, errors.BatchNotFound
    ),
)  # fmt: skip
