"""jobs/expire.lua: a job that has not begun by its expiry ends, whoever serves its queue."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.redis import keys
from tests.harness.clients.script_calls import Queue

AT_ONCE_US = 1
LATER_US = 10**12
EXPIRING = "hr:expiring"


def counted(queue: Queue) -> bytes | None:
    client: Any = queue.client
    found: bytes | None = client.hget(keys.stats(queue.model), "ended:expired")
    return found


def ended_well(queue: Queue, job_id: str) -> bool:
    record, meta = queue.record(job_id), json.loads(queue.meta(job_id) or b"{}")
    return (
        record["s"] == "x"
        and json.loads(record["e"])["type"] == "expired"
        and meta["status"] == "FAILURE"
        and meta["result"]["exc_type"] == "JobExpired"
        and queue.client.ttl(keys.job(job_id)) > 0
    )


@pytest.mark.parametrize("step", [0, 3, 6, 9])
@pytest.mark.parametrize("delay_us", [0, LATER_US])
def test_what_waits_ends_and_its_neighbours_wait_on(queue: Queue, step: int, delay_us: int) -> None:
    first = queue.submit_one(step=step)
    late = queue.submit_one(step=step, begin_us=AT_ONCE_US, delay_us=delay_us)
    early = queue.submit_one(step=step, begin_us=LATER_US, delay_us=delay_us)
    assert queue.client.ttl(EXPIRING) > 60 * 86_400
    assert queue.expire() == 1
    assert ended_well(queue, late)
    assert queue.expire() == 0
    assert counted(queue) == b"1"
    depth = queue.depth()
    assert (depth.waiting, depth.delayed) == ((1, 1) if delay_us else (2, 0))
    assert queue.claim().ids == [first] + ([] if delay_us else [early])
    assert queue.client.zrange(EXPIRING, 0, -1) == [early.encode()]
    queue.settle_all()
    queue.purge()


def test_a_message_that_is_not_found_is_dropped_by_the_claim(queue: Queue) -> None:
    late = queue.submit_one(begin_us=AT_ONCE_US)
    queue.client.hset(keys.job(late), "n", 1_000_000)
    assert queue.expire() == 1
    assert ended_well(queue, late)
    assert queue.depth().waiting == 0
    assert not queue.claim().jobs
    assert queue.client.hlen(keys.tomb(queue.name)) == 0


def test_what_runs_goes_on_and_is_looked_at_again(queue: Queue) -> None:
    running = queue.submit_one(begin_us=AT_ONCE_US)
    leased = queue.claim_one()
    assert queue.expire() == 1
    assert queue.record(running)["s"] == "r"
    assert queue.expire() == 0, "not before a while"
    assert queue.client.ttl(EXPIRING) > 60 * 86_400
    queue.release(leased)
    queue.client.zadd(EXPIRING, {running: 1})
    assert queue.expire() == 1
    assert ended_well(queue, running)
    assert not queue.claim().jobs


def test_what_has_ended_or_is_gone_is_forgotten(queue: Queue) -> None:
    done, cancelled, gone = (queue.submit_one(begin_us=AT_ONCE_US) for _ in range(3))
    queue.settle(queue.claim_one())
    queue.cancel(cancelled)
    queue.settle(queue.claim_one())
    queue.client.delete(keys.job(gone))
    assert queue.expire() == 3
    assert (queue.record(done)["s"], queue.record(cancelled)["s"]) == ("s", "c")
    assert not queue.client.exists(EXPIRING)
    assert counted(queue) is None


def test_it_is_bounded_and_who_waits_for_an_end_hears_of_it(queue: Queue) -> None:
    client: Any = queue.client
    with client.pubsub() as heard:
        heard.subscribe(keys.done_channel("api"))
        assert heard.get_message(timeout=60)
        ids = [queue.submit_one(begin_us=AT_ONCE_US, waiter="api") for _ in range(5)]
        assert [queue.expire(2) for _ in range(4)] == [2, 2, 1, 0]
        assert not queue.claim().jobs
        assert all(ended_well(queue, job_id) for job_id in ids)
        told = [heard.get_message(timeout=60) for _ in ids]
    assert all(
        job_id.encode() in message["data"] for job_id, message in zip(ids, told, strict=True)
    )


@pytest.mark.leaves_keys
def test_keys_of_another_type_hinder_no_neighbour(queue: Queue) -> None:
    other = Queue(queue.client, "other")
    odd = queue.submit_one(begin_us=AT_ONCE_US)
    fine = other.submit_one(begin_us=AT_ONCE_US)
    queue.client.set(keys.tomb(queue.name), "theirs")
    assert queue.expire() == 2
    assert ended_well(other, fine)
    assert queue.record(odd)["s"] == "q"
    queue.client.delete(keys.tomb(queue.name))
    queue.client.delete(EXPIRING)
    queue.client.set(EXPIRING, "theirs")
    assert queue.expire() == 0
    assert queue.submit_one(begin_us=AT_ONCE_US)


def test_a_job_that_was_lost_alone_does_not_wait_past_its_time(queue: Queue) -> None:
    years = f"3 {LATER_US * 1000} {LATER_US * 1000}"
    ids = [queue.submit_one(begin_us=60_000_000), queue.submit_one(begin_us=LATER_US * 2000)]
    queue.release(*queue.claim().jobs, mode="alone")
    # Of so many years by chance none falls within the first minute.
    assert queue.release(*queue.claim().jobs, mode="crash", losses=years) == ["dead", "delayed"]
    assert json.loads(queue.record(ids[0])["e"])["type"] == "replica-lost"
    assert queue.record(ids[0])["s"] == "f"
    queue.purge()
