"""The one error tree. Each class carries its code, its HTTP status and whether a retry can help.

    HeadraceError
    ├── ConfigError            config-error         a setting or a models file is wrong
    ├── RequestError                                the request was refused; no job was made
    │   ├── InvalidRequest     invalid-request      400
    │   ├── InvalidId          invalid-id           422
    │   ├── Unauthorized       unauthorized         401  no API key, or one that is none (any more)
    │   ├── Forbidden          forbidden            403  the API key is not for that
    │   ├── ModelNotFound      model-not-found      404
    │   ├── PathNotFound       not-found            404  the API has no such path
    │   ├── JobNotFound        job-not-found        404
    │   ├── ResultFreed        result-freed         410  of a pipeline's stage; it was taken
    │   ├── ListsOff           lists-off            404  job_index_max is 0
    │   ├── QueueNotFound      queue-not-found      404
    │   ├── RunNotFound        run-not-found        404
    │   ├── LetterNotFound     letter-not-found     404
    │   ├── FileMissing        file-not-found       404
    │   ├── BatchNotFound      batch-not-found      404
    │   ├── MethodNotAllowed   method-not-allowed   405
    │   ├── Conflict           conflict             409
    │   ├── InputForbidden     input-forbidden      403
    │   ├── PayloadTooLarge    payload-too-large    413
    │   ├── HeaderTooLarge     header-too-large     431  the request's line and headers
    │   ├── RequestTimeout     request-timeout      408  the request did not come to its end
    │   ├── UnsupportedMedia   unsupported-media    415
    │   ├── RangeNotSatisfiable range-not-satisfiable 416
    │   └── Throttled
    │       ├── QueueFull      queue-full           429, retry
    │       ├── RateLimited    rate-limited         429, retry  more requests than the key may make
    │       ├── TooManyInFlight too-many-in-flight  429, retry  more jobs than the key may have
    │       └── TooManyStreams too-many-streams     429, retry  more event streams than there may be
    ├── JobError                                    how a job that was accepted ended
    │   ├── InputError         input-error          422  the input is bad; it fails alone
    │   ├── HandlerError       handler-error        500  the handler raised on this input
    │   ├── TransientError     transient-error      503, retry  the handler says: try again
    │   ├── OutOfMemory        out-of-memory        507, retry
    │   ├── JobTimeout         timeout              504
    │   ├── ReplicaLost        replica-lost         500  its process died each time it ran alone
    │   ├── InputUnavailable   input-unavailable    502  its input could not be fetched
    │   ├── ResultNotStored    result-not-stored    502, retry
    │   ├── JobExpired         expired              410  not started: it was or would be too late
    │   └── JobCancelled       cancelled            410
    ├── StoreError                                  the payload store
    │   ├── StoreUnavailable   store-unavailable    503, retry
    │   └── StoreFull          payload-storage-full 507, retry
    ├── BrokerError
    │   ├── BrokerUnavailable  broker-unavailable   503, retry
    │   ├── BrokerFull         broker-full          503, retry  Redis is at its maxmemory
    │   └── BrokerUnsupported  broker-unsupported   500  Redis Cluster, or older than 6.2
    ├── ModelsNotReady         models-not-ready     503, retry
    ├── InternalError          internal-error       500  the API has failed
    └── ClientError                                 raised by headrace.client itself
        ├── ServerUnreachable  server-unreachable   nothing answers at the address, retry
        ├── UnexpectedAnswer   unexpected-answer    what answers there is not Headrace
        └── WaitTimeout        wait-timeout         not ended in time; the job goes on

`code` is the last part of the problem `type` that the API answers with, and the word that job
records and Celery results carry; it does not change once released. The client raises these same
classes for what the API answers and for how a job ended.
"""

from __future__ import annotations

from typing import ClassVar, Final


class HeadraceError(Exception):
    """Root of every error that Headrace raises on purpose.

    Args:
        message: what was wrong, where, and with which value.
        hint: what to do about it.

    Attributes:
        code: the word for it. The client sets it on an instance where a newer server says a word
            that this version does not know; so too `status` and `retryable`.
        status: the HTTP status of the API's answer.
        retryable: whether another try can succeed.
        title: a few words for it.
    """

    code: str = "error"
    status: int = 500
    retryable: bool = False
    title: ClassVar[str] = "Error"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigError(HeadraceError):
    """A setting or a models file is wrong; the message names the key and the file."""

    code = "config-error"
    title = "Configuration error"


class RequestError(HeadraceError):
    """The request was refused and no job was made."""

    status = 400


