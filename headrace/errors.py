"""The one error tree. Each class has its code, its HTTP status and whether a retry can help.

`code` is the last part of the problem `type` in the API's answers, and the error type in job
records and Celery results. It does not change once released. The client raises the same classes
for the API's answers and for failed jobs. `BY_CODE` has every class by its code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Self

from typing_extensions import override

if TYPE_CHECKING:
    from headrace.response import ErrorResponse

#: The message of JobExpired.
NOT_STARTED: Final = "the job was not started before its `expires`"


class HeadraceError(Exception):
    """Root of every error that Headrace raises on purpose.

    Args:
        message: what is wrong, where, and with which value.

    Attributes:
        code: identifies the error. If a newer server sends a code that this version does not know,
            the client sets it on the instance, and `status` and `retryable` too.
        retryable: whether another try can succeed.
    """

    code: str = "error"
    status: int = 500
    retryable: bool = False
    title: ClassVar[str] = "Error"

    @override
    def __init_subclass__(
        cls,
        *,
        code: str | None = None,
        status: int | None = None,
        retryable: bool | None = None,
        title: str | None = None,
    ) -> None:
        """Set what a class statement gives; a title is the code in words, the rest is inherited."""
        super().__init_subclass__()
        if code is not None:
            title = title or code.replace("-", " ").capitalize()
        given = {"code": code, "status": status, "retryable": retryable, "title": title}
        for name, value in given.items():
            if value is not None:
                setattr(cls, name, value)

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def message_with_hint(self) -> str:
        """Return what is wrong and what to do, in one text."""
        return with_hint(self.message, self.hint)

    def kept(self) -> Self:
        """Return the error without its traceback, to keep it as an outcome.

        A traceback holds every frame that the error has passed, with what those frames hold.
        """
        drop_tracebacks(self)
        return self


def with_hint(message: str, hint: str) -> str:
    """Return a message followed by its hint: a sentence of its own if it begins as one."""
    if not hint:
        return message
    message = message.removesuffix(".")
    separator = " " if message.endswith("?") else ". " if hint[0].isupper() else "; "
    return f"{message}{separator}{hint}"


def drop_tracebacks(error: BaseException) -> None:
    """Drop the traceback of an error that is answered, and those of the errors before it.

    A frame that raises one of its variables is a cycle: the error holds the frame by its traceback.
    The cycle, and with it the body of the request, would stay until the collector runs.
    """
    left: BaseException | None = error
    while left is not None:
        before = left.__cause__ or left.__context__
        left.__traceback__ = left.__cause__ = left.__context__ = None
        left = before


class ConfigError(HeadraceError, code="config-error", title="Configuration error"):
    """A setting or a models file is wrong; the message names the key and the file."""


class RequestError(HeadraceError, status=400):
    """The request was refused and no job was made."""


class InvalidRequest(RequestError, code="invalid-request"):
    """The request cannot be read: bad JSON, an unknown option, an option out of range."""


class InvalidParameter(InvalidRequest):
    """A parameter, or a member of the body, is not valid."""

    def __init__(self, message: str, param: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.param = param


@dataclass(frozen=True, slots=True)
class FieldError:
    """One place at which an input does not fit its model.

    Attributes:
        path: a JSON pointer into the input, such as `/text`; "" is the whole input.
        message: what is wrong; it has no value of the input.
        expected: what the schema asks for there.
    """

    path: str
    message: str
    expected: str = ""


class InvalidInput(RequestError, code="invalid-input", status=422):
    """The input does not fit the `inputs` that its model declares; no job was made.

    Args:
        errors: where the input does not fit, at most ten places.
    """

    def __init__(self, message: str, *, hint: str = "", errors: Sequence[FieldError] = ()) -> None:
        super().__init__(message, hint=hint)
        self.errors = list(errors)


class InvalidId(RequestError, code="invalid-id", status=422):
    """The id, or the idempotency key, is not one that a job can have."""


class ModelNotFound(RequestError, code="model-not-found", status=404):
    """No model of that name (and version) is registered."""


class ModelNotLoaded(RequestError, code="model-not-loaded", status=503, retryable=True):
    """No worker can load the model; the error names the reason."""


class PathNotFound(RequestError, code="not-found", status=404):
    """The API has no such path."""


class JobNotFound(RequestError, code="job-not-found", status=404):
    """No job has that id: it never existed, or its result_ttl has passed."""


class ResultFreed(RequestError, code="result-freed", status=410):
    """The result of a pipeline's stage was freed: all stages that use it have ended."""


class InputGone(RequestError, code="input-gone", status=410):
    """The server has no input of the job: it has ended and not failed, or failed long ago."""


class QueueNotFound(RequestError, code="queue-not-found", status=404):
    """No registered model is served from a queue of that name."""


