"""Lists of jobs, newest first, merged from the indices of the models. Independent of HTTP.

Jobs of all models have one order, by creation time and then by id. So a place in it is a cursor:
later jobs come before it and shift nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.queue.job_queue import JobQueue
from headrace.redis.scripts import queues as queue_scripts

#: How many jobs one call of queues/list_jobs.lua looks at: Redis serves others in between.
STRETCH_JOBS: Final = 500
#: How many jobs one page looks at. If few of them match, the page is short.
PAGE_LOOK_JOBS: Final = 10_000


class JobPlace(NamedTuple):
    """The place of a job in the order of lists; the newest is the greatest."""

    created_us: int
    job_id: str


@dataclass(frozen=True, slots=True)
class JobPage:
    """A part of a list.

    Attributes:
        end: where the next page begins; None on the last page.
    """

    places: list[JobPlace]
    end: JobPlace | None


@dataclass(slots=True)
class _Walk:
    """The walk along the index of one model.

    Attributes:
        at: the last place that was looked at.
    """

    model: str
    at: JobPlace | None
    found: list[JobPlace] = field(default_factory=list)
    more: bool = True


async def list_jobs(
    queue: JobQueue,
    models: Sequence[str],
    *,
    before: JobPlace | None,
    since_us: int,
    states: str,
    limit: int,
    owner: str | None = None,
) -> JobPage:
    """Return a page of the jobs of these models.

    Args:
        queue: calls the scripts.
        models: their names.
        before: the end of the previous page; None for the newest.
        since_us: jobs created before this are left out.
        states: letters of the states that count; "" for all.
        limit: how many jobs at most; a page with fewer may not be the last.
        owner: the API key whose jobs count; None for all.

    Raises:
        BrokerUnavailable: Redis does not answer.
    """
    walks = [_Walk(model, before) for model in models]
    behind, looks = walks, PAGE_LOOK_JOBS
    while True:
        for walk in behind:
            await _step(queue, walk, since_us, states, limit, owner)
        looks -= STRETCH_JOBS * len(behind)
        going = [walk for walk in walks if walk.more]
        # Older jobs may still come from a walk that has not reached this place.
        horizon = max((walk.at for walk in going if walk.at is not None), default=None)
        found = sorted((place for walk in walks for place in walk.found), reverse=True)
        sure = [place for place in found if horizon is None or place >= horizon]
        if len(sure) >= limit:
            last = sure[limit - 1]
            return JobPage(sure[:limit], last if going or len(found) > limit else None)
        if horizon is None or looks <= 0:
            return JobPage(sure, horizon)
        behind = [walk for walk in going if walk.at == horizon]


async def _step(
    queue: JobQueue, walk: _Walk, since_us: int, states: str, limit: int, owner: str | None
) -> None:
    call = queue_scripts.list_jobs(
        walk.model, walk.at, since_us=since_us, states=states, limit=limit - len(walk.found),
        look_max=STRETCH_JOBS, owner=owner,
    )  # fmt: skip
    walk.more, last, found = queue_scripts.read_list_jobs(await queue.call(call))
    if last is not None:
        walk.at = JobPlace(*last)
    walk.found += [JobPlace(*place) for place in found]
