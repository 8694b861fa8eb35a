"""The one error tree. Each class carries its code, its HTTP status and whether a retry can help.

    HeadraceError
    ├── ConfigError            config-error         a setting or a models file is wrong
    ├── RequestError                                the request was refused; no job was made
    │   ├── InvalidRequest     invalid-request      400
    │   ├── InvalidId          invalid-id           422
    │   ├── Unauthorized       unauthorized         401  no API key, or an invalid one
    │   ├── Forbidden          forbidden            403  the API key lacks the scope
    │   ├── ModelNotFound      model-not-found      404
    │   ├── PathNotFound       not-found            404  the API has no such path
    │   ├── JobNotFound        job-not-found        404
    │   ├── ResultFreed        result-freed         410  of a pipeline's stage; no longer needed
    │   ├── ListsOff           lists-off            404  job_index_max is 0
    │   ├── QueueNotFound      queue-not-found      404
    │   ├── RunNotFound        run-not-found        404
    │   ├── LetterNotFound     letter-not-found     404
    │   ├── WebhookNotFound    webhook-not-found    404
    │   ├── FileMissing        file-not-found       404
    │   ├── BatchNotFound      batch-not-found      404
    │   ├── MethodNotAllowed   method-not-allowed   405
    │   ├── Conflict           conflict             409
    │   ├── InputForbidden     input-forbidden      403
    │   ├── PayloadTooLarge    payload-too-large    413
    │   ├── HeaderTooLarge     header-too-large     431  the request's line and headers
    │   ├── RequestTimeout     request-timeout      408  the rest of the request did not arrive
    │   ├── UnsupportedMedia   unsupported-media    415
    │   ├── RangeNotSatisfiable range-not-satisfiable 416
    │   └── Throttled
    │       ├── QueueFull      queue-full           429, retry
    │       ├── RateLimited    rate-limited         429, retry  the key's request rate
    │       ├── TooManyInFlight too-many-in-flight  429, retry  the key's limit of jobs
    │       └── TooManyStreams too-many-streams     429, retry  the limit of event streams
    ├── JobError                                    an accepted job ended without a result
    │   ├── InputError         input-error          422  the input is bad; only this job fails
    │   ├── HandlerError       handler-error        500  the handler raised on this input
    │   ├── TransientError     transient-error      503, retry  the handler asks for a retry
    │   ├── OutOfMemory        out-of-memory        507, retry
    │   ├── JobTimeout         timeout              504
    │   ├── ReplicaLost        replica-lost         500  its process died each time it ran alone
    │   ├── InputUnavailable   input-unavailable    502  its input could not be read
    │   ├── ResultNotStored    result-not-stored    502, retry
    │   ├── JobExpired         expired              410  not started in time
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
        ├── ServerUnreachable  server-unreachable   no server answers at the address, retry
        ├── UnexpectedAnswer   unexpected-answer    the server is not Headrace
        └── WaitTimeout        wait-timeout         the job has not ended in time; it continues

`code` is the last part of the problem `type` in the API's answers, and the error type in job
records and Celery results. It does not change once released. The client raises the same classes
for the API's answers and for failed jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headrace.errors.base import HeadraceError
from headrace.errors.client import ClientError, ServerUnreachable, UnexpectedAnswer, WaitTimeout
from headrace.errors.job import (
    NOT_STARTED,
    HandlerError,
    InputError,
    InputUnavailable,
    JobCancelled,
    JobError,
    JobExpired,
    JobTimeout,
    OutOfMemory,
    ReplicaLost,
    ResultNotStored,
    TransientError,
)
from headrace.errors.request import (
    BatchNotFound,
    Conflict,
    FileMissing,
    Forbidden,
    HeaderTooLarge,
    InputForbidden,
    InvalidId,
    InvalidRequest,
    JobNotFound,
    LetterNotFound,
    ListsOff,
    MethodNotAllowed,
    ModelNotFound,
    PathNotFound,
    PayloadTooLarge,
    QueueFull,
    QueueNotFound,
    RangeNotSatisfiable,
    RateLimited,
    RequestError,
    RequestTimeout,
    ResultFreed,
    RunNotFound,
    Throttled,
    TooManyInFlight,
    TooManyStreams,
    Unauthorized,
    UnsupportedMedia,
    WebhookNotFound,
)
from headrace.errors.server import (
    BrokerError,
    BrokerFull,
    BrokerUnavailable,
    BrokerUnsupported,
    ConfigError,
    InternalError,
    ModelsNotReady,
    StoreError,
    StoreFull,
    StoreUnavailable,
)

__all__ = [
    "BY_CODE",
    "NOT_STARTED",
    "BatchNotFound",
    "BrokerError",
    "BrokerFull",
    "BrokerUnavailable",
    "BrokerUnsupported",
    "ClientError",
    "ConfigError",
    "Conflict",
    "FileMissing",
    "Forbidden",
    "HandlerError",
    "HeaderTooLarge",
    "HeadraceError",
    "InputError",
    "InputForbidden",
    "InputUnavailable",
    "InternalError",
    "InvalidId",
    "InvalidRequest",
    "JobCancelled",
    "JobError",
    "JobExpired",
    "JobNotFound",
    "JobTimeout",
    "LetterNotFound",
    "ListsOff",
    "MethodNotAllowed",
    "ModelNotFound",
    "ModelsNotReady",
    "OutOfMemory",
    "PathNotFound",
    "PayloadTooLarge",
    "QueueFull",
    "QueueNotFound",
    "RangeNotSatisfiable",
    "RateLimited",
    "ReplicaLost",
    "RequestError",
    "RequestTimeout",
    "ResultFreed",
    "ResultNotStored",
    "RunNotFound",
    "ServerUnreachable",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "Throttled",
    "TooManyInFlight",
    "TooManyStreams",
    "TransientError",
    "Unauthorized",
    "UnexpectedAnswer",
    "UnsupportedMedia",
    "WaitTimeout",
    "WebhookNotFound",
]


def _classes(root: type[HeadraceError]) -> Iterator[type[HeadraceError]]:
    yield root
    for child in root.__subclasses__():
        yield from _classes(child)


# The order of the tree, which the API's description uses.
_BRANCHES: Final = (
    ConfigError, RequestError, JobError, StoreError, BrokerError, ModelsNotReady, InternalError,
    ClientError,
)  # fmt: skip
_CLASSES: Final[tuple[type[HeadraceError], ...]] = (
    HeadraceError,
    *(kind for branch in _BRANCHES for kind in _classes(branch)),
)

# Celery results contain the module of the error class: always this one.
for _class in _CLASSES:
    _class.__module__ = __name__
del _class

#: Every class of the tree by its code, to read codes in records and problems.
BY_CODE: dict[str, type[HeadraceError]] = {
    kind.code: kind for kind in _CLASSES if "code" in vars(kind)
}
