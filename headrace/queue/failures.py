"""Failures: failed jobs, their groups, and their retry. Independent of HTTP.

docs/architecture/failures.md describes how they are kept. A group has the failures of one model
with the same error code, exception and line of the handler.
"""

from __future__ import annotations

import asyncio
import heapq
import re
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field
from typing import Final, Literal, NamedTuple, cast

from headrace.errors import Conflict, InvalidRequest
from headrace.jobs.job import ErrorRecord, Job, read_error_record
from headrace.queue.job_queue import JobQueue
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.fields import JobField
from headrace.redis.scripts import pages_of, script

#: How many of its jobs a group names.
NEWEST_MAX: Final = 10
#: How many failures or errors are read, and how many jobs are retried, in one call: Redis serves
#: others in between.
PORTION: Final = 2_000
RETRY_PORTION: Final = 200

#: The names of groups: the model's name and the group in it, as in JSON Schema.
GROUP_NAME: Final = r"^([A-Za-z0-9_][A-Za-z0-9_.-]{0,63})\.([0-9a-f]{12})$"
_GROUP_NAME: Final = re.compile(GROUP_NAME)

Outcome = Literal["queued", "gone", "alive", "no-message", "elsewhere"]


@dataclass(slots=True)
class FailureGroup:
    """Failures with the same cause. Times are microseconds of Redis' clock.

    Attributes:
        name: `<model>.<group>`.
        newest: ids of the jobs that failed last, the newest first.
        over_time: by the beginning of a part of the time, how many failed in it.
        error: of the newest job whose record is there.
    """

    name: str
    model: str
    count: int
    first_us: int
    last_us: int
    newest: list[str] = field(default_factory=list)
    over_time: dict[int, int] = field(default_factory=dict)
    error: ErrorRecord = field(default_factory=ErrorRecord)


class Failures:
    """The failures of any model. All methods raise a BrokerError if Redis does not answer.

    `owner` is the API key whose jobs count; None for all.
    """

    def __init__(self, jobs: JobQueue, failed_ttl_s: int) -> None:
        self._jobs = jobs
        self._ttl_s = failed_ttl_s
        self._indices: dict[str, FailureIndex] = {}

    async def of(self, model: str) -> FailureIndex:
        """Return the failures of a model as they are now."""
        index = self._indices.setdefault(model, FailureIndex(model))
        kept_from_us = int((self._jobs.clock.now_s() - self._ttl_s) * US_PER_S)
        await index.follow(self._jobs, max(kept_from_us, 0))
        return index

    async def groups(
        self,
        models: Sequence[str],
        *,
        owner: str | None,
        since_us: int,
        text: str,
        limit: int,
        bucket_us: int = 0,
    ) -> list[FailureGroup]:
        """Return the groups of these models, the one that failed last first.

        Args:
            text: only groups whose error has this text in one of its members; "" for all.
            bucket_us: how long the parts of time are in which failures are counted; 0 counts none.
        """
        by_name: list[FailureGroup] = []
        for model in models:
            index = await self.of(model)
            tallies = index.tallies(owner=owner, since_us=since_us, bucket_us=bucket_us)
            by_name += [
                FailureGroup(f"{model}.{group}", model, *astuple(tally))
                for group, tally in tallies.items()
            ]
        ordered = sorted(by_name, key=lambda group: (group.last_us, group.name), reverse=True)
        groups: list[FailureGroup] = []
        for page in pages_of(ordered, PORTION):
            await self._read_errors(page)
            groups += [group for group in page if group.error.contains(text)]
            if len(groups) >= limit:
                break
        return groups[:limit]

    async def _read_errors(self, groups: Sequence[FailureGroup]) -> None:
        newest = [group.newest[0] for group in groups]
        stored = await self._jobs.read_all(
            [("HGET", keys.job(job_id), JobField.ERROR) for job_id in newest]
        )
        for group, text in zip(groups, stored, strict=True):
            if text:
                group.error = read_error_record(text)

    async def discard(self, name: str, *, expected: int) -> int:
        """Let all failures of a group go, with their messages and dead letters; return how many.

        Raises:
            Conflict: the group has another number of failures than `expected`; none was let go.
        """
        discarded = 0
        failures = await self._of_group(name, None, expected)
        for queue in await self._jobs.queues_of(keys.queue_name(split_group(name)[0])):
            for page in pages_of(failures, RETRY_PORTION):
                entries = [failure.entry for failure in page]
                discard = script("queues/discard_failures").on(queue, *entries)
                discarded += sum(map(int, await self._jobs.call_once(discard)))
        return discarded

    async def _of_group(self, name: str, owner: str | None, expected: int | None) -> list[Failure]:
        model, group = split_group(name)
        failures = (await self.of(model)).failures_of(group, owner=owner)
        if expected is not None and len(failures) != expected:
            raise Conflict(
                f"the group {name} has {len(failures)} failures by now, and not {expected}",
                hint="Look at it again, and repeat with the new number.",
            )
        return failures

    async def retry(
        self, name: str, *, owner: str | None = None, expected: int | None = None
    ) -> dict[str, Outcome]:
        """Return the jobs of a group to the end of their queues, as the jobs that they were.

        Each call of the script moves some jobs completely. After an error some are queued, and a
        repeat retries the others.

        Args:
            expected: how many failures the group must have; None for any number.

        Raises:
            Conflict: it has another number; none is retried.

        Returns:
            For each job `queued`, `gone` (it was deleted or retried meanwhile), `alive` (its
            message is still in a list), or `no-message` (nothing is left to retry).
        """
        model, _ = split_group(name)
        failures = await self._of_group(name, owner, expected)
        outcomes: dict[str, Outcome] = dict.fromkeys(
            (failure.job_id for failure in failures), "elsewhere"
        )
        for queue in await self._jobs.queues_of(keys.queue_name(model)):
            left = [failure for failure in failures if outcomes[failure.job_id] == "elsewhere"]
            for page in pages_of(left, RETRY_PORTION):
                entries = [failure.entry for failure in page]
                retry = script("queues/retry_failures").on(queue, *entries)
                words = await self._jobs.call_once(retry)
                for failure, word in zip(page, words, strict=True):
                    outcomes[failure.job_id] = word.decode()
        return outcomes

    async def retry_one(self, job: Job) -> Outcome:
        """Return a failed job to the end of its queue; see `retry`."""
        fields = (JobField.FAILURE_GROUP, JobField.CREATED, JobField.KEY)
        (record,) = await self._jobs.read_all([("HMGET", keys.job(job.id), *fields)])
        group, created, owner = (value.decode() if value else "-" for value in record)
        entry = f"{group} {created} {owner} {job.id}"
        for queue in await self._jobs.queues_of(keys.queue_name(job.model)):
            retry = script("queues/retry_failures").on(queue, entry)
            (word,) = await self._jobs.call_once(retry)
            if word != b"elsewhere":
                return cast(Outcome, word.decode())
        return "elsewhere"

    async def message(self, job_id: str, model: str) -> bytes | None:
        """Return the message of a failed job; None if it is not kept."""
        queues = await self._jobs.queues_of(keys.queue_name(model))
        letters = [("HGET", keys.dead_letter(queue, job_id), "raw") for queue in queues]
        found = await self._jobs.read_all([("GET", keys.failed(job_id)), *letters])
        return next(filter(None, found), None)


