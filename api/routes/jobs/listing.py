"""`GET /api/v1/jobs`: jobs, newest first, a page at a time."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Final

import msgspec

from api.http.messages import NO_STORE, Reply, Request
from api.routes.jobs.bulk_status import job_or_null
from api.services import Services
from headrace.config.suggestions import did_you_mean
from headrace.errors import InvalidRequest, ListsOff
from headrace.jobs.job import Job, State
from headrace.queue.job_queue import VIEW_MAX_JOBS
from headrace.queue.listing import JobPlace
from headrace.queue.listing import list_jobs as list_places
from headrace.redis.clock import US_PER_S

PAGE_DEFAULT: Final = 50
PAGE_MAX: Final = 1000
#: The year 9999, the last of RFC 3339.
SINCE_MAX_S: Final = 253_402_300_799
#: The position of a job in the list: when it was created, in microseconds, and its id.
CURSOR: Final = r"^[0-9]{1,16}-[A-Za-z0-9_.:@/-]{1,128}$"

_QUERY: Final = frozenset({"model", "status", "since", "limit", "cursor"})
_CURSOR = re.compile(CURSOR)
_STATES: Final = {state.status: state for state in State}


async def list_jobs(services: Services, request: Request) -> Reply:
    """Return a page of jobs and the cursor of the next one, null at the end."""
    query = request.query(_QUERY)
    if not services.settings.job_index_max:
        raise ListsOff(
            "this server does not list jobs: the setting job_index_max is 0",
            hint="Set job_index_max (HEADRACE_JOB_INDEX_MAX) to the number of jobs to list.",
        )
    name = query.get("model")
    models = (
        [services.catalog.get(name).name]
        if name is not None
        else [model.name for model in services.catalog.served]
    )
    states = _states(query.get("status"))
    page = await list_places(
        services.queue,
        models,
        before=_place(query.get("cursor")),
        since_us=_since_us(query.get("since")),
        states="".join(states),
        limit=_limit(query.get("limit")),
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
    for at in range(0, len(ids), VIEW_MAX_JOBS):
        jobs += await services.queue.view(ids[at : at + VIEW_MAX_JOBS], results=False)
    return jobs


def _states(text: str | None) -> list[State]:
    if text is None:
        return []
    words = text.split(",")
    for word in words:
        if word not in _STATES:
            raise InvalidRequest(
                f"unknown status {word[:32]!r}{did_you_mean(word, _STATES)}",
                hint=f"Known: {', '.join(_STATES)}.",
            )
    return [_STATES[word] for word in words]


def _limit(text: str | None) -> int:
    if text is None:
        return PAGE_DEFAULT
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= PAGE_MAX):
        raise InvalidRequest(
            f"query parameter limit: {text[:32]!r} is not a number from 1 to {PAGE_MAX}"
        )
    return int(text)


def _since_us(text: str | None) -> int:
    if text is None:
        return 0
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


def _place(text: str | None) -> JobPlace | None:
    if text is None:
        return None
    if not _CURSOR.fullmatch(text):
        raise InvalidRequest(
            f"query parameter cursor: {text[:64]!r} is not a cursor of this API",
            hint="Send the cursor of the previous page unchanged.",
        )
    created, _, job_id = text.partition("-")
    return JobPlace(int(created), job_id)
