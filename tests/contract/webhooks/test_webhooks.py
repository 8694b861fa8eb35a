"""Whatever ends a job sends the task of its webhook, as its submit wrote it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import ResponseError

from headrace.redis import keys
from headrace.redis.scripts.jobs import IN_EITHER
from tests.harness.clients.script_calls import MAX_CRASHES, TTL_S, Queue, full_memory

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
    # It is noted for its API key, which is none here.
    assert set(fields) == {b"e:"}
    state, ended = fields[b"e:"][:1], fields[b"e:"][1:]
    assert ended.decode() == queue.record(job_id)["en"]
    assert ttl > TTL_S, "it outlives the record"
    return str(state.decode())


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
    for _ in range(MAX_CRASHES):
        queue.isolate(queue.claim_one(lease_us=0), IN_EITHER)
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


def end_as(queue: Queue, key: str, count: int) -> list[str]:
    """Jobs of an API key end, and their tasks are sent; the tasks in this order."""
    ids = [queue.submit_one(webhook_ends=ENDS) for _ in range(count)]
    for job_id in ids:
        if key:
            queue.client.hset(keys.job(job_id), "ky", key)
        settled(queue)
    return [f"end of {job_id}" for job_id in ids]


def taken(queue: Queue, count: int) -> list[str]:
    """The tasks that background workers take, after each of which one looks for more."""
    found = []
    for _ in range(count):
        raw: Any = queue.client.rpop(keys.BACKGROUND_TASKS)
        found.append(raw.decode())
        queue.call("webhooks/due", [], 10)
    return found


@pytest.mark.leaves_keys
def test_a_key_with_many_tasks_delays_only_its_own(queue: Queue) -> None:
    many = end_as(queue, "a" * 12, 100)
    few = end_as(queue, "b" * 12, 3) + end_as(queue, "", 1)
    more = end_as(queue, "a" * 12, 5)
    assert queue.client.llen(keys.BACKGROUND_TASKS) == 64
    assert queue.client.zcard(keys.WAITING_TASKS) == 45
    order = taken(queue, 109)
    assert sorted(order) == sorted([*many, *few, *more]), "each once"
    assert order[:64] == many[:64]
    assert [one for one in order if one in many] == many, "a key's own are in order"
    assert max(map(order.index, few)) < 64 + 2 * len(few)
    assert not queue.client.exists(keys.WAITING_TASKS, keys.TASK_TURNS)
    assert end_as(queue, "a" * 12, 1) == taken(queue, 1)
    for one in order:
        queue.client.delete(keys.deliveries(one.split()[-1]))


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


@pytest.mark.parametrize("long", [False, True], ids=["settled", "started"])
def test_the_first_start_alone_is_told(queue: Queue, long: bool) -> None:
    asked, other = queue.submit_one(webhook_started=True), queue.submit_one()
    queue.release(*queue.claim().jobs)
    claimed = queue.claim().jobs
    assert tasks(queue) == [], "no worker has begun to run it"
    if long:
        assert queue.start(*claimed) == 2
        assert tasks(queue) == [f"start of {asked}"]
        queue.release(*claimed, mode="alone")
        claimed = queue.claim().jobs
        queue.start(*claimed)
        assert tasks(queue) == []
    queue.settle(*claimed)
    assert tasks(queue) == ([] if long else [f"start of {asked}"])
    assert {queue.record(job_id)["s"] for job_id in (asked, other)} == {"s"}


def test_the_start_of_a_job_that_never_ran_is_not_told(queue: Queue) -> None:
    asked = queue.submit_one(webhook_ends=ENDS, webhook_started=True)
    queue.settle(queue.claim_one(), state="x")
    assert tasks(queue) == [f"end of {asked}"]


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
    queue.client.delete(keys.BACKGROUND_TASKS, keys.WAITING_TASKS, keys.TASK_TURNS)


def save(
    queue: Queue, was: str, now: str, *more: str | int, sending: str = "", old: str = "other"
) -> list[Any]:
    answer: list[Any] = queue.call(
        "webhooks/save", [], "job", "msg_1", was, now, 60, *more, sending, old
    )
    return answer


def test_deliveries_are_kept_unless_another_was_faster(queue: Queue) -> None:
    hook = keys.deliveries("job")
    with full_memory(queue):
        assert save(queue, "", "one", 0, "task", "body", "webhooks:retried") == [1]
        assert save(queue, "", "two", "", "", "", "") == [0, b"one"]
        assert queue.client.hgetall(hook) == {
            b"msg_1": b"one", b"b:msg_1": b"body", b"m:msg_1": b"task",
        }  # fmt: skip
        assert queue.call("webhooks/due", [], 10) == [1, 0]
    assert tasks(queue) == ["task"]
    assert queue.call("webhooks/due", [], 10) == [0, 0]
    assert save(queue, "one", "three", "", "", "-", "webhooks:delivered") == [1]
    assert queue.client.hgetall(hook) == {b"msg_1": b"three"}
    assert 0 < int(queue.client.ttl(hook)) <= 60
    counted: Any = queue.client.hgetall(keys.SHARED_STATS)
    assert counted == {b"webhooks:retried": b"1", b"webhooks:delivered": b"1"}


def test_what_a_dead_worker_was_sending_is_due_at_once(queue: Queue) -> None:
    client, sending = queue.client, keys.background_sending("dead")
    for worker in ("dead", "next"):
        queue.call("background/requeue_dead", [], worker, "{}")
    assert save(queue, "", "one", 10**12, "task", "body", "", sending="+dead") == [1]
    assert 0 < int(client.ttl(sending)) <= 3600
    assert queue.call("background/requeue_dead", [], "dead", "{}", "dead") == 0
    assert queue.call("webhooks/due", [], 10) == [0, 0], "it has lost its connection alone"
    with full_memory(queue):
        assert queue.call("background/requeue_dead", [], "", "", "dead") == 0
        assert queue.call("webhooks/due", [], 10) == [1, 0]
    assert tasks(queue) == ["task"]
    assert save(queue, "one", "two", 10**12, "task", "", "", sending="+next") == [1]
    assert save(queue, "two", "three", "", "", "-", "", sending="-next") == [1]
    assert not client.exists(sending, keys.background_sending("next"), keys.DUE_DELIVERIES)
    # Its last write can come after its death was noticed.
    assert save(queue, "three", "four", 10**12, "task", "body", "", sending="+dead") == [1]
    assert queue.call("webhooks/due", [], 10) == [1, 0]
    queue.call("background/requeue_dead", [], "", "", "dead", "next")
    client.delete(keys.BACKGROUND_TASKS, sending)


def test_what_is_not_due_waits_and_what_is_gone_is_passed_over(queue: Queue) -> None:
    save(queue, "", "one", 10**9, "task", "body", "")
    assert queue.call("webhooks/due", [], 10) == [0, 0]
    queue.client.zadd(
        keys.DUE_DELIVERIES, {"gone msg_2": 1, "no member of ours": 1, "job msg_1": 2}
    )
    assert queue.call("webhooks/due", [], 2) == [2, 0]
    assert tasks(queue) == []
    assert queue.call("webhooks/due", [], 2) == [1, 0]
    assert tasks(queue) == ["task"]
    queue.client.set(keys.BACKGROUND_TASKS, "another's", ex=60)
    queue.client.zadd(keys.DUE_DELIVERIES, {"job msg_1": 2})
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        queue.call("webhooks/due", [], 2)
    assert queue.client.zcard(keys.DUE_DELIVERIES) == 1, "nothing was taken"
    queue.client.delete(keys.BACKGROUND_TASKS, keys.DUE_DELIVERIES)
