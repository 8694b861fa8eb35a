"""jobs/cancel.lua in each state, and the tombstones that it leaves."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from kombu import Connection
from redis.exceptions import ResponseError

from headrace.redis import keys
from headrace.redis.scripts import jobs as job_scripts
from tests.harness.clients.script_calls import TTL_S, Job, Leased, Queue, foreign
from tests.harness.wait import wait_until


def _cancelled(queue: Queue, job_id: str) -> bool:
    meta = json.loads(queue.meta(job_id) or b"{}")
    return queue.record(job_id)["s"] == "c" and meta["status"] == "REVOKED"


def test_an_unknown_id_is_unknown(queue: Queue) -> None:
    assert queue.cancel("nobody", "") == ["unknown", "unknown"]
    assert queue.client.dbsize() == 0


def test_a_repeat_of_the_same_cancel_replies_as_the_first_one_did(queue: Queue) -> None:
    queued, running, done = (queue.submit_one() for _ in range(3))
    held = {job.id: job for job in queue.claim().jobs}
    queue.release(held[queued])
    queue.settle(held[done])
    ids = (queued, running, done)

    def cancel(name: str) -> list[str]:
        return job_scripts.read_words(queue.send(job_scripts.cancel(ids, name=name)))

    assert cancel("one") == ["removed", "asked", "ended"]
    assert cancel("one") == ["removed", "asked", "ended"]
    queue.settle(held[running])
    assert cancel("one") == ["removed", "asked", "ended"]
    assert cancel("another") == ["ended", "ended", "ended"]
    assert queue.claim().jobs == []


def test_a_queued_job_is_removed_and_does_not_run(queue: Queue) -> None:
    gone, kept = queue.submit_one(ttl_s=70), queue.submit_one()
    assert queue.cancel(gone) == ["removed"]
    assert _cancelled(queue, gone)
    assert queue.kept_s(gone) == pytest.approx(70, abs=30)
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
    assert queue.renew(leased) == [2], "it still runs, and its worker is told"
    assert queue.settle(leased, state=outcome) == [3]
    assert _cancelled(queue, job_id)
    assert queue.settle(leased) == [2]
    assert queue.held() == {}


@pytest.mark.parametrize(("outcome", "ran"), [("s", True), ("f", True), ("c", False), ("x", False)])
def test_a_cancelled_job_that_was_held_and_not_run_counts_no_attempt(
    queue: Queue, outcome: str, ran: bool
) -> None:
    job_id = queue.submit_one()
    leased = queue.claim_one()
    queue.cancel(job_id)
    assert queue.settle(leased, state=outcome) == [3]
    record = queue.record(job_id)
    assert (record["a"], "st" in record) == (("1", True) if ran else ("0", False))


@pytest.mark.parametrize("mode", ["free", "crash"])
def test_a_cancelled_job_that_is_given_back_ends(queue: Queue, mode: str) -> None:
    job_id = queue.submit_one()
    leased = queue.claim_one()
    queue.cancel(job_id)
    assert queue.release(leased, mode=mode) == ["cancelled"]
    assert _cancelled(queue, job_id)
    assert "st" not in queue.record(job_id)
    assert (queue.listed(), queue.held()) == ([], {})


def test_who_holds_a_job_is_told_of_its_cancel(queue: Queue) -> None:
    other = Queue(queue.client, "other")
    for one in (queue, queue, other):
        one.submit_one()
    first, second = queue.claim().jobs
    third = other.claim_one(owner="w2")
    waiting = queue.submit_one()
    client: Any = queue.client
    with client.pubsub() as channels:
        channels.subscribe(keys.cancel_channel("w1"), keys.cancel_channel("w2"))
        for _ in range(2):
            assert channels.get_message(timeout=30)
        ids = (first.id, waiting, "nobody", third.id, second.id)
        assert queue.cancel(*ids) == ["asked", "removed", "unknown", "asked", "asked"]
        told = {}
        for _ in range(2):
            message = channels.get_message(timeout=30)
            assert message is not None, "one publication for each worker"
            told[message["channel"].decode()] = msgspec.msgpack.decode(message["data"])
        assert told == {
            "hr:cancel:w1": ["m", *_named(first), "m", *_named(second)],
            "hr:cancel:w2": ["other", *_named(third)],
        }
        queue.settle(first, second)
        other.settle(third)
        assert queue.cancel(first.id) == ["ended"]
        assert channels.get_message(timeout=0) is None, "who holds nothing is told nothing"
    assert queue.claim().jobs == []


def _named(leased: Leased) -> list[str]:
    return [leased.id, leased.token]


def test_a_revoked_message_without_a_record_does_not_run_though_nobody_remembers_it(
    queue: Queue,
) -> None:
    listed, later, kept = (foreign(headers={"id": name}) for name in ("listed", "later", "kept"))
    queue.push(listed)
    assert queue.cancel("listed", "later", remember_s=60) == ["unknown", "unknown"]
    queue.push(later, kept)
    claimed = queue.claim()
    assert (claimed.ids, claimed.refused) == (["kept"], 0)
    for job_id in ("listed", "later"):
        assert _cancelled(queue, job_id)
        record = queue.record(job_id)
        assert (record["m"], record["p"]) == ("m", "0")
        assert 0 < queue.client.ttl(keys.job(job_id)) <= TTL_S
    queue.push(listed)
    assert queue.claim().jobs == [], "a repeat is dropped"
    assert 0 < queue.client.ttl(keys.REVOKED) <= 60
    queue.settle(*claimed.jobs)


def test_a_cancel_by_the_api_is_not_remembered_and_a_revoke_not_for_ever(queue: Queue) -> None:
    assert queue.cancel("soon") == ["unknown"]
    assert queue.client.exists(keys.REVOKED) == 0
    queue.cancel("old", remember_s=60)
    queue.client.zadd(keys.REVOKED, {"old": 1})
    queue.push(*(foreign(headers={"id": name}) for name in ("soon", "old")))
    claimed = queue.claim()
    assert claimed.ids == ["soon", "old"]
    queue.cancel("next", remember_s=60)
    assert queue.client.zrange(keys.REVOKED, 0, -1) == [b"next"]
    queue.settle(*claimed.jobs)


def test_a_submitted_job_is_not_what_was_revoked_under_its_id_before(queue: Queue) -> None:
    queue.cancel("named", remember_s=60)
    queue.submit_one(id="named")
    assert queue.settle(queue.claim_one()) == [1]


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
    queue.client.delete(*queue.client.keys(keys.job + "*"))


def test_a_key_of_the_wrong_type_errs_before_anything_is_written(queue: Queue) -> None:
    other = Queue(queue.client, "other")
    ids = [queue.submit_one(), other.submit_one(delay_us=1)]
    for wrong in (keys.tomb(other.name), keys.count(queue.name), keys.REVOKED):
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
