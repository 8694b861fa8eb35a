"""The failures in memory are always those in Redis, whatever is added, deleted or trimmed there."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import NamedTuple

import pytest
import redis

from headrace.queue import failures
from headrace.queue.failures import FailureIndex
from headrace.queue.job_queue import JobQueue
from headrace.redis import keys
from headrace.redis.connection import connect_async
from tests.harness.servers.redis_servers import RedisServer

pytestmark = pytest.mark.leaves_keys

KEY = keys.failures("m")
GROUPS = [f"{n:012x}" for n in range(5)]
OWNERS = ["-", "a", "b"]
KEPT_FROM = 100


class Entry(NamedTuple):
    group: str
    created: int
    owner: str
    job: str
    failed: int

    @property
    def member(self) -> str:
        return f"{self.group} {self.created} {self.owner} {self.job}"


class History:
    """What happens to the failures in Redis, drawn at random, and what should be known of them."""

    def __init__(self, client: redis.Redis, seed: int) -> None:
        self.client = client
        self.drawn = random.Random(seed)
        self.entries: list[Entry] = []

    def step(self, number: int) -> None:
        kind = self.drawn.choice(["add", "add", "add", "delete", "trim", "nothing"])
        if kind == "add":
            for n in range(self.drawn.randrange(1, 30)):
                self.add(f"job-{number}-{n}", number)
        elif kind == "delete":
            for entry in self.drawn.sample(self.entries, min(3, len(self.entries))):
                self.delete(entry)
        elif kind == "trim":
            for entry in sorted(self.entries, key=lambda one: (one.failed, one.member))[:10]:
                self.delete(entry)

    def add(self, job: str, number: int) -> None:
        drawn = self.drawn
        # Several fail at the same time, and some before those that count.
        failed = drawn.choice([50, 100 + number // 2])
        created = drawn.randrange(1000)
        entry = Entry(drawn.choice(GROUPS), created, drawn.choice(OWNERS), job, failed)
        self.entries.append(entry)
        self.client.zadd(KEY, {entry.member: entry.failed})

    def delete(self, entry: Entry) -> None:
        self.entries.remove(entry)
        self.client.zrem(KEY, entry.member)

    def check(self, index: FailureIndex) -> None:
        owner = self.drawn.choice([None, *OWNERS])
        since = self.drawn.choice([0, 0, 110, 10_000])
        wanted = [
            entry
            for entry in self.entries
            if entry.failed >= max(KEPT_FROM, since) and owner in (None, entry.owner)
        ]
        tallies = index.tallies(owner=owner, since_us=since)
        counts = Counter(entry.group for entry in wanted)
        assert {group: tally.count for group, tally in tallies.items()} == counts
        failed = {entry.job: entry.failed for entry in wanted}
        for group, tally in tallies.items():
            of_group = [entry for entry in wanted if entry.group == group]
            times = sorted((entry.failed for entry in of_group), reverse=True)
            assert (tally.first_us, tally.last_us) == (times[-1], times[0])
            assert [failed[job] for job in tally.newest] == times[: failures.NEWEST_MAX]
            if not since:
                listed = index.failures_of(group, owner=owner)
                assert {one.entry for one in listed} == {entry.member for entry in of_group}
        places = sorted(((entry.created, entry.job) for entry in wanted), reverse=True)
        assert index.newest(10, owner=owner, since_us=since) == places[:10]
        before = places[1] if len(places) > 1 else (0, "")
        after = index.newest(3, owner=owner, since_us=since, before=before)
        assert after == places[2:5]


def test_it_follows_a_random_history(
    redis_db: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "PORTION", 7)

    async def run(history: History) -> None:
        client = connect_async(redis_db.url)
        jobs, index = JobQueue(client), FailureIndex("m")
        try:
            for number in range(150):
                history.step(number)
                await index.follow(jobs, KEPT_FROM)
                history.check(index)
        finally:
            await jobs.close()
            await client.aclose()

    with redis_db.client() as client:
        asyncio.run(run(History(client, 20261129)))