def split_group(name: str) -> tuple[str, str]:
    """Return the model and the group of a group's name; raise InvalidRequest for other names."""
    parts = _GROUP_NAME.fullmatch(name)
    if parts is None:
        raise InvalidRequest(
            f"{name[:64]!r} is not the name of a group of failures",
            hint="Take one from GET /api/v1/failures, or from `headrace jobs --group error`.",
        )
    return parts[1], parts[2]


class Failure(NamedTuple):
    """A failed job as its entry has it; the newest by creation is the greatest."""

    created_us: int
    job_id: str
    failed_us: int
    group: str
    key: str

    @property
    def entry(self) -> str:
        """The member of the sorted set in Redis."""
        return f"{self.group} {self.created_us} {self.key} {self.job_id}"


@dataclass(slots=True)
class Tally:
    """The failures of one group: the newest ids first; `over_time` by parts of the time."""

    count: int
    first_us: int
    last_us: int
    newest: list[str] = field(default_factory=list)
    over_time: dict[int, int] = field(default_factory=dict)


class FailureIndex:
    """The failures of a model in columns, the one that failed first is first.

    All of them are read at the first use, and later only new ones: to read 10,000 failures for each
    request would take 40 ms. It takes about 120 bytes a failure.

    Groups and API keys are numbers in `_names`. Methods other than `follow` show what it read last;
    `owner` is the API key whose failures count, None for all.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._following = asyncio.Lock()
        self._clear()

    def _clear(self) -> None:
        self._failed, self._created = array("q"), array("q")
        self._groups, self._keys = array("L"), array("L")
        self._ids: list[str] = []
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}

    async def follow(self, jobs: JobQueue, kept_from_us: int) -> None:
        """Read what has changed in Redis, without older failures; or raise BrokerError."""
        async with self._following:
            if not await self._read_on(jobs, kept_from_us):
                # One between others is gone: it was retried, or its job was deleted.
                self._clear()
                await self._read_on(jobs, kept_from_us)

    async def _read_on(self, jobs: JobQueue, kept_from_us: int) -> bool:
        """Read new failures and drop old ones; return whether there are as many as in Redis."""
        while True:
            newest_us = self._failed[-1] if self._failed else kept_from_us
            read = script("queues/follow_failures").call(
                [], self._model, kept_from_us, newest_us, PORTION + self._with_newest_time()
            )
            count, oldest, text = await jobs.call(read)
            lines = text.decode().splitlines()
            added = self._add(lines)
            if len(lines) < PORTION or not added:
                break
        gone = bisect_left(self._failed, int(oldest)) if oldest else len(self._failed)
        for column in (self._failed, self._created, self._groups, self._keys, self._ids):
            del column[:gone]
        return len(self._ids) == int(count)

    def _with_newest_time(self) -> int:
        if not self._failed:
            return 0
        return len(self._failed) - bisect_left(self._failed, self._failed[-1])

    def _add(self, lines: list[str]) -> int:
        known = set(self._ids[len(self._ids) - self._with_newest_time() :])
        newest_us = self._failed[-1] if self._failed else -1
        added = 0
        for line in lines:
            failed, group, created, key, job_id = line.split(" ", 4)
            failed_us = int(failed)
            if failed_us > newest_us or job_id not in known:
                self._failed.append(failed_us)
                self._created.append(int(created))
                self._groups.append(self._number(group))
                self._keys.append(self._number(key))
                self._ids.append(job_id)
                added += 1
        return added

    def _number(self, name: str) -> int:
        number = self._numbers.setdefault(name, len(self._names))
        if number == len(self._names):
            self._names.append(name)
        return number

    def tallies(self, *, owner: str | None, since_us: int, bucket_us: int = 0) -> dict[str, Tally]:
        """Return the failures since a time by group, counted in parts of `bucket_us`; 0: not."""
        start = bisect_left(self._failed, since_us)
        failed, groups, ids = self._failed[start:], self._groups[start:], self._ids[start:]
        if owner is not None:
            number = self._numbers.get(owner)
            own = [at for at, key in enumerate(self._keys[start:]) if key == number]
            failed = array("q", [failed[at] for at in own])
            groups = array("L", [groups[at] for at in own])
            ids = [ids[at] for at in own]
        counts = Counter(groups)
        last = dict(zip(groups, failed, strict=True))
        first = dict(zip(reversed(groups), reversed(failed), strict=True))
        newest: defaultdict[int, list[str]] = defaultdict(list)
        missing = sum(min(count, NEWEST_MAX) for count in counts.values())
        for group, job_id in zip(reversed(groups), reversed(ids), strict=True):
            if not missing:
                break
            if len(newest[group]) < NEWEST_MAX:
                newest[group].append(job_id)
                missing -= 1
        parts: defaultdict[int, dict[int, int]] = defaultdict(dict)
        if bucket_us:
            begins = (at - at % bucket_us for at in failed)
            for (group, begin), count in Counter(zip(groups, begins, strict=True)).items():
                parts[group][begin] = count
        return {
            self._names[group]: Tally(count, first[group], last[group], newest[group], parts[group])
            for group, count in counts.items()
        }

    def newest(
        self,
        count: int,
        *,
        owner: str | None,
        since_us: int = 0,
        group: str = "",
        before: tuple[int, str] | None = None,
    ) -> list[tuple[int, str]]:
        """Return when jobs were created, and their ids: the newest by creation, these first.

        Args:
            since_us: only those that failed at this time or later.
            group: only those of this group; "" for all.
            before: only those that come after this place.
        """
        places: Iterator[tuple[int, str]] = (
            (self._created[at], self._ids[at]) for at in self._places(owner, since_us, group)
        )
        if before is not None:
            places = (place for place in places if place < before)
        return heapq.nlargest(count, places)

    def failures_of(self, group: str, *, owner: str | None) -> list[Failure]:
        """Return the failures of a group, the last one first."""
        places = reversed(list(self._places(owner, 0, group)))
        return [
            Failure(self._created[at], self._ids[at], self._failed[at], group, self._key_at(at))
            for at in places
        ]

    def _key_at(self, at: int) -> str:
        return self._names[self._keys[at]]

    def _places(self, owner: str | None, since_us: int, group: str) -> Iterator[int]:
        places = iter(range(bisect_left(self._failed, since_us), len(self._failed)))
        if group:
            wanted = self._numbers.get(group, -1)
            places = (at for at in places if self._groups[at] == wanted)
        if owner is not None:
            key = self._numbers.get(owner, -1)
            places = (at for at in places if self._keys[at] == key)
        return places
