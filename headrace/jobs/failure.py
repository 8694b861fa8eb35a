"""How a job ended that did not succeed, out of its record. Knows no HTTP beyond its statuses."""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

import msgspec

from headrace.errors import BY_CODE, HeadraceError
from headrace.jobs.job import Job, State

logger = logging.getLogger(__name__)


class JobFailure(NamedTuple):
    """How a job ended that did not succeed."""

    type: str
    message: str
    retryable: bool

    @property
    def status(self) -> int:
        """Its HTTP status; 500 for what this version does not know."""
        return BY_CODE.get(self.type, HeadraceError).status


class _Error(msgspec.Struct):
    type: str = "error"
    message: str = ""
    retryable: bool = False


_ENDINGS: Final = {
    State.CANCELLED: JobFailure("cancelled", "the job was cancelled", retryable=False),
    State.EXPIRED: JobFailure("expired", "the job was not started in time", retryable=False),
}


def failure_of(job: Job) -> JobFailure | None:
    """The error of a job that ended without success, or of its last try; None where none is."""
    if job.state is State.SUCCEEDED:
        return None
    if job.error_json:
        try:
            error = msgspec.json.decode(job.error_json, type=_Error)
        except msgspec.MsgspecError:
            logger.warning("the error in the record cannot be read", extra={"job": job.id})
        else:
            return JobFailure(error.type, error.message, error.retryable)
    if not job.state.final:
        return None
    return _ENDINGS.get(job.state, JobFailure("error", "the job failed", retryable=False))
