"""Answers as TorchServe writes them: JSON for people, errors, and the headers of every answer.

Codes and types of errors are those that clients know. Types of our own are for what TorchServe has
none for.
"""

from __future__ import annotations

import uuid
from enum import Enum
from typing import Any, Final

import msgspec

from api.http.messages import Header, Reply
from api.http.problems import internal_error, retry_after_s
from extensions.torchserve.config.settings import TorchServeConfig
from headrace import errors
from headrace.errors import HeadraceError
from headrace.jobs.job import JobFailure

#: The answer has no Content-Type.
NO_TYPE: Final = b""
REQUEST_ID: Final = b"x-request-id"
#: No browser and no proxy may keep an answer.
_NOT_KEPT: Final[tuple[Header, ...]] = (
    (b"pragma", b"no-cache"),
    (b"cache-control", b"no-cache; no-store, must-revalidate, private"),
    (b"expires", b"Thu, 01 Jan 1970 00:00:00 UTC"),
)


def json_reply(document: Any, status: int = 200, headers: tuple[Header, ...] = ()) -> Reply:
    """Return an answer with indented JSON and a newline at its end."""
    body = msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
    return Reply(status, body, headers=headers)


def status_reply(text: str, status: int = 200) -> Reply:
    """Return an answer that has the member `status` only."""
    return json_reply({"status": text}, status)


def fixed_headers(config: TorchServeConfig) -> tuple[Header, ...]:
    """Return the headers that are the same in every answer."""
    cors = (
        (b"access-control-allow-origin", config.cors_allowed_origin),
        (b"access-control-allow-methods", config.cors_allowed_methods),
        (b"access-control-allow-headers", config.cors_allowed_headers),
    )
    return (*_NOT_KEPT, *((name, value.encode("latin-1")) for name, value in cors if value))


def new_request_id() -> Header:
    """Return the header with the id of a request that has none."""
    return (REQUEST_ID, str(uuid.uuid4()).encode())


class Kind(Enum):
    """A kind of error: the status of its answer, and TorchServe's name of it."""

    BAD_REQUEST = 400, "BadRequestException"
    CONFLICT = 409, "ConflictStatusException"
    DOWNLOAD = 400, "DownloadArchiveException"
    FORBIDDEN = 403, "InvalidKeyException"
    HANDLER_FAILED = 503, "InternalServerException"
    INDEX = 500, "IndexOutOfBoundsException"
    INTERNAL = 500, "InternalServerException"
    INVALID_KEY = 400, "InvalidKeyException"
    INVALID_MODEL = 400, "InvalidModelException"
    INVALID_VERSION = 403, "InvalidModelVersionException"
    METHOD_NOT_ALLOWED = 405, "MethodNotAllowedException"
    MODEL = 400, "ModelException"
    MODEL_NOT_FOUND = 404, "ModelNotFoundException"
    NOT_FOUND = 404, "ResourceNotFoundException"
    NO_MEMORY = 507, "InternalServerException"
    # Ours: TorchServe answers a full queue as if there were no worker.
    QUEUE_FULL = 503, "QueueFullException"
    TIMED_OUT = 408, "RequestTimeoutException"
    TOO_MANY = 429, "TooManyRequestsException"
    UNAVAILABLE = 503, "ServiceUnavailableException"
    VERSION_NOT_FOUND = 404, "ModelVersionNotFoundException"
    WORKFLOW_NOT_FOUND = 404, "WorkflowNotFoundException"


#: The answer to an error of Headrace, and to a job that failed with it, by its code. A class that
#: is not here has that of its base class.
_ANSWERS: Final[dict[type[HeadraceError], Kind]] = {
    errors.HeadraceError: Kind.INTERNAL,
    errors.RequestError: Kind.BAD_REQUEST,
    errors.ModelNotFound: Kind.MODEL_NOT_FOUND,
    errors.PathNotFound: Kind.NOT_FOUND,
    errors.MethodNotAllowed: Kind.METHOD_NOT_ALLOWED,
    errors.Conflict: Kind.CONFLICT,
    errors.JobNotFound: Kind.UNAVAILABLE,
    errors.RequestTimeout: Kind.TIMED_OUT,
    errors.Unauthorized: Kind.INVALID_KEY,
    errors.Forbidden: Kind.FORBIDDEN,
    errors.QueueFull: Kind.QUEUE_FULL,
    errors.Throttled: Kind.TOO_MANY,
    errors.StoreError: Kind.UNAVAILABLE,
    errors.BrokerError: Kind.UNAVAILABLE,
    errors.ModelsNotReady: Kind.UNAVAILABLE,
    # Failed jobs
    errors.InputError: Kind.BAD_REQUEST,
    errors.HandlerError: Kind.HANDLER_FAILED,
    errors.TransientError: Kind.HANDLER_FAILED,
    errors.OutOfMemory: Kind.NO_MEMORY,
    errors.JobExpired: Kind.TIMED_OUT,
    errors.JobCancelled: Kind.UNAVAILABLE,
}


class TorchServeError(Exception):
    """An error that has no class in headrace.errors; `headers` are further ones of its answer."""

    def __init__(self, kind: Kind, message: str, headers: tuple[Header, ...] = ()) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.headers = headers


def error_reply(
    kind: Kind, message: str, headers: tuple[Header, ...] = (), status: int | None = None
) -> Reply:
    """Return the answer to an error, perhaps with another status than that of its kind."""
    usual, name = kind.value
    code = usual if status is None else status
    return json_reply({"code": code, "type": name, "message": message}, code, headers)


def answer_of(error: type[HeadraceError]) -> Kind:
    """Return the kind of the answer to an error of this class."""
    return next(_ANSWERS[base] for base in error.__mro__ if base in _ANSWERS)


def answer_of_failure(failure: JobFailure) -> Kind:
    """Return the kind of the answer to a job that failed."""
    kind = errors.BY_CODE.get(failure.type, HeadraceError)
    # Linux ends processes so when memory is short, and TorchServe takes each such end for that.
    if kind is errors.ReplicaLost and "SIGKILL" in failure.message:
        kind = errors.OutOfMemory
    return answer_of(kind)


def reply_to(error: TorchServeError | HeadraceError) -> Reply:
    """Return the answer to an error, which loses its traceback."""
    errors.drop_tracebacks(error)
    if isinstance(error, TorchServeError):
        return error_reply(error.kind, error.message, error.headers)
    if isinstance(error, errors.PayloadTooLarge):
        return Reply(413, b"", NO_TYPE)
    wait_s = retry_after_s(error)
    headers = ((b"retry-after", b"%d" % wait_s),) if wait_s else ()
    return error_reply(answer_of(type(error)), error.message_with_hint, headers)


def unexpected(error: Exception, path: str) -> Reply:
    """Log an unexpected error; return the answer, which names the id of the log's line."""
    return reply_to(internal_error(error, path)[0])
