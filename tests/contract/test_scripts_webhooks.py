"""Whatever ends a job sends the task of its webhook, as its submit wrote it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import ResponseError

from headrace.redis import keys
from tests.contract.test_scripts_memory import full_memory
from tests.harness.clients.script_calls import MAX_CRASHES, TTL_S, Queue

ENDS = "sfcx"
FAILED = ("e", '{"type":"handler-error","message":"no"}')


def tasks(queue: Queue) -> list[str]:
    """Return the waiting tasks in the order in which they are claimed, and remove them."""
    found: Any = queue.client.lrange(keys.BACKGROUND_TASKS, 0, -1)
    queue.client.delete(keys.BACKGROUND_TASKS)
    return [raw.decode() for raw in reversed(found)]


def noted(queue: Queue, job_id: str) -> str:
    """How the job has ended, as it is noted for its webhook."""
    fields: Any = queue.client.hgetall(keys.deliveries(job_id))
    ttl: Any = queue.client.ttl(keys.deliveries(job_id))
    assert set(fields) == {b"s", b"en"}
    assert fields[b"en"].decode() == queue.record(job_id)["en"]
    assert ttl > TTL_S, "it outlives the record"
    return str(fields[b"s"].decode())


def settled(queue: Queue) -> None:
    queue.settle(queue.claim_one())


def failed_for_good(queue: Queue) -> None:
    queue.settle(queue.claim_one(), state="f", extra=FAILED, retry_us="dead")


def expired_in_a_worker(queue: Queue) -> None:
    queue.settle(queue.claim_one(), state="x")


def cancelled_while_it_waits(queue: Queue) -> None:
    waiting: Any = queue.client.zrange("ids", 0, -1)
    queue.cancel(waiting[0].decode())


def cancelled_while_it_runs(queue: Queue) -> None:
    leased = queue.claim_one()
    queue.cancel(leased.id)
    queue.settle(leased)


def cancelled_and_given_back(queue: Queue) -> None:
    leased = queue.claim_one()
    queue.cancel(leased.id)
    queue.release(leased)


def purged(queue: Queue) -> None:
    queue.purge()


def lost_too_often(queue: Queue) -> None:
    for _ in range(MAX_CRASHES + 1):
        queue.claim_one(lease_us=0)
        queue.sweep()


WAYS: dict[str, tuple[Callable[[Queue], None], str]] = {
    "settled": (settled, "s"),
    "failed": (failed_for_good, "f"),
    "expired in a worker": (expired_in_a_worker, "x"),
    "cancelled while it waits": (cancelled_while_it_waits, "c"),
    "cancelled while it runs": (cancelled_while_it_runs, "c"),
    "cancelled and given back": (cancelled_and_given_back, "c"),
    "purged": (purged, "c"),
    "lost too often": (lost_too_often, "f"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("full", [False, True])
def test_each_way_to_end_sends_it_once(queue: Queue, way: str, full: bool) -> None:
    end, state = WAYS[way]
    asked = queue.submit_one(webhook_ends=ENDS)
    queue.client.zadd("ids", {asked: 1})
    if full:
        with full_memory(queue):
            end(queue)
    else:
        end(queue)
    assert tasks(queue) == [f"end of {asked}"]
    assert noted(queue, asked) == state
    queue.client.delete("ids")
    # Who did not ask for this end is told nothing, and leaves nothing.
    for job_id in (
        queue.submit_one(),
        queue.submit_one(webhook_ends=ENDS.replace(state, "")),
    ):
        queue.client.zadd("ids", {job_id: 1})
        end(queue)
        assert queue.record(job_id)["s"] == state
        assert tasks(queue) == []
        assert not queue.client.exists(keys.deliveries(job_id))
        queue.client.delete("ids")
    assert queue.claim().jobs == []


def test_a_job_that_expires_while_it_waits(queue: Queue) -> None:
    asked = queue.submit_one(begin_us=1, webhook_ends="x")
    assert queue.expire() == 1
    assert (tasks(queue), noted(queue, asked)) == ([f"end of {asked}"], "x")
    assert queue.claim().jobs == []


def test_a_retry_is_no_end_and_a_requeue_ends_again(queue: Queue) -> None:
    asked = queue.submit_one(webhook_ends=ENDS, webhook_started=True)
    queue.settle(queue.claim_one(), state="f", extra=FAILED, retry_us="1")
    queue.sweep()
    assert tasks(queue) == [f"start of {asked}"]
    failed_for_good(queue)
    assert (tasks(queue), noted(queue, asked)) == ([f"end of {asked}"], "f")
    assert queue.requeue(asked) == ["queued"]
    assert tasks(queue) == []
    settled(queue)
    assert (tasks(queue), noted(queue, asked)) == ([f"end of {asked}"], "s")


def test_the_first_claim_alone_tells_of_a_start(queue: Queue) -> None:
    asked, other = queue.submit_one(webhook_started=True), queue.submit_one()
    claimed = queue.claim().jobs
    assert tasks(queue) == [f"start of {asked}"]
    queue.release(*claimed)
    queue.settle(*queue.claim().jobs)
    assert tasks(queue) == []
    assert {queue.record(job_id)["s"] for job_id in (asked, other)} == {"s"}


def test_a_repeated_settlement_sends_nothing_more(queue: Queue) -> None:
    asked = queue.submit_one(webhook_ends=ENDS)
    leased = queue.claim_one()
    assert queue.settle(leased, leased) == [1, 2]
    assert queue.settle(leased) == [2]
    assert tasks(queue) == [f"end of {asked}"]


def test_keys_of_another_type_hinder_no_end(queue: Queue) -> None:
    asked = queue.submit_one(webhook_ends=ENDS, webhook_started=True)
    queue.client.set(keys.BACKGROUND_TASKS, "another's", ex=60)
    queue.client.set(keys.deliveries(asked), "another's", ex=60)
    settled(queue)
    assert queue.record(asked)["s"] == "s"
    queue.client.delete(keys.BACKGROUND_TASKS)


def save(queue: Queue, was: str, now: str, *more: str | int) -> list[Any]:
    answer: list[Any] = queue.call("webhooks/save", [], "job", "msg_1", was, now, 60, *more)
    return answer


def test_deliveries_are_kept_unless_another_was_faster(queue: Queue) -> None:
    hook = keys.deliveries("job")
    with full_memory(queue):
        assert save(queue, "", "one", 0, "task", "body", "webhooks:retried") == [1]
        assert save(queue, "", "two", "", "", "", "") == [0, b"one"]
        assert queue.client.hgetall(hook) == {
            b"msg_1": b"one", b"b:msg_1": b"body", b"m:msg_1": b"task",
        }  # fmt: skip
        assert queue.call("webhooks/due", [], 10) == [1]
    assert tasks(queue) == ["task"]
    assert queue.call("webhooks/due", [], 10) == [0]
    assert save(queue, "one", "three", "", "", "-", "webhooks:delivered", "old") == [1]
    assert queue.client.hgetall(hook) == {b"msg_1": b"three"}
    assert 0 < int(queue.client.ttl(hook)) <= 60
    counted: Any = queue.client.hgetall(keys.SHARED_STATS)
    assert counted == {b"webhooks:retried": b"1", b"webhooks:delivered": b"1"}


def test_what_is_not_due_waits_and_what_is_gone_is_passed_over(queue: Queue) -> None:
    save(queue, "", "one", 10**9, "task", "body", "")
    assert queue.call("webhooks/due", [], 10) == [0]
    queue.client.zadd(
        keys.DUE_DELIVERIES, {"gone msg_2": 1, "no member of ours": 1, "job msg_1": 2}
    )
    assert queue.call("webhooks/due", [], 2) == [2]
    assert tasks(queue) == []
    assert queue.call("webhooks/due", [], 2) == [1]
    assert tasks(queue) == ["task"]
    queue.client.set(keys.BACKGROUND_TASKS, "another's", ex=60)
    queue.client.zadd(keys.DUE_DELIVERIES, {"job msg_1": 2})
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        queue.call("webhooks/due", [], 2)
    assert queue.client.zcard(keys.DUE_DELIVERIES) == 1, "nothing was taken"
    queue.client.delete(keys.BACKGROUND_TASKS, keys.DUE_DELIVERIES)
