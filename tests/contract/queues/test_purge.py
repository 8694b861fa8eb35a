"""queues/purge.lua: all jobs that wait end as cancelled, and nothing else changes."""

from __future__ import annotations

import json

import pytest

from headrace.redis import keys
from tests.harness.clients.script_calls import Queue, foreign

pytestmark = pytest.mark.leaves_keys


def test_what_waits_is_cancelled_and_what_runs_goes_on(queue: Queue) -> None:
    running = queue.submit_one()
    leased = queue.claim_one()
    waiting = [queue.submit_one(step=step, ttl_s=55) for step in (0, 3, 6, 9)]
    delayed = queue.submit_one(delay_us=60_000_000)
    assert queue.purge() == (5, 5, 0)
    for job_id in (*waiting, delayed):
        assert queue.record(job_id)["s"] == "c"
        assert json.loads(queue.meta(job_id) or b"")["status"] == "REVOKED"
    assert 0 < queue.client.ttl(keys.job(waiting[0])) <= 55
    depth = queue.depth()
    assert (depth.waiting, depth.delayed, depth.leased) == (0, 0, 1)
    assert queue.settle(leased) == [1]
    assert queue.record(running)["s"] == "s"
    assert queue.place(queue.submit_one()) == 1, "tickets go on from there"


def test_it_is_bounded_and_says_what_is_left(queue: Queue) -> None:
    ids = [queue.submit_one() for _ in range(5)]
    assert queue.purge(2) == (2, 2, 3)
    assert [queue.record(job_id)["s"] for job_id in ids] == ["c", "c", "q", "q", "q"]
    assert queue.purge(10) == (3, 3, 0)
    assert queue.purge(10) == (0, 0, 0)


def test_tombstones_stock_messages_and_rubbish(queue: Queue) -> None:
    gone = queue.submit_one()
    queue.entomb(gone)
    cleared = queue.submit_one()
    queue.cancel(cleared)
    queue.push(foreign(headers={"id": "stock"}), b"rubbish", b"[]", b'{"headers": {"id": "a\\"b"}}')
    assert queue.purge() == (1, 6, 0)
    assert json.loads(queue.meta("stock") or b"")["status"] == "REVOKED"
    assert queue.client.hlen(keys.tomb(queue.name)) == 0
    assert queue.depth().waiting == 0


def test_a_message_under_the_id_of_another_models_job_is_removed_and_that_job_waits_on(
    queue: Queue,
) -> None:
    other = Queue(queue.client, "another")
    job_id = other.submit_one()
    queue.push(foreign(headers={"id": job_id}))
    assert queue.purge() == (0, 1, 0)
    assert (other.record(job_id)["s"], queue.meta(job_id)) == ("q", None)
    assert other.claim().ids == [job_id]


def test_a_paused_queue_gives_nothing(queue: Queue) -> None:
    job_id = queue.submit_one()
    queue.client.sadd(keys.PAUSED, queue.name)
    assert (queue.claim().jobs, queue.claim().left, queue.sweep()[3]) == ([], -1, -1)
    queue.client.srem(keys.PAUSED, queue.name)
    assert queue.sweep()[3] == 1
    assert queue.claim().ids == [job_id]


def test_half_a_surrogate_pair_hides_no_id(queue: Queue) -> None:
    raw = foreign(headers={"id": "half", "argsrepr": "\ud83d \\ud83d"})
    queue.client.lpush(queue.name, raw)
    assert queue.purge() == (1, 1, 0)
    assert json.loads(queue.meta("half") or b"")["status"] == "REVOKED"
    queue.client.lpush(queue.name, foreign(headers={"id": "other", "argsrepr": "\ud83d"}))
    assert queue.claim().ids == ["other"]
