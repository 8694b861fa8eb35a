"""A request was refused, and no job was made."""

from __future__ import annotations

from headrace.errors.base import HeadraceError


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
    """No job has that id: it never existed, or its result_ttl has passed."""

    code = "job-not-found"
    status = 404
    title = "Job not found"


class ResultFreed(RequestError):
    """The result of a pipeline's stage was freed: all stages that use it have ended."""

    code = "result-freed"
    status = 410
    title = "Result freed"


class QueueNotFound(RequestError):
    """No registered model is served from a queue of that name."""

    code = "queue-not-found"
    status = 404
    title = "Queue not found"


class RunNotFound(RequestError):
    """No offline run of that id has reported to this server within the last 30 days."""

    code = "run-not-found"
    status = 404
    title = "Run not found"


class LetterNotFound(RequestError):
    """The queue has no dead letter of that name: it was requeued or removed, or has expired."""

    code = "letter-not-found"
    status = 404
    title = "Dead letter not found"


class WebhookNotFound(RequestError):
    """The job has no webhook delivery of that id, or none yet."""

    code = "webhook-not-found"
    status = 404
    title = "Webhook delivery not found"


class FileMissing(RequestError):
    """No file has that id: it was deleted, has expired, or its upload did not complete."""

    code = "file-not-found"
    status = 404
    title = "File not found"


class BatchNotFound(RequestError):
    """No batch has that id: it never existed, or has expired."""

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
    """The body is larger than body_limit_bytes, or the input than the payload store can hold."""

    code = "payload-too-large"
    status = 413
    title = "Payload too large"


class UnsupportedMedia(RequestError):
    """The content type cannot be read on this route."""

    code = "unsupported-media"
    status = 415
    title = "Unsupported media type"


class RangeNotSatisfiable(RequestError):
    """The requested range begins behind the end of the result."""

    code = "range-not-satisfiable"
    status = 416
    title = "Range not satisfiable"


class Unauthorized(RequestError):
    """The request has no valid API key: none, an unknown, a revoked or an expired one."""

    code = "unauthorized"
    status = 401
    title = "API key needed"


class Forbidden(RequestError):
    """The API key lacks the route's scope, or the request comes from a page of another origin."""

    code = "forbidden"
    status = 403
    title = "Not allowed"


class RequestTimeout(RequestError):
    """No more of an incomplete request arrived for request_timeout_s."""

    code = "request-timeout"
    status = 408
    title = "Request timeout"


class HeaderTooLarge(RequestError):
    """The request's line and headers are longer than header_limit_bytes, or there are too many."""

    code = "header-too-large"
    status = 431
    title = "Header too large"


class Throttled(RequestError):
    """A limit was reached. Nothing was enqueued; a retry can help.

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
    """The API key makes more requests per second than its rate allows."""

    code = "rate-limited"
    title = "Rate limit"


class TooManyInFlight(Throttled):
    """The API key has as many jobs in flight as its limit allows; nothing was enqueued."""

    code = "too-many-in-flight"
    title = "Too many jobs in flight"


class TooManyStreams(Throttled):
    """This API process, or this API key, has as many event streams open as its limit allows."""

    code = "too-many-streams"
    title = "Too many event streams"
