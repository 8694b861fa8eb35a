"""cancel.lua in each state, and the tombstones that it leaves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kombu import Connection
from redis.exceptions import ResponseError

from headrace import keys
from tests.harness.calls import Job, Queue
from tests.harness.wait import wait_until


def _cancelled(queue: Queue, job_id: str) -> bool:
    meta = json.loads(queue.meta(job_id) or b"{}")
    return queue.record(job_id)["s"] == "c" and meta["status"] == "REVOKED"


def test_an_unknown_id_is_unknown(queue: Queue) -> None:
    assert queue.cancel("nobody", "") == ["unknown", "unknown"]
    assert queue.client.dbsize() == 0


def test_a_queued_job_is_removed_and_does_not_run(queue: Queue) -> None:
    gone, kept = queue.submit_one(ttl_s=70), queue.submit_one()
    assert queue.cancel(gone) == ["removed"]
    assert _cancelled(queue, gone)
    assert queue.client.ttl(keys.job(gone)) == queue.client.ttl(keys.meta(gone)) == 70
    assert queue.depth().waiting == 1
    claimed = queue.claim()
    assert (claimed.ids, claimed.refused) == ([kept], 0)
    assert queue.depth().waiting == 0
    assert queue.client.exists(keys.tomb(queue.name)) == 0
    queue.settle(*claimed.jobs)


def test_the_message_of_a_cancelled_job_is_cleared_in_its_place(queue: Queue) -> None:
    ids = [queue.submit_one() for _ in range(5)]
    before = queue.listed()
    assert queue.cancel(ids[1], ids[3]) == ["removed", "removed"]
    after = queue.listed()
    assert [raw == old for raw, old in zip(after, before, strict=True)] == [
        True, False, True, False, True,
    ]  # fmt: skip
    assert queue.client.exists(keys.tomb(queue.name)) == 0
    assert (queue.depth().waiting, queue.place(ids[4])) == (3, 5)
    assert queue.claim().ids == [ids[0], ids[2], ids[4]]
    assert queue.depth().waiting == 0
    assert queue.client.hget(keys.count(queue.name), "tomb0") == b"0"
    queue.settle_all()


def test_what_is_cleared_out_is_a_message_of_nobody_to_kombu(queue: Queue) -> None:
    queue.cancel(queue.submit_one())
    (gone,) = queue.listed()
    with Connection("memory://") as connection:
        channel: Any = connection.channel()
        message = channel.Message(json.loads(gone), channel=channel)
        assert message.headers == {}
        assert message.delivery_tag == "gone"
    assert queue.claim().refused == 0


@pytest.mark.parametrize("moved", ["put back", "record without a place"])
def test_where_the_ticket_misses_a_tombstone_is_left(queue: Queue, moved: str) -> None:
    first, second = queue.submit_one(), queue.submit_one()
    if moved == "put back":
        newest: Any = queue.client.lpop(queue.name)
        queue.client.rpush(queue.name, newest)
    else:
        queue.client.hdel(keys.job(second), "n")
    assert queue.cancel(second) == ["removed"]
    assert queue.client.hgetall(keys.tomb(queue.name)) == {second.encode(): b"0"}
    assert queue.depth().waiting == 1
    assert queue.claim().ids == [first]
    assert queue.depth().waiting == 0
    queue.settle_all()


def test_a_queue_of_cancelled_jobs_does_not_grow(queue: Queue) -> None:
    kept = queue.submit_one()
    for _ in range(11):
        jobs = [Job() for _ in range(1000)]
        queue.submit(*jobs)
        queue.cancel(*(job.id for job in jobs))
    assert queue.client.llen(queue.name) < 2_000
    last = queue.submit_one()
    assert queue.depth().waiting == 2
    taken = [*queue.claim().ids]
    while len(taken) < 2 and queue.depth().waiting:
        taken += queue.claim().ids  # each passes over a bounded number of them
    assert taken == [kept, last]
    assert queue.depth().waiting == 0
    queue.settle_all()


def test_a_cancelled_job_does_not_run_though_its_record_has_expired(queue: Queue) -> None:
    job_id = queue.submit_one(ttl_s=1)
    queue.cancel(job_id)
    wait_until(lambda: not queue.client.exists(keys.job(job_id)), "the record expired")
    assert queue.depth().waiting == 0
    claimed = queue.claim()
    assert (claimed.jobs, claimed.left, claimed.refused) == ([], 0, 0)
    assert queue.depth().waiting == 0


def test_a_delayed_job_is_removed_message_and_all(queue: Queue) -> None:
    job_id = queue.submit_one(delay_us=1)
    assert queue.cancel(job_id) == ["removed"]
    assert _cancelled(queue, job_id)
    assert (queue.parked(), queue.depth().delayed) == ({}, 0)
    assert queue.sweep()[0] == 0
    assert queue.claim().jobs == []


def test_a_job_that_waits_for_a_retry_is_removed(queue: Queue) -> None:
    job_id = queue.submit_one()
    queue.settle(queue.claim_one(), state="f", extra=("e", "{}"), retry_us="1")
    assert queue.cancel(job_id) == ["removed"]
    assert _cancelled(queue, job_id)
    assert queue.sweep()[0] == 0


@pytest.mark.parametrize("outcome", ["s", "f", "x"])
def test_a_running_job_is_asked_and_its_result_discarded(queue: Queue, outcome: str) -> None:
    job_id = queue.submit_one()
    leased = queue.claim_one()
    assert queue.cancel(job_id, job_id) == ["asked", "asked"]
    assert queue.record(job_id)["s"] == "r"
    assert queue.renew(leased) == [1], "it still runs"
    assert queue.settle(leased, state=outcome) == [3]
    assert _cancelled(queue, job_id)
    assert queue.settle(leased) == [2]
    assert queue.held() == {}


def test_a_running_job_that_would_be_retried_ends_cancelled(queue: Queue) -> None:
    job_id = queue.submit_one()
    leased = queue.claim_one()
    queue.cancel(job_id)
    assert queue.settle(leased, state="f", extra=("e", "{}"), retry_us="1") == [3]
    assert _cancelled(queue, job_id)
    assert queue.parked() == {}


def test_a_running_job_whose_worker_dies_ends_cancelled(queue: Queue) -> None:
    job_id = queue.submit_one()
    queue.claim_one(lease_us=0)
    queue.cancel(job_id)
    assert queue.sweep()[1] == 1
    assert _cancelled(queue, job_id)
    assert queue.claim().jobs == []


@pytest.mark.parametrize("outcome", ["s", "f", "x", "c"])
def test_a_job_that_ended_is_left_as_it_is(queue: Queue, outcome: str) -> None:
    job_id = queue.submit_one()
    queue.settle(queue.claim_one(), state=outcome)
    before = queue.record(job_id), queue.meta(job_id)
    assert queue.cancel(job_id) == ["ended"]
    assert (queue.record(job_id), queue.meta(job_id)) == before


def test_said_twice_it_counts_one_tombstone(queue: Queue) -> None:
    gone, kept = queue.submit_one(step=3), queue.submit_one(step=3)
    assert queue.cancel(gone, gone) == ["removed", "ended"]
    assert queue.cancel(gone) == ["ended"]
    assert queue.depth().step3 == 1
    assert queue.claim().ids == [kept]
    assert queue.depth().step3 == 0
    queue.settle_all()


def test_a_job_that_came_back_from_a_worker_can_be_cancelled(queue: Queue) -> None:
    job_id = queue.submit_one()
    queue.release(queue.claim_one(), mode="alone")
    assert queue.cancel(job_id) == ["removed"]
    assert queue.claim().jobs == []
    assert queue.depth().waiting == 0


def test_a_repeated_message_of_a_cancelled_job_is_dropped_too(queue: Queue) -> None:
    job_id = queue.submit_one()
    queue.push(*queue.listed())
    queue.cancel(job_id)
    claimed = queue.claim()
    assert (claimed.jobs, claimed.left, claimed.refused) == ([], 0, 0)
    assert queue.depth().waiting == 0


def test_a_purged_list_takes_its_tombstones_along(queue: Queue) -> None:
    queue.cancel(queue.submit_one(), queue.submit_one(step=9))
    queue.client.delete(*keys.step_keys(queue.name))
    queue.submit_one(step=9)
    queue.sweep()
    assert queue.depth().step0 == 0
    queue.client.delete(*keys.step_keys(queue.name))
    queue.sweep()
    job_id = queue.submit_one()
    assert queue.depth().waiting == 1, "no tombstone hides what waits"
    assert queue.claim().ids == [job_id]
    queue.settle_all()
    queue.client.delete(*queue.client.keys(keys.JOB_PREFIX + "*"))


def test_a_key_of_the_wrong_type_errs_before_anything_is_written(queue: Queue) -> None:
    other = Queue(queue.client, "other")
    ids = [queue.submit_one(), other.submit_one(delay_us=1)]
    for wrong in (keys.tomb(other.name), keys.count(queue.name)):
        kept = queue.client.dump(wrong)
        queue.client.set(wrong, "another application's")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            queue.cancel(*ids)
        assert [queue.record(job_id)["s"] for job_id in ids] == ["q", "d"]
        queue.client.delete(wrong)
        if kept is not None:
            queue.client.restore(wrong, 0, kept)
    assert queue.cancel(*ids) == ["removed", "removed"]
    assert queue.claim().jobs == []
