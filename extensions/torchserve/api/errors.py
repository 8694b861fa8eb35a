"""Errors as TorchServe writes them: `{"code", "type", "message"}`.

Codes and types are those that clients know. Types of our own are for what TorchServe has none for.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from api.http.messages import Header, Reply
from api.http.problems import internal_error, retry_after_s
from extensions.torchserve.api.replies import NO_TYPE, json_reply
from headrace import errors
from headrace.errors import HeadraceError
from headrace.jobs.job import JobFailure


class Kind(NamedTuple):
    """A kind of error: its status, and TorchServe's name of it."""

    status: int
    name: str


BAD_REQUEST: Final = Kind(400, "BadRequestException")
CONFLICT: Final = Kind(409, "ConflictStatusException")
DOWNLOAD: Final = Kind(400, "DownloadArchiveException")
INDEX: Final = Kind(500, "IndexOutOfBoundsException")
INTERNAL: Final = Kind(500, "InternalServerException")
INVALID_KEY: Final = Kind(400, "InvalidKeyException")
INVALID_MODEL: Final = Kind(400, "InvalidModelException")
INVALID_VERSION: Final = Kind(403, "InvalidModelVersionException")
METHOD_NOT_ALLOWED: Final = Kind(405, "MethodNotAllowedException")
MODEL: Final = Kind(400, "ModelException")
MODEL_NOT_FOUND: Final = Kind(404, "ModelNotFoundException")
NOT_FOUND: Final = Kind(404, "ResourceNotFoundException")
NO_MEMORY: Final = Kind(507, INTERNAL.name)
TIMED_OUT: Final = Kind(408, "RequestTimeoutException")
UNAVAILABLE: Final = Kind(503, "ServiceUnavailableException")
VERSION_NOT_FOUND: Final = Kind(404, "ModelVersionNotFoundException")
WORKFLOW_NOT_FOUND: Final = Kind(404, "WorkflowNotFoundException")

#: The answer to an error of Headrace, and to a job that failed with it, by its code. A class that
#: is not here has that of its base class. Full queues have names of ours: TorchServe answers one as
#: if there were no worker.
_ANSWERS: Final[dict[type[HeadraceError], Kind]] = {
    errors.HeadraceError: INTERNAL,
    errors.RequestError: BAD_REQUEST,
    errors.ModelNotFound: MODEL_NOT_FOUND,
    errors.PathNotFound: NOT_FOUND,
    errors.MethodNotAllowed: METHOD_NOT_ALLOWED,
    errors.Conflict: CONFLICT,
    errors.JobNotFound: UNAVAILABLE,
    errors.RequestTimeout: TIMED_OUT,
    errors.Unauthorized: INVALID_KEY,
    errors.Forbidden: Kind(403, INVALID_KEY.name),
    errors.QueueFull: Kind(503, "QueueFullException"),
    errors.Throttled: Kind(429, "TooManyRequestsException"),
    errors.StoreError: UNAVAILABLE,
    errors.BrokerError: UNAVAILABLE,
    errors.ModelsNotReady: UNAVAILABLE,
    # Failed jobs
    errors.InputError: BAD_REQUEST,
    errors.HandlerError: Kind(503, INTERNAL.name),
    errors.TransientError: Kind(503, INTERNAL.name),
    errors.OutOfMemory: NO_MEMORY,
    errors.JobExpired: TIMED_OUT,
    errors.JobCancelled: UNAVAILABLE,
}


class TorchServeError(Exception):
    """An error that has no class in headrace.errors; `headers` are further ones of its answer."""

    def __init__(self, kind: Kind, message: str, headers: tuple[Header, ...] = ()) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.headers = headers


def error_reply(kind: Kind, message: str, headers: tuple[Header, ...] = ()) -> Reply:
    """Return the answer to an error."""
    document = {"code": kind.status, "type": kind.name, "message": message}
    return json_reply(document, kind.status, headers)


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


def message_of(error: HeadraceError) -> str:
    """Return what is wrong and what to do, as sentences."""
    if not error.hint:
        return error.message
    stop = "" if error.message.endswith((".", "?")) else "."
    return f"{error.message}{stop} {error.hint}"


def reply_to(error: TorchServeError | HeadraceError) -> Reply:
    """Return the answer to an error, which loses its traceback."""
    errors.drop_tracebacks(error)
    if isinstance(error, TorchServeError):
        return error_reply(error.kind, error.message, error.headers)
    if isinstance(error, errors.PayloadTooLarge):
        return Reply(413, b"", NO_TYPE)
    wait_s = retry_after_s(error)
    headers = ((b"retry-after", b"%d" % wait_s),) if wait_s else ()
    return error_reply(answer_of(type(error)), message_of(error), headers)


def unexpected(error: Exception, path: str) -> Reply:
    """Log an unexpected error; return the answer, which names the id of the log's line."""
    return reply_to(internal_error(error, path)[0])
