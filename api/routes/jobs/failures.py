"""`/api/v1/failures`: why jobs failed, by cause, and the retry of all jobs of one cause."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from api.http.messages import Reply, Request, json_reply
from api.routes.jobs.listing import SINCE_MAX_S, instant_us, require_failures
from api.services import Services
from api.submission.decoding import read_query
from headrace.jobs.ids import ModelName
from headrace.jobs.job import Count, Time, iso
from headrace.queue.failures import FailureGroup, split_group

PATH: Final = "/api/v1/failures"
GROUPS_DEFAULT: Final = 100
GROUPS_MAX: Final = 1000


class FailuresQuery(msgspec.Struct):
    """The query of the list of groups."""

    model: Annotated[ModelName | UnsetType, Meta(description="Only this model's failures.")] = UNSET
    since: Annotated[
        Time | Annotated[float, Meta(ge=0, le=SINCE_MAX_S)] | UnsetType,
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
    limit: Annotated[int, Meta(ge=1, le=GROUPS_MAX)] = GROUPS_DEFAULT


class FailuresOfGroup(msgspec.Struct, kw_only=True):
    """The failures of one model with the same cause."""

    group: Annotated[str, Meta(description="Its name, for a retry and for a list of its jobs.")]
    model: str
    type: Annotated[str, Meta(description="The code of a problem type.")]
    exception: Annotated[
        str | None, Meta(description="The class that the handler raised; null if it did not raise.")
    ]
    where: Annotated[
        str | None, Meta(description="The line of the handler's own code that raised.")
    ]
    message: Annotated[str, Meta(description="Of the job that failed last.")]
    count: Count
    first_at: Annotated[Time, Meta(description="When the first of them failed.")]
    last_at: Annotated[Time, Meta(description="When the last of them failed.")]
    jobs: Annotated[
        list[str], Meta(description="The ids of the jobs that failed last, at most 10.")
    ]


class FailureGroups(msgspec.Struct):
    """Groups of failures, the one that failed last first."""

    failures: list[FailuresOfGroup]


class Retried(msgspec.Struct):
    """What became of the jobs of a group."""

    retried: Count
    left: Annotated[
        dict[str, Literal["gone", "alive", "no-message", "elsewhere"]],
        Meta(description="The jobs that were not retried, and why."),
    ]


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
    )
    return json_reply(FailureGroups([_shown(group) for group in groups]))


async def retry_failures(services: Services, request: Request, group: str) -> Reply:
    """Return all jobs of a group to their queue; each keeps its id, input and metadata."""
    request.query()
    require_failures(services)
    services.catalog.get(split_group(group)[0])
    outcomes = await services.failures.retry(group, owner=request.caller.only)
    left = {job_id: why for job_id, why in outcomes.items() if why != "queued"}
    return json_reply(Retried(len(outcomes) - len(left), left))


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
        first_at=iso(group.first_us),
        last_at=iso(group.last_us),
        jobs=group.newest,
    )
