"""The job object as JSON. A client's own JSON (result, metadata) is inserted as it was written."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

import msgspec

from headrace.jobs.job import NO_WAIT, Job, State, error_of, result_in
from headrace.jobs.values.encoding import kombu_base64
from headrace.jobs.values.media_types import JSON_TYPE
from headrace.response import split_details
from headrace.schema.jobs import JobAttempt, JobObject
from headrace.schema.members import NULL, time_of

JOBS_PATH: Final = "/api/v1/jobs/"


class Waiting(NamedTuple):
    """What a queued job waits for while no replica of its model is loaded.

    Attributes:
        target: `load` if a worker must load the model at its first job, else `replica`.
        reason: why no worker can load the model; "" if one can.
    """

    target: Literal["load", "replica"]
    reason: str = ""


#: Inserts JSON: a member that is JSON already is set to a msgspec.Raw, whatever its type is.
_raw: Final[Callable[[bytes], Any]] = msgspec.Raw
#: Takes the place of an id, and how often an object has it.
_BLANK: Final = "\x7f"
_IDS: Final = 3
_ENCODER: Final = msgspec.json.Encoder()
_NO_WAIT: Final = NO_WAIT.encode()
_TIMINGS: Final = (
    b'{"queued":%b,"hold":%b,"device_wait":%b,'
    b'"preprocess":%b,"inference":%b,"postprocess":%b,"total":%a}'
)


def job_object(
    job: Job,
    *,
    waiting_for: Waiting | None = None,
    with_result: bool = True,
    with_traceback: bool = True,
    with_workers: bool = True,
    replayed: bool = False,
) -> bytes:
    """Return the job object; `replayed` is of the request that it answers, not of the job."""
    state = job.state
    view = JobObject(
        id=job.id,
        model=job.model,
        version=job.version,
        status=state.status,
        created_at=time_of(job.created_us),
        started_at=time_of(job.started_us) if job.started_us else None,
        finished_at=time_of(job.ended_us) if job.ended_us else None,
        attempts=job.attempts,
        queue_position=job.place or None,
        batch_size=job.batch_size or None,
        timings=_raw(_timings(job)) if job.timings else None,
        metadata=_raw(job.metadata_json.encode()) if job.metadata_json else None,
        waiting_for=None,
        trace_id=job.trace_id or None,
        urls=_urls(job.id),
        requested_version=job.asked_version or None,
        stages=_raw(job.stages_json.encode()) if job.stages_json else [],
        batch_padding=job.batch_padding,
        dead_lettered=job.dead_lettered,
        replayed=replayed,
    )
    if with_workers:
        view.worker = job.worker
        view.earlier_attempts = _earlier(job.earlier) if job.earlier else []
    if not state.final:
        _add_unfinished(view, job, waiting_for)
    if state is State.SUCCEEDED:
        if with_result:
            view.result = _result(job)
        if job.stored is not None:
            view.result_size = job.stored.size
    else:
        view.error = error_of(job)
        if with_traceback and state is State.FAILED:
            view.traceback = job.traceback or ""
    return _ENCODER.encode(view)


def _earlier(lines: str) -> list[JobAttempt]:
    """Return the attempts in the record's `pa`."""
    parts = (line.partition(" ") for line in lines.split("\n"))
    return [JobAttempt(int(number), worker) for number, _, worker in parts]


def _add_unfinished(view: JobObject, job: Job, waiting_for: Waiting | None) -> None:
    if waiting_for is not None and job.state is State.QUEUED:
        view.waiting_for = waiting_for.target
        view.waiting_reason = waiting_for.reason or None
    view.cancel_requested = job.cancel_requested
    if job.progress is not None:
        view.progress = job.progress
    if job.due_us:
        view.due_at = time_of(job.due_us)


@lru_cache(maxsize=256)
def fresh_object(
    model: str,
    version: str,
    state: State,
    created_us: int,
    waiting_for: Waiting | None,
    asked_version: str = "",
    trace_id: str = "",
) -> Callable[[str], bytes]:
    """Return what makes the object of a job without metadata that was just enqueued, from its id.

    Only the ids of such jobs differ (`benchmarks.job_path.pieces_cpu`).
    """

    def whole(job_id: str) -> bytes:
        job = Job(
            job_id, model, version, state, created_us, asked_version=asked_version,
            trace_id=trace_id,
        )  # fmt: skip
        return job_object(job, waiting_for=waiting_for)

    *parts, last = whole(_BLANK).split(_BLANK.encode())
    if len(parts) != _IDS:
        return whole
    return lambda job_id: job_id.encode().join((*parts, last))


def timings_member(timings: bytes, device_wait: bytes, total_us: int) -> bytes:
    """Return the timings of a job in milliseconds.

    Args:
        timings: the record's `tm`.
        device_wait: the record's `dw`; empty for a job that did not run.
        total_us: from its submit to its end.
    """
    queued, hold, *ran = timings.split(b",")
    return _TIMINGS % (queued, hold, device_wait or _NO_WAIT, *ran, total_us / 1000)


def _timings(job: Job) -> bytes:
    timings, waited = job.timings.encode(), job.device_wait.encode()
    return timings_member(timings, waited, job.ended_us - job.created_us)


def _urls(job_id: str) -> Any:
    # An id needs no escaping, in JSON and in a path.
    own = JOBS_PATH + job_id
    return _raw(f'{{"self":"{own}","result":"{own}/result"}}'.encode())


def _result(job: Job) -> Any:
    stored = job.result_json
    return NULL if stored is None else _raw(shown_result(stored, job.result_type))


def result_member(meta: bytes, result_type: str) -> bytes | None:
    """Return the result of a succeeded job as in the job object; None if none was kept.

    Args:
        meta: its Celery result; empty without one.
        result_type: the record's `rt`.
    """
    return shown_result(result_in(meta), result_type) if meta else None


def shown_result(stored: bytes, result_type: str) -> bytes:
    """Return a stored result as in the job object; without a type it is JSON."""
    if not result_type:
        return stored
    try:
        value = kombu_base64(stored)
    except msgspec.MsgspecError:
        return stored
    return _ENCODER.encode({"content_type": split_details(result_type)[0], "base64": value})


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
        body = base64.b64decode(kombu_base64(stored), validate=True)
    except (msgspec.MsgspecError, binascii.Error) as error:
        raise ValueError(f"the stored result of job {job.id} cannot be read: {error}") from error
    return body, split_details(job.result_type)[0]
