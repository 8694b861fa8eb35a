"""What an operator does with one failed job: read its input, and run it again.

`GET /api/v1/jobs/{id}/input` and `POST /api/v1/jobs/{id}/retry`. docs/architecture/failures.md
describes how long the message of a failed job is kept.
"""

from __future__ import annotations

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
from headrace.jobs.job import State, StoredResult
from headrace.jobs.message import Message, decode_message
from headrace.jobs.values.encoding import undecoded_input
from headrace.jobs.values.media_types import JSON_TYPE
from headrace.schema.operation import Retried

_WHY: Final = {
    "alive": "its message is still in a list",
    "gone": "it is no longer failed",
    "no-message": "its message is no longer kept",
    "elsewhere": "the queue of its version is unknown",
}


async def get_input(services: Services, request: Request, job_id: str) -> Reply | StreamingReply:
    """Return the input of a failed job, as the client sent it."""
    request.query()
    job = await visible_job(services, request.caller, job_id)
    raw = await services.failures.message(job.id, job.model) if job.state is State.FAILED else None
    message = None if raw is None else _decoded(raw)
    source = None if message is None else message.source
    if message is None or (source is not None and not source.ref):
        raise InputGone(
            f"the input of job {job.id!r} is not kept",
            hint="Only failed jobs keep theirs, for the time of the setting failed_ttl_s.",
        )
    headers = (NO_STORE, *HARMLESS)
    if source is None:
        body, given = undecoded_input(message.input)
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


def _decoded(raw: bytes) -> Message | None:
    try:
        return decode_message(raw)
    except InvalidRequest:
        return None
