"""The failures of one model in memory, which follows those in Redis.

All of them are read at the first use, and later only new ones: to read 10,000 failures for each
request would take 40 ms. It takes about 120 bytes a failure.
"""

from __future__ import annotations

import asyncio
import heapq
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.queue.job_queue import JobQueue
from headrace.redis.scripts import script

#: How many of its jobs a group names.
NEWEST_MAX: Final = 10


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
    """The failures of one group.

    Attributes:
        newest: the ids of the last ones, the newest first.
        over_time: by the beginning of a part of the time, how many failed in it.
    """

    count: int
    first_us: int
    last_us: int
    newest: list[str] = field(default_factory=list)
    over_time: dict[int, int] = field(default_factory=dict)


class FailureIndex:
    """The failures of a model in columns, the one that failed first is first.

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
        """Read what has changed in Redis; older failures do not count.

        Raises:
            BrokerError: Redis does not answer.
        """
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
        """Return the failures since a time by group.

        Args:
            bucket_us: how long the parts of time are in which they are counted; 0 counts none.
        """
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
