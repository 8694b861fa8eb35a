"""Settlements: how a job ends, or why it waits again, as the arguments of jobs/settle.lua."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from headrace.errors import BY_CODE, HeadraceError, InvalidRequest
from headrace.jobs.encoding import kombu_size, parses
from headrace.jobs.job import State
from headrace.jobs.media_types import JSON_TYPE
from headrace.redis.clock import US_PER_S
from headrace.redis.fields import JobField
from headrace.redis.scripts import Arg
from headrace.redis.scripts.jobs import DEAD
from headrace.redis.scripts.jobs import Settlement as Settlement
from workers.jobs.leased_job import NEVER, LeasedJob
from workers.jobs.retries import RetryPolicy

NO_RETRIES: Final = RetryPolicy()
_NO_CHILDREN: Final = b', "children": [], '
_META: Final = (
    b'{"status": "%s", "result": %s, "traceback": %s%s"date_done": "%s", "task_id": "%s"%s}'
)
_encode: Final = msgspec.json.encode
#: The scripts write the same text for jobs that they cancel themselves.
REVOKED_JSON: Final = (
    b'{"exc_type": "TaskRevokedError", "exc_message": ["cancelled"],'
    b' "exc_module": "celery.exceptions"}'
)


def date_done() -> str:
    """Return the current time as Celery writes `date_done`."""
    return datetime.now(UTC).isoformat()


def _meta(job: LeasedJob, status: bytes, result: bytes, traceback: bytes, done: str) -> bytes:
    message, family = job.message, b""
    if message is not None:
        if message.ignore_result:
            return b""
        if message.group is not None:
            family += b', "group_id": ' + _encode(message.group)
        if message.parent_id is not None:
            family += b', "parent_id": ' + _encode(message.parent_id)
    # A job id needs no JSON escapes.
    return _META % (
        status, result, traceback, _NO_CHILDREN, done.encode(), job.id.encode(), family
    )  # fmt: skip


def with_children(settlement: Settlement, children: bytes) -> Settlement:
    """Return the settlement with the JSON list of the tasks that follow its result."""
    # Split at the last match: a result may contain the same text, the fields behind it cannot.
    head, found, tail = settlement.meta.rpartition(_NO_CHILDREN)
    if not found:
        return settlement
    return settlement._replace(meta=head + b', "children": ' + children + b", " + tail)


def succeeded(
    job: LeasedJob, result: bytes, content_type: str, batch: Arg, timings: str, done: str
) -> Settlement:
    """End a job with a result (JSON text); `content_type` is empty if the result is JSON."""
    message = job.message
    if not content_type and message is not None and message.quiet:
        own: tuple[bytes, str, Arg] = (b"", JobField.RESULT, result)
    else:
        meta = _meta(job, b"SUCCESS", result, b"null", done)
        own = (meta, JobField.RESULT_TYPE, content_type) if content_type else (meta, "", "")
    meta, field, value = own
    return Settlement(
        job.id, job.token, State.SUCCEEDED, meta, batch, timings, field, value, "", ""
    )


def stored(
    job: LeasedJob, ref: str, result: bytes, content_type: str, batch: Arg, timings: str, done: str
) -> Settlement:
    """End a job with a result that the payload store keeps under `ref`.

    The Celery result then holds the size and the URL of the result.
    """
    if content_type:
        return stored_as(job, ref, kombu_size(result), content_type, batch, timings, done)
    return stored_as(job, ref, len(result), JSON_TYPE, batch, timings, done)


def stored_as(
    job: LeasedJob, ref: str, length: int, content_type: str, batch: Arg, timings: str, done: str
) -> Settlement:
    """End a job with a stored result of `length` bytes and this content type."""
    shown = {"size": length, "content_type": content_type, "url": f"/api/v1/jobs/{job.id}/result"}
    meta = _meta(job, b"SUCCESS", _encode(shown), b"null", done)
    value = f"{ref} {length} {content_type}"
    return Settlement(
        job.id, job.token, State.SUCCEEDED, meta, batch, timings, JobField.RESULT_REF, value, "", ""
    )


def failed(
    job: LeasedJob,
    code: str,
    message: str,
    *,
    retryable: bool = False,
    traceback: str = "",
    batch: Arg = 0,
    timings: str = "",
    retries: RetryPolicy = NO_RETRIES,
) -> Settlement:
    """End a job with this error, or postpone it for a retry.

    It is retried if the error is retryable, retries are left, and the retry would begin before the
    job's `expires`.
    """
    error = _encode({"type": code, "message": message, "retryable": retryable})
    retry_us = ""
    if retryable:
        retry_us = retries.for_job(job.message).retry_us(job.retries)
        if job.expires_at != NEVER and retry_us != DEAD:
            late = time.monotonic() + int(retry_us) / US_PER_S > job.expires_at
            retry_us = "" if late else retry_us
    cls = BY_CODE.get(code, HeadraceError)
    result = _encode(
        {"exc_type": cls.__name__, "exc_message": [message], "exc_module": cls.__module__}
    )
    state = State.EXPIRED if code == "expired" else State.FAILED
    meta = _meta(job, b"FAILURE", result, _encode(traceback or None), date_done())
    return Settlement(
        job.id, job.token, state, meta, batch, timings, JobField.ERROR, error, "", retry_us
    )


def unreadable_message(job: LeasedJob, raw: bytes, error: InvalidRequest) -> Settlement:
    """End a job whose message cannot be read.

    A message that is no JSON goes to the dead letters, because only there its bytes are kept.
    jobs/claim.lua does the same with messages that it parses itself.
    """
    settlement = failed(job, error.code, error.message)
    return settlement if parses(raw) else settlement._replace(retry_us=DEAD)


def cancelled(job: LeasedJob) -> Settlement:
    """End a job as cancelled; it has not run."""
    meta = _meta(job, b"REVOKED", REVOKED_JSON, b"null", date_done())
    return Settlement(job.id, job.token, State.CANCELLED, meta, 0, "", "", "", "", "")


def postponed(job: LeasedJob, delay_s: float) -> Settlement:
    """Put a job back until its eta, without an error and without counting the attempt."""
    return Settlement(
        job.id, job.token, State.SCHEDULED, b"", 0, "", "", "", "", str(int(delay_s * US_PER_S))
    )


def stages(times: Sequence[float]) -> str:
    """Return the part of the timings that all jobs of a batch share: its three stages in ms."""
    return f"{times[0]:.3f},{times[1]:.3f},{times[2]:.3f}"


def timings(job: LeasedJob, shared: str) -> str:
    """Return the record's `tm`: ms from submit to claim, from claim to dispatch, the stages."""
    return since_submit(job) + since_claim(job, shared)


def since_submit(job: LeasedJob) -> str:
    """Return the part of the timings that differs for each job."""
    return f"{(job.claimed_at - job.enqueued_at) * 1000:.3f}"


def since_claim(job: LeasedJob, shared: str) -> str:
    """Return the rest, which is the same for all jobs of a batch that were claimed together."""
    return f",{(job.dispatched_at - job.claimed_at) * 1000:.3f},{shared}"
