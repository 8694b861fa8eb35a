"""Errors of accepted jobs that did not succeed."""

from __future__ import annotations

from typing import Final

from headrace.errors.base import HeadraceError


class JobError(HeadraceError):
    """An accepted job did not succeed.

    Attributes:
        job_id: the job, if the client raises the error; else "".
    """

    job_id: str = ""


class InputError(JobError):
    """The input is bad. A handler returns or raises it; only this job fails, with its message."""

    code = "input-error"
    status = 422
    title = "Bad input"


class HandlerError(JobError):
    """The handler raised on this input when it ran alone."""

    code = "handler-error"
    title = "Handler error"


class TransientError(JobError):
    """The handler reports that a retry can succeed; the job is retried up to max_retries."""

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
    """The job's input could not be read: it is gone, or its store does not answer."""

    code = "input-unavailable"
    status = 502
    title = "Input unavailable"


class ResultNotStored(JobError):
    """The job has run, but its large result could not be written to the payload store."""

    code = "result-not-stored"
    status = 502
    retryable = True
    title = "Result not stored"


#: The message of JobExpired.
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
