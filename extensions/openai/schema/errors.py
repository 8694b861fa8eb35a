"""Errors as OpenAI's API writes them."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from handlers.generation.inputs import CONTEXT_LENGTH
from headrace import errors
from headrace.errors import (
    BY_CODE,
    HeadraceError,
    InputError,
    InvalidInput,
    InvalidParameter,
    ModelNotFound,
)

#: A bad input is a bad request in OpenAI's API.
BAD_INPUT: Final = frozenset({InputError.code, InvalidInput.code})
_BAD_REQUEST: Final = 400
_UNPROCESSABLE: Final = 422
#: OpenAI's codes, which clients look for, by those of this server.
_CODES: Final = {
    **dict.fromkeys(BAD_INPUT, "invalid_value"),
    ModelNotFound.code: "model_not_found",
    errors.RateLimited.code: "rate_limit_exceeded",
    errors.TooManyInFlight.code: "rate_limit_exceeded",
    errors.TooManyStreams.code: "rate_limit_exceeded",
    errors.Unauthorized.code: "invalid_api_key",
}
#: The field at the beginning of a handler's message, such as "messages[1].content has …".
_FIELD: Final = re.compile(
    r"(messages|prompt|input|tools|response_format|structured_outputs|text\.format)"
    r"(?:\[|\.|: | and )|(chat_template_kwargs|echo|logit_bias|logprobs|max_tokens|min_tokens|"
    r"stop|seed|tool_choice): "
)


#: The fields that have the texts of a job. A request can have another name for its own.
_TEXT_FIELDS: Final = ("messages", "prompt")


class BadField(InvalidParameter):
    """A field of a request is not valid.

    Args:
        openai: the code of OpenAI's API.
    """

    def __init__(
        self, message: str, param: str, *, hint: str = "", openai: str = "invalid_value"
    ) -> None:
        super().__init__(message, param, hint=hint)
        self.openai = openai


class FailedJob(HeadraceError):
    """A job of a request has failed.

    Attributes:
        param: the field at fault; None if it is unknown.
    """

    param: str | None = None


class ErrorDetail(msgspec.Struct):
    """What is wrong."""

    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: Annotated[str | None, Meta(description="The invalid parameter.")]
    code: Annotated[
        str, Meta(description="OpenAI's code, or the code of the problem where OpenAI has none.")
    ]


class OpenAIError(msgspec.Struct):
    """An error of an operation below `/v1/`."""

    error: ErrorDetail


def openai_error(error: HeadraceError) -> OpenAIError:
    """Return an error in OpenAI's form."""
    kind: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    if error.status == 429:
        kind = "rate_limit_error"
    else:
        kind = "server_error" if error.status >= 500 else "invalid_request_error"
    hint = error.hint[:1].upper() + error.hint[1:]
    end = "" if error.message.endswith(("?", ".")) else "."
    message = f"{error.message}{end} {hint}" if hint else error.message
    return OpenAIError(ErrorDetail(message, kind, _param(error), _code(error)))


def status_of(error: HeadraceError | type[HeadraceError]) -> int:
    """Return the status of an error: OpenAI's API has no 422, so it is a bad request there."""
    return _BAD_REQUEST if error.status == _UNPROCESSABLE else error.status


def _param(error: HeadraceError) -> str | None:
    if isinstance(error, ModelNotFound):
        return "model"
    return error.param if isinstance(error, InvalidParameter | FailedJob) else None


def _code(error: HeadraceError) -> str:
    if isinstance(error, BadField):
        return error.openai
    if error.code in BAD_INPUT and CONTEXT_LENGTH in error.message:
        return "context_length_exceeded"
    return _CODES.get(error.code, error.code)


def in_response(message: str) -> str:
    """Return a message about an input as clients of responses write its fields."""
    return message.replace(".function.parameters:", ".parameters:")


def failure_of(code: str, message: str, *, retryable: bool, text_field: str) -> FailedJob:
    """Return the error of a job that has failed; a bad input is a bad request.

    Args:
        code: that of the job's error; it may be one of a handler.
        text_field: the field of the request that has its texts.
    """
    error = FailedJob(in_response(message) if text_field == "input" else message)
    error.code, error.retryable = code, retryable
    error.status = BY_CODE.get(code, HeadraceError).status
    if code in BAD_INPUT:
        error.status = _BAD_REQUEST
        field = _FIELD.match(message)
        name = field and (field[1] or field[2])
        of_texts = code == InvalidInput.code or CONTEXT_LENGTH in message
        error.param = text_field if of_texts or name in _TEXT_FIELDS else name
    return error
