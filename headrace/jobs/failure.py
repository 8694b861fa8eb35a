"""The error of a job that did not succeed."""

from __future__ import annotations

import logging
from typing import Annotated, Final

import msgspec

from headrace.errors import BY_CODE, HeadraceError
from headrace.jobs.job import Job, State

logger = logging.getLogger(__name__)


class JobFailure(msgspec.Struct, frozen=True):
    """The error of a job, as its record holds it and the API shows it."""

    type: Annotated[str, msgspec.Meta(description="The code of a problem type.")] = "error"
    message: str = ""
    retryable: bool = False

    @property
    def status(self) -> int:
        """The HTTP status; 500 for a type that this version does not know."""
        return BY_CODE.get(self.type, HeadraceError).status


class ErrorRecord(JobFailure, frozen=True):
    """The same with what only the record has.

    Attributes:
        exception: the class of what the handler raised; "" if it did not raise.
        where: the line of its own code that raised, such as `words.py:7`.
    """

    exception: str = ""
    where: str = ""

    def contains(self, text: str) -> bool:
        """Return whether a member has this text, in capitals or not."""
        wanted = text.lower()
        members = (self.type, self.message, self.exception, self.where)
        return not wanted or any(wanted in member.lower() for member in members)


_RECORD: Final = msgspec.json.Decoder(ErrorRecord)
_DECODER: Final = msgspec.json.Decoder(JobFailure)
#: By the status of a job that has no error.
WITHOUT_ERROR: Final = {
    State.CANCELLED.status: JobFailure("cancelled", "the job was cancelled"),
    State.EXPIRED.status: JobFailure("expired", "the job was not started in time"),
}


def read_error(error_json: str | bytes) -> JobFailure:
    """Read the error in a record.

    Raises:
        msgspec.MsgspecError: it cannot be read.
    """
    return _DECODER.decode(error_json)


def read_error_record(error_json: str | bytes) -> ErrorRecord:
    """Read the error in a record, with all of its members; the default if it cannot be read."""
    try:
        return _RECORD.decode(error_json)
    except msgspec.MsgspecError:
        return ErrorRecord()


def error_of(job: Job) -> JobFailure | None:
    """Return the error of a job that ended without success, or of its last try; else None."""
    if job.state is State.SUCCEEDED:
        return None
    if job.error_json:
        try:
            return read_error(job.error_json)
        except msgspec.MsgspecError:
            logger.warning("error in the record cannot be read", extra={"job": job.id})
    if not job.state.final:
        return None
    return WITHOUT_ERROR.get(job.state.status, JobFailure("error", "the job failed"))
