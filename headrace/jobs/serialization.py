"""The job object as JSON. A client's own JSON (result, metadata) is inserted as it was written."""

from __future__ import annotations

import base64
import binascii
from functools import lru_cache
from typing import Any, Final

import msgspec

from headrace.jobs.encoding import kombu_base64
from headrace.jobs.failure import JobFailure, error_of
from headrace.jobs.job import Job, State, iso, result_in
from headrace.jobs.media_types import JSON_TYPE
from headrace.jobs.progress import Progress
from headrace.redis.clock import US_PER_S

JOBS_PATH: Final = "/api/v1/jobs/"
REPLICA: Final = "replica"


class _JobObject(msgspec.Struct):
    """The fields of every job object; `result` or `error` follow once the job has ended."""

    id: str
    model: str
    version: str
    status: str
    created_at: str
    started_at: str | None
    finished_at: str | None
    attempts: int
    queue_position: int | None
    batch_size: int | None
    timings: msgspec.Raw
    metadata: msgspec.Raw
    waiting_for: str | None
    urls: msgspec.Raw
    stages: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    progress: Progress | msgspec.UnsetType = msgspec.UNSET
    batch_padding: int | msgspec.UnsetType = msgspec.UNSET
    dead_lettered: bool | msgspec.UnsetType = msgspec.UNSET
    cancel_requested: bool | msgspec.UnsetType = msgspec.UNSET
    result: Any = msgspec.UNSET
    result_size: int | msgspec.UnsetType = msgspec.UNSET
    due_at: str | msgspec.UnsetType = msgspec.UNSET
    error: JobFailure | msgspec.UnsetType = msgspec.UNSET


_STATUS: Final = {state: state.status for state in State}
#: Takes the place of an id, and how often an object has it.
_BLANK: Final = "\x7f"
_IDS: Final = 3
_NULL: Final = msgspec.Raw(b"null")
_ENCODER: Final = msgspec.json.Encoder()
_TIMINGS: Final = (
    b'{"queued":%b,"hold":%b,"preprocess":%b,"inference":%b,"postprocess":%b,"total":%a}'
)


def job_object(job: Job, *, has_replica: bool = True, with_result: bool = True) -> bytes:
    """Return the job object.

    Args:
        job: the job.
        has_replica: whether a replica of its model is loaded anywhere.
        with_result: whether it has the result of a succeeded job.
    """
    state = job.state
    ended = job.ended_us
    view = _JobObject(
        id=job.id,
        model=job.model,
        version=job.version,
        status=_STATUS[state],
        created_at=_time(job.created_us),
        started_at=_time(job.started_us) if job.started_us else None,
        finished_at=_time(ended) if ended else None,
        attempts=job.attempts,
        queue_position=job.place or None,
        batch_size=job.batch_size or None,
        timings=_timings(job) if job.timings else _NULL,
        metadata=msgspec.Raw(job.metadata_json.encode()) if job.metadata_json else _NULL,
        waiting_for=None if has_replica or state is not State.QUEUED else REPLICA,
        urls=_urls(job.id),
    )
    if job.stages_json:
        view.stages = msgspec.Raw(job.stages_json.encode())
    if job.batch_padding:
        view.batch_padding = job.batch_padding
    if job.dead_lettered:
        view.dead_lettered = True
    if not state.final:
        _add_unfinished(view, job)
    if state is State.SUCCEEDED:
        if with_result:
            view.result = _result(job)
        if job.stored is not None:
            view.result_size = job.stored.size
    else:
        error = error_of(job)
        if error is not None:
            view.error = error
    return _ENCODER.encode(view)


def _add_unfinished(view: _JobObject, job: Job) -> None:
    if job.cancel_requested:
        view.cancel_requested = True
    if job.progress is not None:
        view.progress = job.progress
    if job.due_us:
        view.due_at = _time(job.due_us)


def fresh_line(
    job_id: str, model: str, version: str, state: State, created_us: int, has_replica: bool
) -> bytes:
    """Return the job object of a job without metadata that was just enqueued, faster."""
    blank = _fresh_blank(model, version, state, created_us, has_replica)
    if not blank:
        job = Job(job_id, model, version, state, created_us)
        return job_object(job, has_replica=has_replica)
    name = job_id.encode()
    return blank % (name, name, name)


@lru_cache(maxsize=256)
def _fresh_blank(
    model: str, version: str, state: State, created_us: int, has_replica: bool
) -> bytes:
    """Return the object of such jobs with a `%s` for each id; b"" if the ids are ambiguous."""
    job = Job(id=_BLANK, model=model, version=version, state=state, created_us=created_us)
    text = job_object(job, has_replica=has_replica)
    slot = _BLANK.encode()
    return text.replace(b"%", b"%%").replace(slot, b"%s") if text.count(slot) == _IDS else b""


def _time(us: int) -> str:
    seconds, rest = divmod(us, US_PER_S)
    return f"{_second(seconds)}.{rest:06d}+00:00"


@lru_cache(maxsize=1024)
def _second(seconds: int) -> str:
    """Return the beginning of all times in one second."""
    return iso(seconds * US_PER_S)[:19]


def _timings(job: Job) -> msgspec.Raw:
    return msgspec.Raw(timings_member(job.timings.encode(), job.ended_us - job.created_us))


def timings_member(timings: bytes, total_us: int) -> bytes:
    """Return the timings of a job in milliseconds.

    Args:
        timings: the record's `tm`.
        total_us: from its submit to its end.
    """
    return _TIMINGS % (*timings.split(b","), total_us / 1000)


def _urls(job_id: str) -> msgspec.Raw:
    # An id needs no escaping, in JSON and in a path.
    own = JOBS_PATH + job_id
    return msgspec.Raw(f'{{"self":"{own}","result":"{own}/result"}}'.encode())


def _result(job: Job) -> Any:
    stored = job.result_json
    return None if stored is None else msgspec.Raw(_shown(stored, job.result_type))


def result_member(meta: bytes, result_type: str) -> bytes | None:
    """Return the result of a succeeded job as in the job object; None if none was kept.

    Args:
        meta: its Celery result; empty without one.
        result_type: the record's `rt`.
    """
    return _shown(result_in(meta), result_type) if meta else None


def _shown(stored: bytes, result_type: str) -> bytes:
    if not result_type:
        return stored
    try:
        value = kombu_base64(stored)
    except msgspec.MsgspecError:
        return stored
    return _ENCODER.encode({"content_type": result_type, "base64": value})


def raw_result(job: Job) -> tuple[bytes, str] | None:
    """Return the result of a succeeded job with its content type; None if none was kept.

    Raises:
        ValueError: the stored result does not match the type in the record.
    """
    stored = job.result_json
    if stored is None:
        return None
    if not job.result_type:
        return stored, JSON_TYPE
    try:
        return base64.b64decode(kombu_base64(stored), validate=True), job.result_type
    except (msgspec.MsgspecError, binascii.Error) as error:
        raise ValueError(f"the stored result of job {job.id} cannot be read: {error}") from error