class InvalidRequest(RequestError):
    """The request cannot be read: bad JSON, an unknown option, an option out of range."""

    code = "invalid-request"
    title = "Invalid request"


class InvalidId(RequestError):
    """The id, or the idempotency key, is not one that a job can have."""

    code = "invalid-id"
    status = 422
    title = "Invalid id"


class ModelNotFound(RequestError):
    """No model of that name (and version) is registered."""

    code = "model-not-found"
    status = 404
    title = "Model not found"


class PathNotFound(RequestError):
    """The API has no such path."""

    code = "not-found"
    status = 404
    title = "Not found"


class JobNotFound(RequestError):
    """No job has that id: it never was, or its result_ttl has passed."""

    code = "job-not-found"
    status = 404
    title = "Job not found"


class ResultFreed(RequestError):
    """The result was that of a stage of a pipeline, all of whose takers have ended."""

    code = "result-freed"
    status = 410
    title = "Result freed"


class QueueNotFound(RequestError):
    """No registered model is served from a queue of that name."""

    code = "queue-not-found"
    status = 404
    title = "Queue not found"


class RunNotFound(RequestError):
    """No offline run of that id has told this server of itself within the last 30 days."""

    code = "run-not-found"
    status = 404
    title = "Run not found"


class LetterNotFound(RequestError):
    """The queue has no dead letter of that name: it was put back or removed, or has run out."""

    code = "letter-not-found"
    status = 404
    title = "Dead letter not found"


class WebhookNotFound(RequestError):
    """A job has no webhook delivery of that id, or none yet."""

    code = "webhook-not-found"
    status = 404


class FileMissing(RequestError):
    """There is no file of that id: it was deleted, has expired, or was never uploaded whole."""

    code = "file-not-found"
    status = 404
    title = "File not found"


class BatchNotFound(RequestError):
    """There is no batch of that id: it never was, or is no longer kept."""

    code = "batch-not-found"
    status = 404
    title = "Batch not found"


class ListsOff(RequestError):
    """Jobs cannot be listed here: the setting job_index_max is 0."""

    code = "lists-off"
    status = 404
    title = "Lists are switched off"


class MethodNotAllowed(RequestError):
    """The path exists, but not for this method."""

    code = "method-not-allowed"
    status = 405
    title = "Method not allowed"


class Conflict(RequestError):
    """The id or idempotency key was used before for another request."""

    code = "conflict"
    status = 409
    title = "Conflict"


class InputForbidden(RequestError):
    """The file or object that `input_ref` names is not one that clients may name."""

    code = "input-forbidden"
    status = 403
    title = "Input forbidden"


class PayloadTooLarge(RequestError):
    """The body is larger than body_limit_bytes, or the input than the payload store ever takes."""

    code = "payload-too-large"
    status = 413
    title = "Payload too large"


class UnsupportedMedia(RequestError):
    """The content type cannot be read on this route."""

    code = "unsupported-media"
    status = 415
    title = "Unsupported media type"


class RangeNotSatisfiable(RequestError):
    """The range that was asked for lies behind the end of the result."""

    code = "range-not-satisfiable"
    status = 416
    title = "Range not satisfiable"


class Unauthorized(RequestError):
    """The request has no API key, or one that is none: never made, revoked or expired."""

    code = "unauthorized"
    status = 401
    title = "API key needed"


class Forbidden(RequestError):
    """The API key has not the scope that the route wants, or a page of another origin asks."""

    code = "forbidden"
    status = 403
    title = "Not allowed"


class RequestTimeout(RequestError):
    """Nothing more came of the request for request_timeout_s, before it was whole."""

    code = "request-timeout"
    status = 408
    title = "Request timeout"


class HeaderTooLarge(RequestError):
    """The request's line and headers are longer than header_limit_bytes, or there are too many."""

    code = "header-too-large"
    status = 431
    title = "Header too large"


class Throttled(RequestError):
    """Too much at once; nothing was enqueued, and a retry can help.

    Args:
        retry_after_s: seconds after which a retry is sensible.
    """

    status = 429
    retryable = True

    def __init__(self, message: str, *, hint: str = "", retry_after_s: int = 1) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class QueueFull(Throttled):
    """The model's queue holds max_queue_depth jobs; nothing was enqueued."""

    code = "queue-full"
    title = "Queue full"


class RateLimited(Throttled):
    """The API key makes more requests than it may a second."""

    code = "rate-limited"
    title = "Rate limit"


class TooManyInFlight(Throttled):
    """The API key has as many jobs that have not ended as it may have; nothing was enqueued."""

    code = "too-many-in-flight"
    title = "Too many jobs in flight"