class RunNotFound(RequestError, code="run-not-found", status=404):
    """No offline run of that id has reported to this server within the last 30 days."""


class ProfileNotFound(RequestError, code="profile-not-found", status=404):
    """No profile has that id: it never existed, has expired, or newer ones took its place."""


class WorkerNotFound(RequestError, code="worker-not-found", status=404):
    """No worker of that name has reported within the last seconds."""


class KeyNotFound(RequestError, code="key-not-found", status=404, title="API key not found"):
    """No API key has that id: it never existed, or it was revoked."""


class LetterNotFound(
    RequestError, code="letter-not-found", status=404, title="Dead letter not found"
):
    """The queue has no dead letter of that name: it was requeued or removed, or has expired."""


class WebhookNotFound(
    RequestError, code="webhook-not-found", status=404, title="Webhook delivery not found"
):
    """The job has no webhook delivery of that id, or none yet."""


class FileMissing(RequestError, code="file-not-found", status=404):
    """No file has that id: it was deleted, has expired, or its upload did not complete."""


class BatchNotFound(RequestError, code="batch-not-found", status=404):
    """No batch has that id: it never existed, or has expired."""


class ListsOff(RequestError, code="lists-off", status=404, title="Lists are switched off"):
    """Jobs or failures cannot be listed here: job_index_max or failures_max is 0."""


class MethodNotAllowed(RequestError, code="method-not-allowed", status=405):
    """The path exists, but not for this method."""


class Conflict(RequestError, code="conflict", status=409):
    """The id or idempotency key was used before for another request."""


class InputForbidden(RequestError, code="input-forbidden", status=403):
    """The file or object that `input_ref` names is not one that clients may name."""


class PayloadTooLarge(RequestError, code="payload-too-large", status=413):
    """The body is larger than body_limit_bytes, or the input than the payload store can hold."""


class UnsupportedMedia(
    RequestError, code="unsupported-media", status=415, title="Unsupported media type"
):
    """The content type cannot be read on this route."""


class RangeNotSatisfiable(RequestError, code="range-not-satisfiable", status=416):
    """The requested range begins behind the end of the result."""


class Unauthorized(RequestError, code="unauthorized", status=401, title="API key needed"):
    """The request has no valid API key: none, an unknown, a revoked or an expired one."""


class Forbidden(RequestError, code="forbidden", status=403, title="Not allowed"):
    """The API key lacks the route's scope, or the request comes from a page of another origin."""


class RequestTimeout(RequestError, code="request-timeout", status=408):
    """No more of an incomplete request arrived for request_timeout_s."""


class HeaderTooLarge(RequestError, code="header-too-large", status=431):
    """The request's line and headers are longer than header_limit_bytes, or there are too many."""


class Throttled(RequestError, status=429, retryable=True):
    """A limit was reached. Nothing was enqueued; a retry can help.

    Args:
        retry_after_s: seconds after which a retry is sensible.
    """

    def __init__(self, message: str, *, hint: str = "", retry_after_s: int = 1) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class QueueFull(Throttled, code="queue-full"):
    """The model's queue has max_queue_depth jobs or max_queued_tokens; nothing was enqueued."""


class RateLimited(Throttled, code="rate-limited", title="Rate limit"):
    """The API key exceeds its rate of requests and jobs, or its jobs need more tokens."""


class TokensUsed(RateLimited):
    """The jobs of the API key need more tokens a minute than its limit allows.

    Args:
        retry_after_s: seconds until there are enough.
        limit: the tokens a minute.
        left: how many of them are left.
    """

    def __init__(
        self, message: str, *, hint: str, retry_after_s: int, limit: int, left: int
    ) -> None:
        super().__init__(message, hint=hint, retry_after_s=retry_after_s)
        self.limit, self.left = limit, left


class TooManyInFlight(Throttled, code="too-many-in-flight", title="Too many jobs in flight"):
    """The API key has as many jobs in flight as its limit allows; nothing was enqueued."""


class TooManyStreams(Throttled, code="too-many-streams", title="Too many event streams"):
    """This API process, or this API key, has as many event streams open as its limit allows."""


class JobError(HeadraceError):
    """An accepted job did not succeed.

    Attributes:
        job_id: the job, if the client raises the error; else "".
        traceback: the handler's traceback, or the stacks at a timeout, if the client raises the
            error and the server has it; else "".
    """

    job_id: str = ""
    traceback: str = ""


class InputError(JobError, code="input-error", status=422, title="Bad input"):
    """The input is bad. A handler returns or raises it; only this job fails, with its message."""


