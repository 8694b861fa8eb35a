"""Failures: which jobs are kept as failures, for how long, and how they are retried."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.scripts import script
from tests.harness.clients.script_calls import Job, Leased, Queue, foreign

pytestmark = pytest.mark.leaves_keys

META = json.dumps({"status": "FAILURE", "result": None, "traceback": "Traceback: x"})
WEEK_S, DAY_S = 604800, 86400


@pytest.fixture
def failing(queue: Queue) -> Queue:
    queue.kept = f"{WEEK_S} 100"
    return queue


def error(exception: str = "KeyError", where: str = "words.py:7", text: str = "'a'") -> str:
    return json.dumps(
        {"type": "handler-error", "message": text, "retryable": False, "exception": exception,
         "where": where}
    )  # fmt: skip


def fail(queue: Queue, leased: Leased, text: str = "", **options: Any) -> None:
    assert queue.settle(leased, state="f", meta=META, extra=("e", text or error()), **options) == [
        1
    ]


def failed(queue: Queue, text: str = "", **options: Any) -> str:
    """A job that has failed; its id."""
    job_id = queue.submit_one(**options)
    fail(queue, queue.claim_one(), text)
    return job_id


def entry(queue: Queue, job_id: str) -> str:
    (found,) = [one for one in queue.failures() if one.endswith(f" {job_id}")]
    return found


def message(queue: Queue, job_id: str) -> Any:
    return queue.client.get(keys.failed(job_id))


def ttl_s(queue: Queue, key: str) -> int:
    stored: Any = queue.client.ttl(key)
    return int(stored)


def test_a_failure_outlives_results_with_its_message(failing: Queue) -> None:
    job_id = failing.submit_one(ttl_s=DAY_S, key="aa")
    (raw,) = failing.listed()
    fail(failing, failing.claim_one())
    group, created, key, id_ = entry(failing, job_id).split(" ")
    record = failing.record(job_id)
    assert (created, key, id_) == (record["c"], "aa", job_id)
    assert len(group) == 12
    assert record["fg"] == group
    assert failing.failures()[entry(failing, job_id)] == int(record["en"])
    assert message(failing, job_id) == raw
    names = [keys.job(job_id), keys.meta(job_id), keys.failed(job_id), keys.failures("m")]
    assert all(WEEK_S - 600 < ttl_s(failing, name) <= WEEK_S for name in names)
    done = failing.submit_one(ttl_s=DAY_S)
    failing.settle(failing.claim_one())
    assert failing.kept_s(done) <= DAY_S
    assert len(failing.failures()) == 1


def test_a_longer_result_ttl_wins_and_no_setting_keeps_nothing(failing: Queue) -> None:
    long = failed(failing, ttl_s=2 * WEEK_S)
    assert failing.kept_s(long) > WEEK_S
    assert ttl_s(failing, keys.failed(long)) > WEEK_S
    for kept in ("", f"{WEEK_S} 0"):
        failing.kept = kept
        plain = failed(failing, ttl_s=DAY_S)
        assert failing.kept_s(plain) <= DAY_S
        assert message(failing, plain) is None
    assert len(failing.failures()) == 1


def test_the_group_is_of_the_error_and_its_place(failing: Queue) -> None:
    texts = [
        error(), error(text="another"), error("ValueError"), error(where="words.py:8"),
        '{"type":"timeout","message":"x"}', '{"type":"timeout","message":"y"}', "no json",
    ]  # fmt: skip
    groups = [failing.record(failed(failing, text))["fg"] for text in texts]
    assert groups[0] == groups[1]
    assert groups[4] == groups[5]
    assert len(set(groups)) == 5


@pytest.mark.parametrize("fields", [["w", keys.NO_WAITER], ["so", "1"]])
def test_quiet_jobs_and_stages_jobs_are_no_failures(failing: Queue, fields: list[str]) -> None:
    failing.fields = list(fields)
    job_id = failed(failing, ttl_s=DAY_S)
    assert failing.failures() == {}
    assert failing.kept_s(job_id) <= DAY_S


def test_what_a_script_ends_is_a_failure_too(failing: Queue) -> None:
    crashed = failing.submit_one()
    losses = f"1 0 0 {failing.kept}"
    failing.release(failing.claim_one(), mode="alone", losses=losses)
    assert failing.release(failing.claim_one(), mode="crash", losses=losses) == ["dead"]
    assert failing.record(crashed)["fg"]
    failing.push(foreign(headers={"task": "other.task", "id": "theirs"}))
    assert failing.claim().refused == 1
    gone = failing.submit_one()
    leased = failing.claim_one()
    failing.client.hdel(keys.held(failing.name), gone)
    failing.settle(leased, state="d", extra=("e", error()), retry_us="1")
    assert {one.rpartition(" ")[2] for one in failing.failures()} == {crashed, "theirs", gone}
    # A dead letter has the message.
    assert [message(failing, one) for one in (crashed, "theirs", gone)] == [None] * 3


def test_the_oldest_failures_go_first_and_then_live_as_results_do(failing: Queue) -> None:
    failing.kept = f"{WEEK_S} 3"
    ids = [failed(failing, ttl_s=DAY_S) for _ in range(5)]
    assert [one.rpartition(" ")[2] for one in failing.failures()] == ids[2:]
    for job_id in ids[:2]:
        assert 0 < failing.kept_s(job_id) <= DAY_S
        assert message(failing, job_id) is None
        assert "fg" not in failing.record(job_id)
    # One whose result_ttl has passed is deleted at once.
    own = entry(failing, ids[2])
    before_us = failing.failures()[own] - 2 * DAY_S * US_PER_S
    failing.client.zadd(keys.failures("m"), {own: before_us})
    failed(failing)
    assert failing.record(ids[2]) == {}


def test_failures_of_long_ago_leave_the_list(failing: Queue) -> None:
    old = failed(failing)
    failing.client.zadd(keys.failures("m"), {entry(failing, old): 1})
    new = failed(failing)
    assert [one.rpartition(" ")[2] for one in failing.failures()] == [new]


def test_a_retried_job_is_the_job_that_it_was(failing: Queue) -> None:
    failing.fields = ["md", '{"a":1}', "pa", "1 w0"]
    job_id = failing.submit_one(step=3, ttl_s=77, key="aa")
    (raw,) = failing.listed()
    fail(failing, failing.claim_one())
    waiting = failing.submit_one(step=3)
    assert failing.retry(entry(failing, job_id)) == ["queued"]
    assert failing.failures() == {}
    assert message(failing, job_id) is None
    assert failing.meta(job_id) is None
    record = failing.record(job_id)
    assert (record["s"], record["md"], record["l"]) == ("q", '{"a":1}', "77")
    assert record.keys().isdisjoint({"e", "fg", "en", "st", "t", "a", "b", "tm", "o", "pa"})
    assert ttl_s(failing, keys.job(job_id)) == -1
    in_flight: Any = failing.client.hget(keys.IN_FLIGHT, "aa")
    assert in_flight == b"1"
    first, second = failing.claim().jobs
    assert (first.id, second.id, second.attempts, second.raw) == (waiting, job_id, 1, raw)
    failing.settle(first)
    fail(failing, second)
    assert failing.retry(entry(failing, job_id)) == ["queued"]
    assert failing.settle(failing.claim_one()) == [1]
    assert failing.record(job_id)["s"] == "s"


def test_a_repeated_retry_does_nothing(failing: Queue) -> None:
    job_id = failed(failing)
    own = entry(failing, job_id)
    assert failing.retry(own, own) == ["queued", "gone"]
    assert len(failing.listed()) == 1
    leased = failing.claim_one()
    assert failing.retry(own) == ["gone"]
    failing.settle(leased)
    assert failing.retry(own) == ["gone"]
    assert failing.listed() == []


def test_what_cannot_be_retried_says_why(failing: Queue) -> None:
    kept, lost, buried = failed(failing), failed(failing), failed(failing)
    entries = [entry(failing, one) for one in (kept, lost, buried)]
    failing.client.delete(keys.failed(lost))
    failing.client.hset(keys.tomb(failing.name), buried, "0")
    failing.client.hset(keys.job(kept), "pv", "2.0")
    assert failing.retry(*entries, f"{'0' * 12} 1 - nobody") == [
        "elsewhere", "no-message", "alive", "gone",
    ]  # fmt: skip
    assert sorted(failing.failures()) == sorted(entries)


def test_another_job_of_the_id_is_left_alone(failing: Queue) -> None:
    job_id = failed(failing)
    own = entry(failing, job_id)
    failing.client.delete(keys.job(job_id), keys.meta(job_id))
    failing.submit_one(id=job_id)
    fail(failing, failing.claim_one())
    assert failing.retry(own) == ["gone"]
    assert failing.record(job_id)["s"] == "f"
    assert failing.retry(entry(failing, job_id)) == ["queued"]


def test_a_dead_letter_is_retried_once_from_either_side(failing: Queue) -> None:
    for side in ("failures", "letters"):
        job_id = failing.submit_one()
        fail(failing, failing.claim_one(), retry_us="dead")
        own = entry(failing, job_id)
        again = failing.retry(own) if side == "failures" else failing.requeue(job_id)
        assert again == ["queued"]
        assert (failing.failures(), failing.dead_letters()) == ({}, {})
        assert failing.settle(failing.claim_one()) == [1]


def test_what_is_discarded_is_a_failed_job_without_a_message(failing: Queue) -> None:
    kept, dead, other, gone = (failing.submit_one(ttl_s=DAY_S) for _ in range(4))
    first, second, third, fourth = failing.claim(4).jobs
    fail(failing, first)
    fail(failing, second, retry_us="dead")
    for leased in (third, fourth):
        fail(failing, leased, error(where="words.py:8"))
    entries = [entry(failing, one) for one in (kept, dead, gone)]
    failing.client.delete(keys.job(gone))
    discard = ("queues/discard_failures", failing.keys, failing.name)
    assert failing.call(*discard, *entries) == [1, 1, 1]
    assert failing.call(*discard, *entries) == [0, 0, 0], "a repeat does nothing"
    assert [one.rpartition(" ")[2] for one in failing.failures()] == [other]
    assert failing.dead_letters() == {}
    assert failing.retry(*entries) == ["gone"] * 3
    for job_id in (kept, dead):
        assert failing.record(job_id)["s"] == "f"
        assert 0 < failing.kept_s(job_id) <= DAY_S
        assert message(failing, job_id) is None
    assert failing.retry(entry(failing, other)) == ["queued"]
    failing.settle(failing.claim_one())


def test_a_deleted_job_leaves_the_failures(failing: Queue) -> None:
    job_id = failed(failing)
    assert failing.call("records/delete", [], "", job_id) == [1]
    assert failing.failures() == {}
    assert message(failing, job_id) is None


def test_a_stored_input_is_needed_as_long_as_the_message(failing: Queue) -> None:
    ref = "redis:" + "a" * 32
    job = Job(source=ref, input_ref=ref)
    row = f"{ref} {job.id} m i"
    failing.call("payloads/put", [], row, ref, 60_000_000, "", 5, "", "", "bytes")
    failing.submit(job)
    fail(failing, failing.claim_one())
    sweep = script("payloads/sweep").call([], 0, "", "", row)
    failing.send(sweep)
    assert failing.client.zscore(keys.PAYLOADS, row)
    assert failing.retry(entry(failing, job.id)) == ["queued"]
    failing.send(sweep)
    assert failing.client.zscore(keys.PAYLOADS, row)
    failing.settle(failing.claim_one())
    failing.send(sweep)
    assert failing.client.zscore(keys.PAYLOADS, row) is None


@pytest.mark.parametrize(("most", "share"), [("4", ""), ("", "4"), ("8", "")])
def test_a_stored_input_makes_way_where_there_is_little_room(
    failing: Queue, most: str, share: str
) -> None:
    ref = "redis:" + "a" * 32
    job = Job(source=ref, input_ref=ref, key="aa")
    row = f"{ref} {job.id} m i"
    failing.call("payloads/put", [], row, ref, 60_000_000, "", 5, "", "aa", "bytes")
    failing.submit(job)
    sweep = script("payloads/sweep").call([], 0, most, share, row)
    failing.send(sweep)
    assert failing.client.zscore(keys.PAYLOADS, row), "a job that waits needs it"
    fail(failing, failing.claim_one())
    failing.send(sweep)
    assert failing.client.zscore(keys.PAYLOADS, row) is None
    assert not failing.client.exists(keys.PAYLOAD_SIZES)
    assert failing.retry(entry(failing, job.id)) == ["no-message"]


def test_a_list_of_another_type_does_no_harm(failing: Queue) -> None:
    failing.client.set(keys.failures("m"), "x")
    job_id = failed(failing, ttl_s=DAY_S)
    assert failing.record(job_id)["s"] == "f"
    assert failing.kept_s(job_id) <= DAY_S


def test_the_sweep_removes_jobs_without_a_record_from_the_index(queue: Queue) -> None:
    queue.index_max = 1000
    ids = [queue.submit_one() for _ in range(300)]
    queue.settle(*queue.claim(300).jobs)
    queue.client.delete(*(keys.job(one) for one in ids[::2]))
    for _ in range(60):
        queue.sweep()
    left: Any = queue.client.zrange(keys.job_index("m"), 0, -1)
    assert len(left) < 200
    assert {one.decode() for one in left} >= set(ids[1::2])