class TooManyStreams(Throttled):
    """As many event streams are open on this API process, or of this API key, as there may be."""

    code = "too-many-streams"
    title = "Too many event streams"


class JobError(HeadraceError):
    """How an accepted job ended when it did not succeed.

    Attributes:
        job_id: the job, where the client raises it; else "".
    """

    job_id: str = ""


class InputError(JobError):
    """The input is bad. A handler returns or raises it; the job fails alone, with this message."""

    code = "input-error"
    status = 422
    title = "Bad input"


class HandlerError(JobError):
    """The handler raised on this input when it ran alone."""

    code = "handler-error"
    title = "Handler error"


class TransientError(JobError):
    """The handler says that another attempt can succeed; it is retried up to max_retries."""

    code = "transient-error"
    status = 503
    retryable = True
    title = "Transient handler error"


class OutOfMemory(JobError):
    """The device had no memory for this input even when it ran alone."""

    code = "out-of-memory"
    status = 507
    retryable = True
    title = "Out of memory"


class JobTimeout(JobError):
    """The job ran longer than its timeout; its model process was killed."""

    code = "timeout"
    status = 504
    title = "Timeout"


class ReplicaLost(JobError):
    """The model process died each time it ran this job alone; the job is in the dead letters."""

    code = "replica-lost"
    title = "Model process lost"


class InputUnavailable(JobError):
    """The job's input could not be fetched from where it lies: it is gone, or no answer came."""

    code = "input-unavailable"
    status = 502
    title = "Input unavailable"


class ResultNotStored(JobError):
    """The job has run, but its large result could not be written to the payload store."""

    code = "result-not-stored"
    status = 502
    retryable = True
    title = "Result not stored"


#: What a job says that was not started in time.
NOT_STARTED: Final = "the job was not started before its `expires`"


class JobExpired(JobError):
    """The job was not started before its `expires`, or could not have ended within its timeout."""

    code = "expired"
    status = 410
    title = "Expired"


class JobCancelled(JobError):
    """The job was cancelled."""

    code = "cancelled"
    status = 410
    title = "Cancelled"


class StoreError(HeadraceError):
    """The payload store cannot do what was asked."""

    status = 503


class StoreUnavailable(StoreError):
    """The payload store does not answer; nothing was enqueued."""

    code = "store-unavailable"
    retryable = True
    title = "Payload store unavailable"


class StoreFull(StoreError):
    """The payload store takes no more; nothing was enqueued, and small inputs are still taken."""

    code = "payload-storage-full"
    status = 507
    retryable = True
    title = "Payload storage full"


class BrokerError(HeadraceError):
    """Redis cannot do what was asked."""

    status = 503


class BrokerUnavailable(BrokerError):
    """Redis does not answer. A submit may be said again under the same id."""

    code = "broker-unavailable"
    retryable = True
    title = "Broker unavailable"


class BrokerFull(BrokerError):
    """Redis is at its maxmemory and refuses new jobs; running work still ends."""

    code = "broker-full"
    retryable = True
    title = "Broker full"


class BrokerUnsupported(BrokerError):
    """The server is in cluster mode, or older than Redis 6.2."""

    code = "broker-unsupported"
    status = 500
    title = "Broker unsupported"


class ModelsNotReady(HeadraceError):
    """Asked with `?models=all`: some model has no loaded replica."""

    code = "models-not-ready"
    status = 503
    retryable = True
    title = "Models not ready"


class InternalError(HeadraceError):
    """The API has failed; its log has the details under the answer's `id`."""

    code = "internal-error"
    title = "Internal error"


class ClientError(HeadraceError):
    """What the client itself raises; no server answers with it."""


class ServerUnreachable(ClientError):
    """Nothing answers at the address, or it stopped answering for longer than was to be borne."""

    code = "server-unreachable"
    retryable = True
    title = "Server unreachable"


class UnexpectedAnswer(ClientError):
    """What answers at the address does not speak as Headrace does."""

    code = "unexpected-answer"
    title = "Unexpected answer"


class WaitTimeout(ClientError, TimeoutError):
    """The job had not ended when the wait was over; it goes on, and can be waited for again.

    Attributes:
        job_id: the job.
    """

    code = "wait-timeout"
    title = "Wait timed out"
    job_id: str = ""


def _tree(root: type[HeadraceError]) -> dict[str, type[HeadraceError]]:
    found = {root.code: root} if "code" in vars(root) else {}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


#: Every class of the tree by its code, for whoever reads a code back from a record or a problem.
BY_CODE: dict[str, type[HeadraceError]] = _tree(HeadraceError)
