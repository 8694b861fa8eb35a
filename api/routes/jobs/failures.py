"""Failed jobs: the input of one, why jobs failed, by cause, and the retry of one or of a cause.

docs/architecture/failures.md describes how long the message of a failed job is kept.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from api.http.bodies import read_body
from api.http.messages import (
    NO_STORE,
    ByteRange,
    Reply,
    Request,
    StreamingReply,
    json_reply,
)
from api.routes.jobs.job import HARMLESS, as_header, stream_result, visible_job
from api.routes.jobs.listing import Instant, instant_us, require_failures
from api.services import Services
from api.submission.decoding import JsonDecoder, read_query
from headrace.errors import Conflict, InputGone, InvalidRequest
from headrace.jobs.ids import ModelName
from headrace.jobs.job import Job, State, StoredResult, iso
from headrace.jobs.message import InputSource, Message, decode_message
from headrace.jobs.values.encoding import strict_json, undecoded_input
from headrace.jobs.values.media_types import JSON_TYPE
from headrace.queue.failures import FailureGroup, split_group
from headrace.redis.clock import US_PER_S
from headrace.schema.members import time_of
from headrace.schema.operation import (
    Discarded,
    FailureGroups,
    FailuresOfGroup,
    GroupCount,
    Retried,
)

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
        body, content_type = _sent_input(message.input)
        return Reply(200, body, as_header(content_type), headers)
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
        body, content_type = undecoded_input(raw)
    except InvalidRequest:  # that may be why the job has failed
        body, content_type = raw, JSON_TYPE
    if content_type == JSON_TYPE:
        with suppress(ValueError):
            body = strict_json(body)
    return body, content_type


def _decoded(raw: bytes) -> Message | None:
    try:
        return decode_message(raw)
    except InvalidRequest:
        return None


PATH: Final = "/api/v1/failures"
BODY_LIMIT_BYTES: Final = 4096


class FailuresQuery(msgspec.Struct):
    """The query of the list of groups."""

    model: Annotated[ModelName | UnsetType, Meta(description="Only this model's failures.")] = UNSET
    since: Annotated[
        Instant | UnsetType,
        Meta(
            description="Only jobs that failed at this time or later; a number is seconds since "
            "1970.",
            examples=["2026-11-21T10:15:00Z"],
        ),
    ] = UNSET
    error: Annotated[
        str,
        Meta(description="Only groups with this text in their type, message, exception or line."),
    ] = ""
    bucket_s: Annotated[
        Annotated[int, Meta(ge=60, le=30 * 86_400)] | UnsetType,
        Meta(description="Also count each group's failures by parts of the time of this length."),
    ] = UNSET
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


_COUNT: Final = JsonDecoder(GroupCount)


async def list_failures(services: Services, request: Request) -> Reply:
    """List why jobs failed: failures by model, error and the handler's line, newest first."""
    query = read_query(request, FailuresQuery)
    require_failures(services)
    models = (
        [services.catalog.get(query.model).name]
        if query.model is not UNSET
        else [model.name for model in services.catalog.served]
    )
    groups = await services.failures.groups(
        models,
        owner=request.caller.only,
        since_us=0 if query.since is UNSET else instant_us("since", str(query.since)),
        text=query.error,
        limit=query.limit,
        bucket_us=0 if query.bucket_s is UNSET else query.bucket_s * US_PER_S,
    )
    return json_reply(FailureGroups([_shown(group) for group in groups]))


async def retry_failures(services: Services, request: Request, group: str) -> Reply:
    """Return all jobs of a group to their queue; each keeps its id, input and metadata."""
    request.query()
    require_failures(services)
    services.catalog.get(split_group(group)[0])
    body = await read_body(request, BODY_LIMIT_BYTES, fixed=True)
    expected = _COUNT.decode(body).count if body.strip() else None
    outcomes = await services.failures.retry(group, owner=request.caller.only, expected=expected)
    left: dict[str, str] = {job_id: why for job_id, why in outcomes.items() if why != "queued"}
    request.noted = f"{len(outcomes) - len(left)} jobs retried, {len(left)} not"
    return json_reply(Retried(retried=len(outcomes) - len(left), left=left))


async def discard_failures(services: Services, request: Request, group: str) -> Reply:
    """Let all failures of a group go, with their dead letters; the jobs stay failed."""
    request.query()
    require_failures(services)
    services.catalog.get(split_group(group)[0])
    expected = (await _COUNT.read(request, BODY_LIMIT_BYTES)).count
    discarded = await services.failures.discard(group, expected=expected)
    request.noted = f"{discarded} failures discarded"
    return json_reply(Discarded(discarded))


def _shown(group: FailureGroup) -> FailuresOfGroup:
    error = group.error
    return FailuresOfGroup(
        group=group.name,
        model=group.model,
        type=error.type,
        exception=error.exception or None,
        where=error.where or None,
        message=error.message,
        count=group.count,
        first_at=time_of(group.first_us),
        last_at=time_of(group.last_us),
        jobs=group.newest,
        over_time={iso(at): count for at, count in sorted(group.over_time.items())},
    )
