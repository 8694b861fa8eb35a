"""`/api/v1/overview`, `/findings` and `/series`: what an operator watches."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from api.components.overview import (
    SETTLED_S,
    Answer,
    columns_of,
    read_buckets,
    span_of,
)
from api.http.messages import Reply, Request, json_reply
from api.routes.jobs.listing import Instant, instant_us
from api.services import Services
from api.submission.decoding import read_query
from headrace.observability import series
from headrace.redis.clock import US_PER_S
from headrace.schema.overview import Findings, Series

NOT_MODIFIED: Final = 304
#: The most values of a series in one answer: a day by minute.
BUCKETS_MAX: Final = series.MINUTE.kept
_RINGS: Final = {"minute": series.MINUTE, "hour": series.HOUR}
#: The values of a series that names no beginning.
_DEFAULT: Final = 60


class SeriesQuery(msgspec.Struct):
    """The query of a time series."""

    since: Annotated[
        Instant | UnsetType,
        Meta(
            description="From this time on, rounded down to a whole step; a number is seconds "
            "since 1970. By default 60 steps.",
            examples=["2026-11-21T10:15:00Z"],
        ),
    ] = UNSET
    until: Annotated[
        Instant | UnsetType,
        Meta(description="Before this time; by default, and at most, until the last full step."),
    ] = UNSET
    step: Annotated[
        Literal["minute", "hour"] | UnsetType,
        Meta(
            description="Minutes are kept for 24 hours, hours for 30 days. By default hours if "
            "`since` is longer ago than minutes are kept."
        ),
    ] = UNSET


async def get_overview(services: Services, request: Request) -> Reply:
    """Return all models in numbers, and what is wrong; it is read once a second."""
    return _unless_known(request, await services.overviews.overview())


async def list_findings(services: Services, _: Request) -> Reply:
    """List what is wrong now, the worst first."""
    return json_reply(Findings((await services.overviews.overview()).value.findings))


async def list_series(services: Services, request: Request) -> Reply:
    """Return the last hour of all models by minute; it changes once a minute."""
    return _unless_known(request, (await services.overviews.last_hour()).answer)


async def get_series(services: Services, request: Request, model: str) -> Reply:
    """Return what a model did by minute or by hour."""
    name = services.catalog.get(model).name
    query = read_query(request, SeriesQuery)
    await services.queue.read_clock()
    now_s = services.queue.clock.now_s()
    ring = _ring(query, now_s)
    step_us = ring.step_s * US_PER_S
    end = int(now_s - SETTLED_S) // ring.step_s
    if query.until is not UNSET:
        end = min(end, instant_us("until", str(query.until)) // step_us)
    first = end - _DEFAULT
    if query.since is not UNSET:
        first = instant_us("since", str(query.since)) // step_us
    first = min(max(first, end - BUCKETS_MAX, 0), end)
    (buckets,) = await read_buckets(services.queue, [name], ring, first, end)
    return json_reply(Series(**span_of(ring, first, end), model=name, series=columns_of(buckets)))


def _ring(query: SeriesQuery, now_s: float) -> series.Ring:
    if query.step is not UNSET:
        return _RINGS[query.step]
    since_s = now_s if query.since is UNSET else instant_us("since", str(query.since)) / US_PER_S
    minutes_s = series.MINUTE.kept * series.MINUTE.step_s
    return series.HOUR if now_s - since_s > minutes_s + series.MINUTE.step_s else series.MINUTE


def _unless_known(request: Request, answer: Answer[Any]) -> Reply:
    """Return an answer, or 304 if the client has it."""
    headers = ((b"cache-control", b"no-cache"), (b"etag", answer.etag))
    if answer.etag in [tag.strip() for tag in request.header(b"if-none-match").split(b",")]:
        return Reply(NOT_MODIFIED, b"", headers=headers)
    return Reply(200, answer.body, headers=headers)
