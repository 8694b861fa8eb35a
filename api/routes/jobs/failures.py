"""`/api/v1/failures`: why jobs failed, by cause, and the retry of all jobs of one cause."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from api.http.bodies import read_body
from api.http.messages import Reply, Request, json_reply
from api.routes.jobs.listing import Instant, instant_us, require_failures
from api.services import Services
from api.submission.decoding import JsonDecoder, read_query
from headrace.jobs.ids import ModelName
from headrace.jobs.job import iso
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
