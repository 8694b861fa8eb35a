"""Errors as TorchServe writes them: `{"code", "type", "message"}`.

Codes and types are those that clients know. Types of our own are for what TorchServe has none for.
"""

from __future__ import annotations

from typing import Final

from api.http.messages import Header, Reply
from api.http.problems import internal_error, retry_after_s
from extensions.torchserve.api.replies import NO_TYPE, json_reply
from headrace import errors
from headrace.errors import HeadraceError
from headrace.jobs.job import JobFailure

#: TorchServe's names of errors.
BAD_REQUEST: Final = "BadRequestException"
CONFLICT: Final = "ConflictStatusException"
DOWNLOAD: Final = "DownloadArchiveException"
INDEX: Final = "IndexOutOfBoundsException"
INTERNAL: Final = "InternalServerException"
INVALID_KEY: Final = "InvalidKeyException"
INVALID_MODEL: Final = "InvalidModelException"
INVALID_VERSION: Final = "InvalidModelVersionException"
METHOD_NOT_ALLOWED: Final = "MethodNotAllowedException"
MODEL: Final = "ModelException"
MODEL_NOT_FOUND: Final = "ModelNotFoundException"
NOT_FOUND: Final = "ResourceNotFoundException"
TIMED_OUT: Final = "RequestTimeoutException"
UNAVAILABLE: Final = "ServiceUnavailableException"
VERSION_NOT_FOUND: Final = "ModelVersionNotFoundException"
WORKFLOW_NOT_FOUND: Final = "WorkflowNotFoundException"
#: Ours: TorchServe answers a full queue as if there were no worker.
QUEUE_FULL: Final = "QueueFullException"
TOO_MANY: Final = "TooManyRequestsException"

#: The answer to an error of Headrace, and to a job that failed with it, by its code. A class that
#: is not here has that of its base class.
_ANSWERS: Final[dict[type[HeadraceError], tuple[int, str]]] = {
    errors.HeadraceError: (500, INTERNAL),
    errors.RequestError: (400, BAD_REQUEST),
    errors.ModelNotFound: (404, MODEL_NOT_FOUND),
    errors.PathNotFound: (404, NOT_FOUND),
    errors.MethodNotAllowed: (405, METHOD_NOT_ALLOWED),
    errors.Conflict: (409, CONFLICT),
    errors.JobNotFound: (503, UNAVAILABLE),
    errors.RequestTimeout: (408, TIMED_OUT),
    errors.Unauthorized: (400, INVALID_KEY),
    errors.Forbidden: (403, INVALID_KEY),
    errors.QueueFull: (503, QUEUE_FULL),
    errors.Throttled: (429, TOO_MANY),
    errors.StoreError: (503, UNAVAILABLE),
    errors.BrokerError: (503, UNAVAILABLE),
    errors.ModelsNotReady: (503, UNAVAILABLE),
    # Failed jobs
    errors.InputError: (400, BAD_REQUEST),
    errors.HandlerError: (503, INTERNAL),
    errors.TransientError: (503, INTERNAL),
    errors.OutOfMemory: (507, INTERNAL),
    errors.JobExpired: (408, TIMED_OUT),
    errors.JobCancelled: (503, UNAVAILABLE),
}


class TorchServeError(Exception):
    """An error that has no class in headrace.errors, as it is answered.

    Args:
        type_: TorchServe's name of the error.
    """

    def __init__(
        self, status: int, type_: str, message: str, headers: tuple[Header, ...] = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type_
        self.message = message
        self.headers = headers

    def reply(self) -> Reply:
        """Return the answer."""
        return error_reply(self.status, self.type, self.message, self.headers)


def error_reply(status: int, type_: str, message: str, headers: tuple[Header, ...] = ()) -> Reply:
    """Return the answer to an error."""
    document = {"code": status, "type": type_, "message": message}
    return json_reply(document, status, headers)


def answer_of(error: type[HeadraceError]) -> tuple[int, str]:
    """Return the status and the type of the answer to an error of this class."""
    return next(_ANSWERS[base] for base in error.__mro__ if base in _ANSWERS)


def answer_of_failure(failure: JobFailure) -> tuple[int, str]:
    """Return the status and the type of the answer to a job that failed."""
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
        return error.reply()
    if isinstance(error, errors.PayloadTooLarge):
        return Reply(413, b"", NO_TYPE)
    status, type_ = answer_of(type(error))
    message = message_of(error)
    wait_s = retry_after_s(error)
    headers = ((b"retry-after", b"%d" % wait_s),) if wait_s else ()
    return error_reply(status, type_, message, headers)


def unexpected(error: Exception, path: str) -> Reply:
    """Log an unexpected error; return the answer, which names the id of the log's line."""
    return reply_to(internal_error(error, path)[0])
