"""The job: its states, its record as Redis holds it, and its error. No Redis and no HTTP."""

from __future__ import annotations

import logging
import zlib
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Final, NamedTuple

import msgspec
from typing_extensions import override

from headrace.errors import BY_CODE, HeadraceError
from headrace.jobs.progress import Progress, stages_progress
from headrace.jobs.values.encoding import strict_json
from headrace.redis.clock import US_PER_S
from headrace.redis.fields import JobField
from headrace.redis.keys import NO_WAITER

logger = logging.getLogger(__name__)


class State(StrEnum):
    """The state of a job; the value is the letter in its record."""

    QUEUED = "q"
    SCHEDULED = "d"
    RUNNING = "r"
    SUCCEEDED = "s"
    FAILED = "f"
    EXPIRED = "x"
    CANCELLED = "c"

    #: The word in the API.
    status: str

    @property
    def final(self) -> bool:
        """Whether the job has ended."""
        return self in FINAL_STATES


for _state in State:
    _state.status = _state.name.lower()
#: By their letters; `State(letter)` takes 1 µs.
STATES: Final = {state.value: state for state in State}
FINAL_STATES: Final = frozenset({State.SUCCEEDED, State.FAILED, State.EXPIRED, State.CANCELLED})


#: Members of JSON: a number of things, an amount, a constant, the word for a state, and a time as
#: `iso` returns it.
Count = Annotated[int, msgspec.Meta(ge=0)]
Amount = Annotated[float, msgspec.Meta(ge=0)]
True_ = Annotated[bool, msgspec.Meta(extra_json_schema={"const": True})]
Status = Annotated[str, msgspec.Meta(extra_json_schema={"enum": [state.status for state in State]})]
Time = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})]


def iso(us: int) -> str:
    """Return microseconds since 1970 as RFC 3339 in UTC."""
    second, part_us = divmod(us, US_PER_S)
    return f"{_second(second)}.{part_us:06}+00:00"


@lru_cache(maxsize=64)
def _second(second: int) -> str:
    # Most times of a moment are of one second; with `iso`, 6 µs for each job of a whole answer.
    return datetime.fromtimestamp(second, UTC).isoformat()[:19]


#: The timings of a job, in order. The record's `tm` has all of them but `device_wait`.
TIMINGS: Final = ("queued", "hold", "device_wait", "preprocess", "inference", "postprocess")
#: The device wait of a job that did not run.
NO_WAIT: Final = "0.0"


class StoredResult(NamedTuple):
    """A result in the payload store; its type is `application/json` for JSON text."""

    ref: str
    size: int
    content_type: str


def stored_result(value: str) -> StoredResult | None:
    """Read the record's `rr`; None if it is empty."""
    if not value:
        return None
    ref, size, content_type = value.split(" ", 2)
    return StoredResult(ref, int(size), content_type)


#: Fields of a job that must not be logged.
_NOT_SHOWN: Final = frozenset({"recorded", "meta"})


# gc=False: no field can lead back to it (CONTRIBUTING.md, Rules).
class Job(msgspec.Struct, gc=False):
    """A job as its record holds it. Times are microseconds of Redis' clock; 0 for not yet.

    Attributes:
        attempts: how often it has begun, this time included.
        version: of the worker that claimed it last; before, of the model as it was submitted.
        asked_version: the version that it asks for; "" for any.
        place: its place in the queue; 0 if it does not wait, or if that is unknown.
        due_us: when it joins its queue, while it is scheduled; 0 if that is unknown.
        key: id of the API key that owns it; "" for none.
        freed: for a stage job, that its result was used and freed.
        quiet: its end is not published, until a client listens.
        recorded: its result as JSON text, if that is in the record.
        token: the fencing token of its last claim; "" without one, and for a job that was not read
            from its record.
        progress: its progress, while it runs and its handler reports any.
        progress_mark: differs between two reports of progress under the same token.
        trace_id: the id of the trace in which it was submitted; "" without one.
        worker: the incarnation of the worker that claimed it last; "" before.
        earlier: the attempts before the last one, as in the record.
    """

    id: str
    model: str
    version: str
    state: State
    created_us: int
    started_us: int = 0
    ended_us: int = 0
    attempts: int = 0
    place: int = 0
    due_us: int = 0
    batch_size: int = 0
    batch_padding: int = 0
    timings: str = ""
    device_wait: str = NO_WAIT
    result_type: str = ""
    error_json: str = ""
    metadata_json: str = ""
    dead_lettered: bool = False
    cancel_requested: bool = False
    request_hash: str = ""
    key: str = ""
    stages_json: str = ""
    freed: bool = False
    quiet: bool = False
    recorded: str = ""
    token: str = ""
    progress: Progress | None = None
    progress_mark: str = ""
    stored: StoredResult | None = None
    meta: str = ""
    asked_version: str = ""
    trace_id: str = ""
    worker: str = ""
    earlier: str = ""

    @override
    def __repr__(self) -> str:
        names = (name for name in self.__struct_fields__ if name not in _NOT_SHOWN)
        return f"Job({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    @property
    def result_json(self) -> bytes | None:
        """The result as JSON text; None if neither the record nor the Celery result has it."""
        if self.recorded:
            return self.recorded.encode()
        if not self.meta or self.stored is not None or self.state is not State.SUCCEEDED:
            return None
        return result_in(self.meta)

    @property
    def traceback(self) -> str | None:
        """The handler's traceback, or the stacks at its timeout; for callers that may read it."""
        return read_meta(self.meta).traceback if self.meta else None


