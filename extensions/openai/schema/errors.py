"""Errors as OpenAI's API writes them."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from headrace.errors import BY_CODE, HeadraceError, InputError, InvalidInput, ModelNotFound

#: A bad input is a bad request in OpenAI's API.
BAD_INPUT: Final = frozenset({InputError.code, InvalidInput.code})


class ErrorDetail(msgspec.Struct):
    """What is wrong."""

    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: Annotated[str | None, Meta(description="The invalid parameter.")]
    code: Annotated[str, Meta(description="The code of a problem, as elsewhere.")]


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
    param = "model" if isinstance(error, ModelNotFound) else getattr(error, "param", None)
    return OpenAIError(ErrorDetail(message, kind, param, error.code))


def failure_of(code: str, message: str, *, retryable: bool) -> HeadraceError:
    """Return the error of a job that has failed; a bad input is a bad request.

    Args:
        code: that of the job's error; it may be one of a handler.
    """
    error = HeadraceError(message)
    error.code, error.retryable = code, retryable
    error.status = 400 if code in BAD_INPUT else BY_CODE.get(code, HeadraceError).status
    return error
