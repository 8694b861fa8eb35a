"""What an operator does with one job: read its input, and run it again after a failure.

`GET /api/v1/jobs/{id}/input` and `POST /api/v1/jobs/{id}/retry`. docs/architecture/failures.md
describes how long the message of a failed job is kept.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from api.http.messages import (
    NO_STORE,
    ByteRange,
    Reply,
    Request,
    StreamingReply,
    json_reply,
)
from api.routes.jobs.job import HARMLESS, as_header, stream_result, visible_job
from api.services import Services
from headrace.errors import Conflict, InputGone, InvalidRequest
from headrace.jobs.job import Job, State, StoredResult
from headrace.jobs.message import InputSource, Message, decode_message
from headrace.jobs.values.encoding import strict_json, undecoded_input
from headrace.jobs.values.media_types import JSON_TYPE
from headrace.schema.operation import Retried

_WHY: Final = {
    "alive": "its message is still in a list",
    "gone": "it is not among the failures that are kept; quiet jobs never are, and it may "
    "have been discarded or retried",
    "no-message": "its message is no longer kept",
    "elsewhere": "the queue of its version is unknown",
}


async def get_input(services: Services, request: Request, job_id: str) -> Reply | StreamingReply:
    """Return the input of a job that has not ended, or that has failed, as the client sent it."""
    request.query()
    job = await visible_job(services, request.caller, job_id)
    raw = await _message(services, job)
    message = None if raw is None else _decoded(raw)
    source = None if message is None else message.source
    if message is None:
        raise _gone(job)
    if source is not None and not source.ref:
        raise _elsewhere(job, source)
    headers = (NO_STORE, *HARMLESS)
    if source is None:
        body, given = _sent_input(message.input)
        return Reply(200, body, as_header(given), headers)
    kind = as_header(source.type or JSON_TYPE)
    stored = StoredResult(source.ref, source.size, source.type)
    headers = (*headers, (b"content-length", b"%d" % source.size))
    whole = ByteRange(0, source.size)
    return await stream_result(services, request, stored, whole, 200, kind, headers)


async def retry_job(services: Services, request: Request, job_id: str) -> Reply:
    """Return a failed job to its queue; it keeps its id, input and metadata."""
    request.query()
    job = await visible_job(services, request.caller, job_id)
    if job.state is not State.FAILED:
        raise Conflict(
            f"job {job.id!r} has not failed: it is {job.state.status}",
            hint="Only a failed job can be retried.",
        )
    word = await services.failures.retry_one(job)
    if word != "queued":
        raise Conflict(
            f"job {job.id!r} cannot be retried: {_WHY[word]}", hint="Submit its input again."
        )
    return json_reply(Retried(retried=1, left={}))


async def _message(services: Services, job: Job) -> bytes | None:
    if job.state is State.FAILED:
        return await services.failures.message(job.id, job.model)
    return None if job.state.final else await services.queue.message(job.id)


def _gone(job: Job) -> InputGone:
    """Return why the input of a job cannot be read, and what keeps it."""
    if job.state is State.FAILED:
        why = "is not kept"
        hint = (
            "Failed jobs keep theirs for the time of the setting failed_ttl_s, unless they are "
            "quiet or their failure was discarded."
        )
    elif job.state.final:
        why = f"was deleted when the job ended as {job.state.status}"
        hint = "Only failed jobs keep their input, for the time of the setting failed_ttl_s."
    else:
        why = "is not found in its queue at the moment"
        hint = "Ask again when the job runs."
    return InputGone(f"the input of job {job.id!r} {why}", hint=hint)


def _elsewhere(job: Job, source: InputSource) -> InputGone:
    """Return where an input is that the server does not keep."""
    if source.origin:
        why, hint = f"is {source.origin}, as its client has named it", "Read it there."
    else:
        why, hint = "is made of the results of other jobs of its pipeline", "Read their results."
    return InputGone(f"the input of job {job.id!r} {why}", hint=hint)


def _sent_input(raw: bytes) -> tuple[bytes, str]:
    """Return the input in a message and its type; as its JSON text if it cannot be decoded."""
    try:
        body, given = undecoded_input(raw)
    except InvalidRequest:  # that may be why the job has failed
        body, given = raw, JSON_TYPE
    if given == JSON_TYPE:
        with suppress(ValueError):
            body = strict_json(body)
    return body, given


def _decoded(raw: bytes) -> Message | None:
    try:
        return decode_message(raw)
    except InvalidRequest:
        return None
