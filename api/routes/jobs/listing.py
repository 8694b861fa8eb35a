"""`GET /api/v1/jobs`: jobs, newest first, a page at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from api.http.messages import NO_STORE, Reply, Request
from api.routes.jobs.bulk_status import job_or_null
from api.services import Services
from api.submission.decoding import read_cursor, read_query
from headrace.config.suggestions import did_you_mean
from headrace.errors import InvalidRequest, ListsOff
from headrace.jobs.ids import ID as ID_PATTERN
from headrace.jobs.ids import ModelName, is_id
from headrace.jobs.job import Job, State, Status, Time
from headrace.queue.failures import GROUP_NAME, split_group
from headrace.queue.job_queue import VIEW_MAX_JOBS
from headrace.queue.listing import JobPage, JobPlace, JobSearch, list_failed
from headrace.queue.listing import list_jobs as list_places
from headrace.redis.clock import US_PER_S
from headrace.redis.scripts import pages_of
from headrace.schema.jobs import JobObject

PAGE_MAX: Final = 1000
#: The year 9999, the last of RFC 3339.
SINCE_MAX_S: Final = 253_402_300_799
#: The position of a job in the list: when it was created, in microseconds, and its id.
CURSOR: Final = r"^[0-9]{1,16}-[A-Za-z0-9_.:@/-]{1,128}$"

_STATES: Final = {state.status: state for state in State}

#: A time in a query; a number is seconds since 1970.
Instant = Time | Annotated[float, Meta(ge=0, le=SINCE_MAX_S)]


class ListQuery(msgspec.Struct):
    """The query of a list of jobs."""

    id: Annotated[
        str | UnsetType,
        Meta(description="Only the job with this id.", extra_json_schema={"pattern": ID_PATTERN}),
    ] = UNSET
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
        Instant | UnsetType,
        Meta(
            description="Only jobs created at this time or later; a number is seconds since 1970.",
            examples=["2026-11-21T10:15:00Z"],
        ),
    ] = UNSET
    until: Annotated[
        Instant | UnsetType,
        Meta(description="Only jobs created before this time.", examples=["2026-11-22T00:00:00Z"]),
    ] = UNSET
    key: Annotated[str | UnsetType, Meta(description="Only jobs of the API key with this id.")] = (
        UNSET
    )
    metadata: Annotated[
        str | UnsetType,
        Meta(
            description="Only jobs whose metadata has these members: `name=value` or `name`, "
            "several with commas between, or a JSON object.",
            examples=["customer=42"],
            extra_json_schema={"pattern": "^[^,=]"},
        ),
    ] = UNSET
    error: Annotated[
        str | UnsetType,
        Meta(
            description="Only failed jobs with this text in their error: its type, message, "
            "exception or line."
        ),
    ] = UNSET
    group: Annotated[
        str | UnsetType,
        Meta(
            description="Only the failures of this group.",
            extra_json_schema={"pattern": GROUP_NAME},
        ),
    ] = UNSET
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="Jobs per page.")] = 50
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
    """List or search jobs, newest first, a page at a time."""
    query = read_query(request, ListQuery)
    models, search = _models(services, request, query), _search(request, query)
    before = _before(query)
    if query.id is not UNSET:
        page = await _one(services, models, search, query.id, before)
    elif search.failures_only and services.settings.failures_max:
        page = await list_failed(
            services.failures, services.queue, models, search, before=before, limit=query.limit
        )
    else:
        _require_lists(services, search)
        page = await list_places(services.queue, models, search, before=before, limit=query.limit)
    ids, jobs = [place.job_id for place in page.places], list[Job | None]()
    for some in pages_of(ids, VIEW_MAX_JOBS):
        jobs += await services.queue.view(some, results=False)
    # A job may have changed its state since it was found.
    may_see = request.caller.may_see
    fit = [job for job in jobs if job is not None and may_see(job.key) and search.fits(job)]
    objects = [await job_or_null(services, job, with_result=False) for job in fit]
    cursor = None if page.end is None else f"{page.end.created_us}-{page.end.job_id}"
    body = b'{"jobs":[%s],"cursor":%s}' % (b",".join(objects), msgspec.json.encode(cursor))
    return Reply(200, body, headers=(NO_STORE,))


def _require_lists(services: Services, search: JobSearch) -> None:
    if search.error or search.group:
        require_failures(services)
    if not services.settings.job_index_max:
        raise ListsOff(
            "this server does not list jobs: the setting job_index_max is 0",
            hint="Set job_index_max (HEADRACE_JOB_INDEX_MAX) to the number of jobs to list.",
        )


def require_failures(services: Services) -> None:
    """Raise ListsOff if this server keeps no failures."""
    if not services.settings.failures_max:
        raise ListsOff(
            "this server does not list failures: the setting failures_max is 0",
            hint="Set failures_max (HEADRACE_FAILURES_MAX) to how many of a model are kept.",
        )


def _models(services: Services, request: Request, query: ListQuery) -> list[str]:
    """Return the models whose jobs can match."""
    if query.key is not UNSET and request.caller.only not in (None, query.key):
        return []
    names = [model.name for model in services.catalog.served]
    if query.model is not UNSET:
        names = [services.catalog.get(query.model).name]
    if query.group is not UNSET:
        model, _ = split_group(query.group)
        names = [name for name in names if name == model]
    return names


def _search(request: Request, query: ListQuery) -> JobSearch:
    return JobSearch(
        states=frozenset() if query.status is UNSET else frozenset(_states(query.status)),
        since_us=0 if query.since is UNSET else instant_us("since", str(query.since)),
        owner=request.caller.only if query.key is UNSET else query.key,
        metadata=[] if query.metadata is UNSET else _members(query.metadata),
        error="" if query.error is UNSET else query.error,
        group="" if query.group is UNSET else split_group(query.group)[1],
    )


def _before(query: ListQuery) -> JobPlace | None:
    places = [] if query.cursor is UNSET else [JobPlace(*read_cursor(CURSOR, query.cursor))]
    if query.until is not UNSET:
        places.append(JobPlace(instant_us("until", str(query.until)), ""))
    return min(places, default=None)


async def _one(
    services: Services,
    models: Sequence[str],
    search: JobSearch,
    job_id: str,
    before: JobPlace | None,
) -> JobPage:
    """Return the page with this job, or an empty one."""
    if not is_id(job_id):
        raise InvalidRequest(
            f"query parameter id: {job_id[:64]!r} is not an id",
            hint="Give 1 to 128 of A-Z a-z 0-9 _ . : @ -.",
        )
    (job,) = await services.queue.view([job_id], results=False)
    if job is None or job.model not in models or not search.owned(job):
        return JobPage([], None)
    place = JobPlace(job.created_us, job.id)
    return JobPage([place] if before is None or place < before else [], None)


def _members(text: str) -> list[tuple[str, str | None]]:
    """Return names and values of metadata, as `JobSearch` has them."""
    if text.startswith("{"):
        try:
            members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        except msgspec.MsgspecError:
            raise _no_metadata(text) from None
        return [(name, bytes(value).decode()) for name, value in members.items()]
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    if not pairs or not all(name for name, _, _ in pairs):
        raise _no_metadata(text)
    return [(name, value if equals else None) for name, equals, value in pairs]


def _no_metadata(text: str) -> InvalidRequest:
    return InvalidRequest(
        f"query parameter metadata: {text[:64]!r} has no names of metadata",
        hint='Give name=value, several with commas between, or a JSON object: {"name": "value"}.',
    )


def _states(words: Sequence[str]) -> list[State]:
    for word in words:
        if word not in _STATES:
            raise InvalidRequest(
                f"unknown status {word[:32]!r}{did_you_mean(word, _STATES)}",
                hint=f"Known: {', '.join(_STATES)}.",
            )
    return [_STATES[word] for word in words]


def instant_us(parameter: str, text: str) -> int:
    """Return the time in a query parameter in microseconds since 1970."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = _instant_s(text)
    if not 0 <= seconds <= SINCE_MAX_S:
        raise InvalidRequest(
            f"query parameter {parameter}: {text[:48]!r} is not a time",
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