class HandlerError(JobError, code="handler-error"):
    """The handler raised on this input when it ran alone.

    Args:
        response: what clients of TorchServe's URLs receive; None for the server's own text.
    """

    def __init__(
        self, message: str, *, hint: str = "", response: ErrorResponse | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.response = response


class TransientError(
    JobError, code="transient-error", status=503, retryable=True, title="Transient handler error"
):
    """The handler reports that a retry can succeed; the job is retried up to max_retries."""


class OutOfMemory(JobError, code="out-of-memory", status=507, retryable=True):
    """The device had no memory for this input even when it ran alone."""


class JobTimeout(JobError, code="timeout", status=504):
    """The job ran longer than its timeout, and was stopped."""


class ReplicaLost(JobError, code="replica-lost", title="Model process lost"):
    """The model process died each time it ran this job alone; the job is in the dead letters."""


class InputUnavailable(JobError, code="input-unavailable", status=502):
    """The job's input could not be read: it is gone, or its store does not answer."""


class ResultNotStored(JobError, code="result-not-stored", status=502, retryable=True):
    """The job has run, but its large result could not be written to the payload store."""


class JobExpired(JobError, code="expired", status=410):
    """The job was not started before its `expires`, or could not have ended within its timeout."""


class JobCancelled(JobError, code="cancelled", status=410):
    """The job was cancelled."""


class StoreError(HeadraceError, status=503):
    """The payload store cannot do what was asked."""


class StoreUnavailable(
    StoreError, code="store-unavailable", retryable=True, title="Payload store unavailable"
):
    """The payload store does not answer; nothing was enqueued."""


class StoreFull(StoreError, code="payload-storage-full", status=507, retryable=True):
    """The payload store is full. Nothing was enqueued; small inputs are still accepted."""


class BrokerError(HeadraceError, status=503):
    """Redis cannot do what was asked."""


class BrokerUnavailable(BrokerError, code="broker-unavailable", retryable=True):
    """Redis does not answer. A submit can be repeated under the same id."""


class BrokerFull(BrokerError, code="broker-full", retryable=True):
    """Redis is at its maxmemory and refuses new jobs. Running jobs still end."""


class BrokerUnsupported(BrokerError, code="broker-unsupported", status=500):
    """The server is in cluster mode, or older than Redis 6.2."""


class ModelsNotReady(HeadraceError, code="models-not-ready", status=503, retryable=True):
    """A model has no loaded replica (`/ready?models=all`)."""


class Stopping(HeadraceError, code="stopping", status=503, retryable=True):
    """This API process stops soon (`stop_delay_s`); `/ready` answers so, others are served."""


class InternalError(HeadraceError, code="internal-error"):
    """The API has failed. Its log has the details under the answer's `id`."""


class ClientError(HeadraceError):
    """Raised by the client itself, never sent by a server."""


class ServerUnreachable(ClientError, code="server-unreachable", retryable=True):
    """No server answers at the address, or it did not answer for longer than `retry_s`."""


class UnexpectedAnswer(ClientError, code="unexpected-answer"):
    """The server at the address does not answer as Headrace does."""


class WaitTimeout(ClientError, TimeoutError, code="wait-timeout", title="Wait timed out"):
    """The job did not end within the wait. It continues, and a new wait is possible."""

    job_id: str = ""


class StreamRestarted(ClientError, code="stream-restarted"):
    """The job began again, so the pieces that came before do not count.

    Attributes:
        place: the new pieces are behind it: `stream(job, starting_after=place)`.
    """

    def __init__(self, job_id: str, place: str) -> None:
        super().__init__(
            f"job {job_id} began again; the pieces that came before do not count",
            hint=f'drop them, and read on with starting_after="{place}"',
        )
        self.job_id, self.place = job_id, place


class PiecesMissing(ClientError, code="pieces-missing"):
    """The server does not keep some pieces of a stream any more.

    Attributes:
        first: the index of the first missing piece.
        last: that of the last one.
        place: the next pieces are behind it: `stream(job, starting_after=place)`.
    """

    def __init__(self, job_id: str, first: int, last: int, place: str) -> None:
        super().__init__(
            f"pieces {first} to {last} of job {job_id} are not kept any more",
            hint=f'its result has them; or read on with starting_after="{place}"',
        )
        self.job_id, self.first, self.last, self.place = job_id, first, last, place


def last_line(text: str) -> str:
    """Return the last line with a letter or a digit, such as the error of a traceback; else ""."""
    lines = (line.strip() for line in reversed(text.splitlines()))
    return next((line for line in lines if any(map(str.isalnum, line))), "")


def _classes(root: type[HeadraceError]) -> Iterator[type[HeadraceError]]:
    yield root
    for child in root.__subclasses__():
        yield from _classes(child)


#: Every class of the tree by its code, in the order above, which the API's description uses.
BY_CODE: Final[dict[str, type[HeadraceError]]] = {
    kind.code: kind for kind in _classes(HeadraceError) if "code" in vars(kind)
}
