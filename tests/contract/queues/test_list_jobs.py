"""queues/list_jobs.lua: which jobs the index of a model has, in which order, and for how long."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.redis import keys
from tests.harness.clients.script_calls import Job, Queue, foreign
from tests.harness.processes.locales import backwards
from tests.harness.servers.redis_servers import FLAVOURS, RedisServer, redis_server

pytestmark = pytest.mark.leaves_keys

Place = tuple[str, str]
NEWEST: Place = ("", "")


@pytest.fixture
def queue(any_redis: RedisServer) -> Iterator[Queue]:
    with any_redis.client() as client:
        found = Queue(client)
        found.index_max = 1000
        yield found


def walk(
    queue: Queue,
    before: Place = NEWEST,
    *,
    since: int = 0,
    states: str = "",
    most: int = 1000,
    look: int = 1000,
) -> tuple[list[str], Place, bool]:
    """The ids that a stretch has found, where it has ended, and whether more may follow."""
    more, *flat = queue.call(
        "queues/list_jobs", [], queue.model, *before, since, states, most, look
    )
    texts = [text.decode() for text in flat]
    return texts[3::2], (texts[0], texts[1]), bool(more)


def indexed(queue: Queue) -> dict[str, int]:
    found: Any = queue.client.zrange(keys.job_index(queue.model), 0, -1, withscores=True)
    return {raw.decode(): int(score) for raw, score in found}


def newest_first(queue: Queue) -> list[str]:
    """By what the records say."""
    created = {i: int(queue.record(i)["c"]) for i in indexed(queue)}
    return sorted(created, key=lambda i: (created[i], i), reverse=True)


def test_what_is_submitted_is_listed_with_its_time(queue: Queue) -> None:
    jobs = [Job(), Job(step=9), Job(delay_us=10**9)]
    queue.submit(*jobs[:2])
    queue.submit(jobs[2])
    assert indexed(queue) == {job.id: int(queue.record(job.id)["c"]) for job in jobs}
    assert walk(queue)[0] == newest_first(queue)
    assert walk(queue)[2] is False
    assert 61 * 86400 < queue.client.ttl(keys.job_index("m")) <= 62 * 86400


def test_refusals_and_repeats_add_nothing(queue: Queue) -> None:
    job = Job(request_hash="1", max_depth=1)
    queue.submit(job)
    before = indexed(queue)
    queue.submit(job, Job(id=job.id, request_hash="2"), Job(max_depth=1))
    assert indexed(queue) == before


def test_nothing_is_indexed_where_lists_are_off(queue: Queue) -> None:
    queue.index_max = 0
    queue.submit(Job())
    queue.push(foreign(), foreign(**{"content-type": "x"}))
    assert len(queue.claim().jobs) == 2
    assert not queue.client.exists(keys.job_index("m"))


def test_only_the_newest_are_kept(queue: Queue) -> None:
    queue.index_max = 5
    first = [queue.submit_one() for _ in range(4)]
    last = [queue.submit_one() for _ in range(3)]
    assert set(indexed(queue)) == {*first[2:], *last}
    queue.submit(*(Job() for _ in range(20)))
    assert len(indexed(queue)) == 5


def test_a_stock_clients_job_is_listed_once_it_is_claimed(queue: Queue) -> None:
    known = queue.submit_one()
    plain, refused = foreign(), foreign(**{"content-type": "application/x-pickle"})
    queue.push(plain, refused, b"no json")
    assert set(indexed(queue)) == {known}
    claimed = queue.claim()
    assert (len(claimed.jobs), claimed.refused) == (2, 2)
    found, _, _ = walk(queue)
    assert len(found) == 3
    assert {queue.record(i)["s"] for i in found} == {"r", "f"}
    queue.settle(*claimed.jobs)


def test_pages_follow_each_other_also_among_jobs_of_one_moment(queue: Queue) -> None:
    for count in (1, 250, 3, 120):
        queue.submit(*(Job() for _ in range(count)))
    expected = newest_first(queue)
    assert len({*indexed(queue).values()}) == 4
    for size in (1, 7, 100, 249):
        found: list[str] = []
        at, more = NEWEST, True
        while more:
            part, at, more = walk(queue, at, most=size)
            assert len(part) <= size
            found += part
        assert found == expected
    found, at, more = walk(queue, most=60)
    late = [queue.submit_one() for _ in range(5)]
    rest, _, _ = walk(queue, at)
    assert found + rest == expected, "what comes meanwhile shifts nothing"
    assert walk(queue)[0][:5] == late[::-1]


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_locale_of_the_server_loses_no_job(flavour: str, tmp_path: Path) -> None:
    """Lua's own comparison follows it; the order of members in Redis does not."""
    with redis_server(flavour, environ=backwards(tmp_path)) as server, server.client() as client:
        script: Any = client.eval("return tostring('a' < 'b')", 0)
        assert script == b"false", "the server has taken the locale"
        queue = Queue(client)
        queue.index_max = 1000
        queue.submit(*(Job(id=f"{letter}-{n}") for letter in "abcXYZ_" for n in range(9)))
        found: list[str] = []
        at, more = NEWEST, True
        while more:
            part, at, more = walk(queue, at, most=5)
            found += part
        assert found == newest_first(queue)


def test_a_stretch_is_bounded_by_what_it_looks_at(queue: Queue) -> None:
    queue.submit(*(Job() for _ in range(30)))
    expected = newest_first(queue)
    queue.cancel(expected[25])
    found, at, more = walk(queue, states="c", look=10)
    assert (found, at[1], more) == ([], expected[9], True)
    found, at, more = walk(queue, at, states="c", look=10)
    assert (found, at[1], more) == ([], expected[19], True)
    found, at, more = walk(queue, at, states="c", look=10)
    assert (found, more) == ([expected[25]], False)
    assert walk(queue, at)[0] == []


def test_states_and_time_select(queue: Queue) -> None:
    old = queue.submit_one()
    new, delayed = queue.submit_one(), queue.submit_one(delay_us=10**9)
    queue.start(*queue.claim(1).jobs)
    assert walk(queue, states="q")[0] == [new]
    assert walk(queue, states="rd")[0] == [delayed, old]
    since = int(queue.record(new)["c"])
    assert walk(queue, since=since)[0] == [delayed, new]
    assert walk(queue, since=since)[2] is False
    assert walk(queue, since=since + 10**12) == ([], NEWEST, False)


def test_what_has_run_out_is_dropped_when_it_is_met(queue: Queue) -> None:
    gone, kept, moved = (queue.submit_one() for _ in range(3))
    queue.client.delete(keys.job(gone))
    queue.client.hset(keys.job(moved), "m", "another")
    assert walk(queue)[0] == [kept]
    assert set(indexed(queue)) == {kept}
    # A place is one also when its job is gone.
    assert walk(queue, ("9" * 16, "z"))[0] == [kept]


def test_a_key_of_another_type_hinders_no_job(queue: Queue) -> None:
    queue.client.set(keys.job_index("m"), "another application's", ex=60)
    job_id = queue.submit_one()
    queue.push(foreign())
    claimed = queue.claim()
    assert job_id in claimed.ids
    assert len(claimed.jobs) == 2
    assert queue.client.get(keys.job_index("m")) == b"another application's"
