"""Another application's keys in the place of ours, beside those of the queue itself.

No script fails after its first write: it errs before that, or does without.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from redis.exceptions import ResponseError

from headrace.redis import keys
from tests.harness.clients.script_calls import Job, Queue, foreign


@contextmanager
def in_its_place(client: redis.Redis, name: str) -> Iterator[None]:
    """What stands under a key is another application's, for a while."""
    kept: Any = client.dump(name)
    ttl_ms = max(0, client.pttl(name))
    client.set(name, "another application's")
    yield
    assert client.get(name) == b"another application's"
    client.delete(name)
    if kept is not None:
        client.restore(name, ttl_ms, kept)


@contextmanager
def refused_whole(client: redis.Redis, name: str) -> Iterator[None]:
    """The call errs for this key, and has written nothing."""
    with in_its_place(client, name):
        before = {key: client.dump(key) for key in client.keys("*")}
        with pytest.raises(ResponseError):
            yield
        assert {key: client.dump(key) for key in client.keys("*")} == before


def test_a_sweep_promotes_nothing_where_it_cannot_know_what_is_paused(queue: Queue) -> None:
    job_id = queue.submit_one(delay_us=1)
    with refused_whole(queue.client, keys.PAUSED):
        queue.sweep()
    assert queue.sweep()[0] == 1
    assert queue.claim().ids == [job_id]
    queue.settle_all()


def test_a_claim_notes_nobody_as_passed_over_where_it_can_take_nobody(queue: Queue) -> None:
    queue.submit(Job(), Job())
    queue.push(foreign(), step=6)
    with refused_whole(queue.client, keys.TOKEN):
        queue.claim(1, yield_us=1)
    assert len(queue.claim().jobs) == 3
    queue.settle_all()


def test_background_tasks_of_one_worker_wait_while_anothers_cannot_be_read(queue: Queue) -> None:
    client, owners = queue.client, ["one", "two", "three"]
    for owner in owners:
        client.sadd(keys.BACKGROUND_WORKERS, owner)
        client.lpush(keys.background_taken(owner), f"task of {owner}")
        client.hset(keys.background_held(owner), "1", f"held by {owner}")
    for owner in owners:
        for name in (keys.background_taken(owner), keys.background_held(owner)):
            with refused_whole(client, name):
                queue.call("background/requeue_dead", [], "", "")
    assert queue.call("background/requeue_dead", [], "", "") == 2 * len(owners)
    said = {f"{word} {owner}".encode() for owner in owners for word in ("task of", "held by")}
    assert set(client.lrange(keys.BACKGROUND_TASKS, 0, -1)) == said
    client.delete(keys.BACKGROUND_TASKS)


def test_a_dead_letter_goes_back_once_though_its_record_is_anothers(queue: Queue) -> None:
    (odd, good) = (queue.submit_one(input_ref=f"file:{n}") for n in "ab")
    failed = queue.claim().jobs
    queue.settle(*failed, state="f", extra=("e", "{}"), retry_us="dead")
    raw = b'{"headers":{"headrace":{"ref":"redis:0a"}}}'
    queue.client.hset(keys.dead_letter(queue.name, odd), "raw", raw)
    queue.client.delete(keys.job(odd))
    with in_its_place(queue.client, keys.job(odd)):
        assert queue.requeue(odd, good) == ["queued", "queued"]
    assert queue.dead_letters() == {}
    assert [raw in listed for listed in queue.listed()].count(True) == 1
    queue.client.delete(*queue.keys, *queue.client.keys(keys.job + "*"))
