"""Lists of jobs, newest first, merged from the indices of the models. Independent of HTTP.

If only failed jobs can match, the list is made of the failures, which are few. Else the index of
each model is read from its newest job on. Jobs of all models have one order, by creation time and
then by id. A place in it is a cursor: newer jobs come before it and shift nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec

from headrace.access.api_key import NO_OWNER
from headrace.jobs.job import Job, State, read_error_record
from headrace.queue.failures import Failures
from headrace.queue.job_queue import JobQueue
from headrace.redis import keys
from headrace.redis.fields import JobField
from headrace.redis.scripts import script


@dataclass(frozen=True, slots=True)
class JobSearch:
    """The jobs that a list has.

    Attributes:
        states: their states; empty for all.
        since_us: jobs created before this are left out.
        owner: the API key whose jobs count; None for all.
        metadata: names and values that their metadata must have. A value is text, or the JSON of
            another value; None for any value.
        error: text in a member of their error.
        group: the group of their failure, without the model.
    """

    states: frozenset[State] = frozenset()
    since_us: int = 0
    owner: str | None = None
    metadata: Sequence[tuple[str, str | None]] = ()
    error: str = ""
    group: str = ""

    @property
    def failures_only(self) -> bool:
        """Whether only failed jobs can match."""
        return bool(self.error or self.group) or self.states == {State.FAILED}

    @property
    def metadata_texts(self) -> list[tuple[str, str, str]]:
        """Three texts for each name: the JSON of metadata that match has one of each three."""
        texts = []
        for name, value in self.metadata:
            member = f"{_json(name)}:"
            if value is None:
                texts.append((member, member, member))
                continue
            # With what follows it, as a number may be the beginning of a longer one.
            parsed = member + _canonical(value)
            texts.append((member + _json(value), f"{parsed},", f"{parsed}}}"))
        return texts

    def may_fit(self, error: bytes | None, metadata: bytes | None) -> bool:
        """Return whether a failed job can match, by the JSON in its record; `fits` decides."""
        # Without its quotes, as it may be a part of a longer text.
        wanted = _json(self.error.lower())[1:-1]
        if wanted not in (error or b"").decode("utf-8", "replace").lower():
            return False
        found = (metadata or b"").decode("utf-8", "replace")
        return all(any(text in found for text in three) for three in self.metadata_texts)

    def owned(self, job: Job) -> bool:
        """Return whether a job belongs to the API key."""
        return self.owner is None or (job.key or NO_OWNER) == self.owner

    def fits(self, job: Job) -> bool:
        """Return whether a job matches, apart from its owner and the group of its failure."""
        if self.states and job.state not in self.states:
            return False
        if job.created_us < self.since_us:
            return False
        if (self.error or self.group) and job.state is not State.FAILED:
            return False
        if self.error and not read_error_record(job.error_json).contains(self.error):
            return False
        return not self.metadata or self._has_metadata(job)

    def _has_metadata(self, job: Job) -> bool:
        stored = msgspec.json.decode(job.metadata_json) if job.metadata_json else {}
        return all(
            name in stored
            and (value is None or stored[name] == value or _json(stored[name]) == _canonical(value))
            for name, value in self.metadata
        )


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _canonical(value: str) -> str:
    """Return a JSON value as records have it; a text that is not JSON as a string."""
    try:
        return _json(msgspec.json.decode(value))
    except msgspec.DecodeError:
        return _json(value)


#: How many jobs are read in one call: Redis serves others in between.
CALL_JOBS: Final = 500
#: How many are read of all models together before the time is looked at, and of each at least.
ROUND_JOBS: Final = 5_000
CALL_JOBS_MIN: Final = 50
#: How many jobs are read for one page, and for how long. If few of them match, the page is short.
PAGE_JOBS: Final = 100_000
PAGE_S: Final = 0.15
#: How many failures are read for one page at most, of those whose records decide.
PAGE_FAILED: Final = 4_000


class JobPlace(NamedTuple):
    """The place of a job in the order of lists; the newest is the greatest."""

    created_us: int
    job_id: str


@dataclass(frozen=True, slots=True)
class JobPage:
    """A part of a list; `end` is where the next page begins, None on the last page."""

    places: list[JobPlace]
    end: JobPlace | None


@dataclass(slots=True)
class _Walk:
    """How far the index of one model has been read.

    Attributes:
        at: the last place that was read.
        places: the jobs that match.
        more: older jobs follow.
    """

    model: str
    at: JobPlace | None
    places: list[JobPlace] = field(default_factory=list)
    more: bool = True


async def list_jobs(
    queue: JobQueue,
    models: Sequence[str],
    search: JobSearch,
    *,
    before: JobPlace | None,
    limit: int,
) -> JobPage:
    """Return a page of the jobs of these models, from their indices.

    Args:
        search: which jobs; what the scripts cannot decide is left to `JobSearch.fits`.
        before: the end of the previous page; None for the newest.
        limit: how many jobs at most; a page with fewer may not be the last.

    Raises:
        BrokerUnavailable: Redis does not answer.
    """
    walks = [_Walk(model, before) for model in models]
    at_once = min(CALL_JOBS, max(CALL_JOBS_MIN, ROUND_JOBS // max(1, len(models))))
    last_walks, left, stop_at = walks, PAGE_JOBS, time.monotonic() + PAGE_S
    while True:
        for walk in last_walks:
            await _read_on(queue, walk, search, limit, at_once)
        left -= at_once * len(last_walks)
        unfinished = [walk for walk in walks if walk.more]
        # All jobs up to this place are known; older ones may be missing.
        reached = max((walk.at for walk in unfinished if walk.at is not None), default=None)
        places = sorted((place for walk in walks for place in walk.places), reverse=True)
        complete = [place for place in places if reached is None or place >= reached]
        if len(complete) >= limit:
            last = complete[limit - 1]
            return JobPage(complete[:limit], last if unfinished or len(places) > limit else None)
        if reached is None or left <= 0 or time.monotonic() > stop_at:
            return JobPage(complete, reached)
        last_walks = [walk for walk in unfinished if walk.at == reached]


async def list_failed(
    failures: Failures,
    queue: JobQueue,
    models: Sequence[str],
    search: JobSearch,
    *,
    before: JobPlace | None,
    limit: int,
) -> JobPage:
    """Return a page of the failed jobs of these models; see `list_jobs`."""
    places: list[JobPlace] = []
    stop_at = time.monotonic() + PAGE_S
    # Only their records have an error and metadata; without these every failure matches.
    reads_records = bool(search.error or search.metadata)
    enough = PAGE_FAILED if reads_records else limit
    for model in models:
        index = await failures.of(model)
        newest = index.newest(
            enough + 1,
            owner=search.owner,
            since_us=search.since_us,
            group=search.group,
            before=before,
        )
        places += [JobPlace(*place) for place in newest]
    places.sort(reverse=True)
    more = len(places) > enough
    del places[enough:]
    if not reads_records:
        return JobPage(places, places[-1] if more else None)
    fitting: list[JobPlace] = []
    for at in range(0, len(places), CALL_JOBS):
        if at and time.monotonic() > stop_at:
            return JobPage(fitting, places[at - 1])
        portion = places[at : at + CALL_JOBS]
        fields = (JobField.ERROR, JobField.METADATA)
        rows = await queue.read_all(
            [("HMGET", keys.job(place.job_id), *fields) for place in portion]
        )
        fitting += [place for place, row in zip(portion, rows, strict=True) if search.may_fit(*row)]
        if len(fitting) >= limit:
            last = fitting[limit - 1]
            return JobPage(fitting[:limit], last if more or last != places[-1] else None)
    return JobPage(fitting, places[-1] if more else None)


async def _read_on(
    queue: JobQueue, walk: _Walk, search: JobSearch, limit: int, at_once: int
) -> None:
    call = script("queues/list_jobs").call(
        [], walk.model, *(walk.at or ("", "")), search.since_us, "".join(sorted(search.states)),
        limit - len(walk.places), at_once, search.owner or "",
        *chain.from_iterable(search.metadata_texts),
    )  # fmt: skip
    more, *texts = await queue.call(call)
    walk.more = bool(more)
    if texts[0]:
        pairs = zip(texts[::2], texts[1::2], strict=True)
        walk.at, *listed = (JobPlace(int(us), job_id.decode()) for us, job_id in pairs)
        walk.places += listed
