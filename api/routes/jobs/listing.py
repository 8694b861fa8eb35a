"""`GET /api/v1/jobs`: jobs, newest first, a page at a time."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from api.http.messages import NO_STORE, Reply, Request
from api.routes.jobs.bulk_status import job_or_null
from api.services import Services
from api.submission.decoding import read_query
from headrace.config.model_catalog import ModelName
from headrace.config.suggestions import did_you_mean
from headrace.errors import InvalidRequest, ListsOff
from headrace.jobs.job import Job, State, Status, Time
from headrace.jobs.serialization import JobObject
from headrace.queue.job_queue import VIEW_MAX_JOBS
from headrace.queue.listing import JobPlace
from headrace.queue.listing import list_jobs as list_places
from headrace.redis.clock import US_PER_S
from headrace.redis.scripts import pages_of

PAGE_DEFAULT: Final = 50
PAGE_MAX: Final = 1000
#: The year 9999, the last of RFC 3339.
SINCE_MAX_S: Final = 253_402_300_799
#: The position of a job in the list: when it was created, in microseconds, and its id.
CURSOR: Final = r"^[0-9]{1,16}-[A-Za-z0-9_.:@/-]{1,128}$"

_CURSOR = re.compile(CURSOR)
_STATES: Final = {state.status: state for state in State}


class ListQuery(msgspec.Struct):
    """The query of a list of jobs."""

    model: Annotated[ModelName | UnsetType, Meta(description="Only this model's jobs.")] = UNSET
    status: Annotated[
        list[Status] | UnsetType,
        Meta(
            description="Only jobs of these statuses.",
            examples=[["queued", "running"]],
            extra_json_schema={"minItems": 1},
        ),
    ] = UNSET
    since: Annotated[
        Time | Annotated[float, Meta(ge=0, le=SINCE_MAX_S)] | UnsetType,
        Meta(
            description="Only jobs created at this time or later; a number is seconds since 1970.",
            examples=["2026-11-21T10:15:00Z"],
        ),
    ] = UNSET
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="Jobs per page.")] = PAGE_DEFAULT
    cursor: Annotated[
        str | UnsetType,
        Meta(
            description="The cursor of the previous page, unchanged.",
            extra_json_schema={"pattern": CURSOR},
        ),
    ] = UNSET


class JobList(msgspec.Struct):
    """Jobs, newest first and without results; a page may have fewer than `limit`."""

    jobs: list[JobObject]
    cursor: Annotated[str | None, Meta(description="The cursor of the next page; null at the end.")]


async def list_jobs(services: Services, request: Request) -> Reply:
    """List jobs, newest first, a page at a time."""
    query = read_query(request, ListQuery)
    if not services.settings.job_index_max:
        raise ListsOff(
            "this server does not list jobs: the setting job_index_max is 0",
            hint="Set job_index_max (HEADRACE_JOB_INDEX_MAX) to the number of jobs to list.",
        )
    models = (
        [services.catalog.get(query.model).name]
        if query.model is not UNSET
        else [model.name for model in services.catalog.served]
    )
    states = [] if query.status is UNSET else _states(query.status)
    page = await list_places(
        services.queue,
        models,
        before=None if query.cursor is UNSET else _place(query.cursor),
        since_us=0 if query.since is UNSET else _since_us(str(query.since)),
        states="".join(states),
        limit=query.limit,
        owner=request.caller.only,
    )
    jobs = await _read(services, page.places)
    # A job may have changed its state since it was found.
    may_see = request.caller.may_see
    known = [job for job in jobs if job is not None and may_see(job.key)]
    fit = [job for job in known if not states or job.state in states]
    objects = [await job_or_null(services, job, with_result=False) for job in fit]
    cursor = None if page.end is None else f"{page.end.created_us}-{page.end.job_id}"
    body = b'{"jobs":[%s],"cursor":%s}' % (b",".join(objects), msgspec.json.encode(cursor))
    return Reply(200, body, headers=(NO_STORE,))


async def _read(services: Services, places: list[JobPlace]) -> list[Job | None]:
    ids = [place.job_id for place in places]
    jobs: list[Job | None] = []
    for page in pages_of(ids, VIEW_MAX_JOBS):
        jobs += await services.queue.view(page, results=False)
    return jobs


def _states(words: Sequence[str]) -> list[State]:
    for word in words:
        if word not in _STATES:
            raise InvalidRequest(
                f"unknown status {word[:32]!r}{did_you_mean(word, _STATES)}",
                hint=f"Known: {', '.join(_STATES)}.",
            )
    return [_STATES[word] for word in words]


def _since_us(text: str) -> int:
    try:
        seconds = float(text)
    except ValueError:
        seconds = _instant_s(text)
    if not 0 <= seconds <= SINCE_MAX_S:
        raise InvalidRequest(
            f"query parameter since: {text[:48]!r} is not a time",
            hint="Give RFC 3339, such as 2026-11-21T10:15:00Z, or seconds since 1970.",
        )
    return int(seconds * US_PER_S)


def _instant_s(text: str) -> float:
    """Return seconds since 1970, 0 for earlier times; NaN for no time. The default zone is UTC."""
    try:
        # An unescaped + in a query is a space.
        when = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
        # No job is older than 1970.
        return max(0.0, (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        return math.nan


def _place(text: str) -> JobPlace:
    if not _CURSOR.fullmatch(text):
        raise InvalidRequest(
            f"query parameter cursor: {text[:64]!r} is not a cursor of this API",
            hint="Send the cursor of the previous page unchanged.",
        )
    created, _, job_id = text.partition("-")
    return JobPlace(int(created), job_id)