class CeleryResult(msgspec.Struct):
    """A Celery result as its backend stores it."""

    result: msgspec.Raw
    status: str = ""
    traceback: str | None = None


_META: Final = msgspec.json.Decoder(CeleryResult)


def result_in(meta: str | bytes) -> bytes:
    """Return the result, as JSON text, in a Celery result of a success."""
    return bytes(read_meta(meta).result)


def read_meta(meta: str | bytes) -> CeleryResult:
    """Read a Celery result; raise msgspec.DecodeError if it cannot be read."""
    try:
        return _META.decode(meta)
    except msgspec.DecodeError:
        # Celery's own backend may have written this, with NaN, which only Python's JSON parser
        # reads.
        text = meta.encode() if isinstance(meta, str) else meta
        try:
            return _META.decode(strict_json(text))
        except ValueError as error:
            raise msgspec.DecodeError(str(error)) from None


def batch_text(size: int, padding: int) -> int | str:
    """Return the record's `b`: how many jobs ran together, and how many inputs were added."""
    return f"{size}+{padding}" if padding else size


def read_batch(text: str) -> tuple[int, int]:
    """Return size and padding from the record's `b`."""
    size, _, padding = text.partition("+")
    return int(size or 0), int(padding or 0)


_PROGRESS: Final = msgspec.json.Decoder(Progress)


def _progress(token: str, reported: str, stages: str) -> tuple[str, Progress | None]:
    """Return the mark and the progress of a running job, from its record's `pg` or `sg`.

    Progress that was reported under another token belongs to an earlier try.
    """
    of, _, rest = reported.partition(" ")
    if rest and of == token:
        mark, _, text = rest.partition(" ")
        try:
            return mark, _PROGRESS.decode(text)
        except msgspec.MsgspecError:
            return "", None
    progress = stages_progress(stages) if stages else None
    return (f"s{zlib.crc32(stages.encode()):x}", progress) if progress is not None else ("", None)


def job_from_record(job_id: str, record: dict[str, str], meta: str = "", place: int = 0) -> Job:
    """Read a record, the fields of HGETALL.

    Args:
        place: its place, or for a scheduled job when it is due, in us.
    """
    get = record.get
    state, attempts = State(record[JobField.STATE]), int(get(JobField.ATTEMPTS, 0))
    started_us = int(get(JobField.STARTED, 0))
    if state is State.RUNNING and not started_us:
        # A leased job is the next of its queue until a model process begins to run it: its worker
        # may still return it.
        state, attempts, place = State.QUEUED, max(0, attempts - 1), 1
    scheduled = state is State.SCHEDULED
    batch_size, batch_padding = read_batch(get(JobField.BATCH, ""))
    token, stages = get(JobField.TOKEN, ""), get(JobField.STAGES, "")
    mark, progress = "", None
    if state is State.RUNNING:
        mark, progress = _progress(token, get(JobField.PROGRESS, ""), stages)
    return Job(
        id=job_id,
        model=get(JobField.MODEL, ""),
        version=get(JobField.VERSION, ""),
        state=state,
        created_us=int(get(JobField.CREATED, 0)),
        started_us=started_us,
        ended_us=int(get(JobField.ENDED, 0)),
        attempts=attempts,
        place=0 if scheduled else place,
        due_us=place if scheduled else 0,
        batch_size=batch_size,
        batch_padding=batch_padding,
        timings=get(JobField.TIMINGS, ""),
        device_wait=get(JobField.DEVICE_WAIT, NO_WAIT),
        result_type=get(JobField.RESULT_TYPE, ""),
        error_json=get(JobField.ERROR, ""),
        metadata_json=get(JobField.METADATA, ""),
        dead_lettered=JobField.DEAD in record,
        cancel_requested=JobField.CANCEL in record,
        request_hash=get(JobField.REQUEST_HASH, ""),
        key=get(JobField.KEY, ""),
        quiet=get(JobField.WAITER) == NO_WAITER,
        recorded=get(JobField.RESULT, ""),
        stages_json=stages,
        freed=JobField.FREED in record,
        token=token,
        progress=progress,
        progress_mark=mark,
        stored=stored_result(get(JobField.RESULT_REF, "")),
        meta=meta,
        asked_version=get(JobField.ASKED_VERSION, ""),
        trace_id=get(JobField.TRACE, ""),
        worker=get(JobField.OWNER, ""),
        earlier=get(JobField.EARLIER, ""),
    )


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
    """Read the error in a record; raise msgspec.MsgspecError if it cannot be read."""
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
