"""Callbacks of jobs that end without a worker, and jobs/canvas_begin.lua."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery

from headrace.jobs.ids import new_id
from headrace.redis import keys
from tests.harness.clients.celery_client import caught
from tests.harness.clients.script_calls import Queue, foreign

LATER_US = "1000000000"
#: Each gets a queue in which a stock client's message of this id waits, and ends the job.
ENDS: dict[str, Callable[[Queue, str], object]] = {}


def _end(run: Callable[[Queue, str], object]) -> Callable[[Queue, str], object]:
    ENDS[run.__name__.strip("_")] = run
    return run


@_end
def _cancelled_while_it_waits(queue: Queue, job_id: str) -> None:
    assert queue.settle(queue.claim_one(), retry_us="0") == [4]
    assert queue.sweep()[0] == 1
    assert queue.cancel(job_id) == ["removed"]


@_end
def _cancelled_where_its_message_is_not_found(queue: Queue, job_id: str) -> None:
    queue.release(queue.claim_one())
    assert queue.cancel(job_id) == ["removed"]
    assert not queue.orphaned_ends(), "its message is still listed"
    assert not queue.claim().jobs


@_end
def _purged_where_its_message_was_not_found(queue: Queue, job_id: str) -> None:
    queue.release(queue.claim_one())
    assert queue.cancel(job_id) == ["removed"]
    assert queue.purge() == (0, 1, 0)


@_end
def _revoked_before_it_was_known(queue: Queue, job_id: str) -> None:
    assert queue.cancel(job_id, remember_s=60) == ["unknown"]
    assert not queue.claim().jobs


@_end
def _cancelled_while_it_is_delayed(queue: Queue, job_id: str) -> None:
    assert queue.settle(queue.claim_one(), retry_us=LATER_US) == [4]
    assert queue.cancel(job_id) == ["removed"]


@_end
def _cancelled_while_it_runs_and_is_put_off(queue: Queue, job_id: str) -> None:
    leased = queue.claim_one()
    assert queue.cancel(job_id) == ["asked"]
    assert queue.settle(leased, retry_us=LATER_US) == [3]


@_end
def _cancelled_while_it_runs_and_is_given_back(queue: Queue, job_id: str) -> None:
    leased = queue.claim_one()
    assert queue.cancel(job_id) == ["asked"]
    assert queue.release(leased) == ["cancelled"]


@_end
def _lost_with_its_process(queue: Queue, job_id: str) -> None:
    queue.release(queue.claim_one(), mode="alone")
    for _ in range(2):
        assert queue.release(queue.claim_one(), mode="crash") == ["queued"]
    assert queue.release(queue.claim_one(), mode="crash") == ["dead"]


@_end
def _purged(queue: Queue, _: str) -> None:
    assert queue.purge() == (1, 1, 0)


@_end
def _purged_while_it_is_delayed(queue: Queue, _: str) -> None:
    queue.settle(queue.claim_one(), retry_us=LATER_US)
    assert queue.purge() == (1, 1, 0)


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_the_end_of_a_stock_clients_job_is_left_to_be_told(
    queue: Queue, end: Callable[[Queue, str], object]
) -> None:
    job_id = new_id()
    raw = foreign(headers={"id": job_id})
    queue.push(raw)
    end(queue, job_id)
    meta = json.loads(queue.meta(job_id) or b"{}")
    told = queue.orphaned_ends()
    assert told.keys() == {job_id}
    assert told[job_id][1] == raw
    assert told[job_id][0]["status"] == meta["status"] != "SUCCESS"
    assert told[job_id][0]["result"] == meta["result"]
    assert not queue.orphaned_ends(), "one sweep has it for a while"
    assert queue.client.ttl(keys.orphaned(queue.name)) > 0
    assert queue.client.ttl(keys.orphaned_ends(queue.name)) > 0
    assert not queue.claim().jobs, "it is told once"
    assert not queue.orphaned_ends()


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"content-type": "application/x-yaml"}, True), ({"headers": {"id": "ü"}}, False)],
    ids=["unread", "no-id"],
)
def test_the_end_of_a_refused_message_is_left_too(
    queue: Queue, changes: dict[str, object], named: bool
) -> None:
    raw = foreign(**changes)
    queue.push(raw)
    assert queue.claim().refused == 1
    ((name, (meta, left)),) = queue.orphaned_ends().items()
    assert (name == json.loads(raw)["headers"]["id"]) == named
    assert (meta["status"], left) == ("FAILURE", raw)


def test_after_our_own_messages_nothing_follows(queue: Queue) -> None:
    queue.cancel(queue.submit_one())
    queue.submit_one(delay_us=10**9)
    queue.submit_one()
    queue.purge()
    assert not queue.orphaned_ends()
    assert not queue.client.exists(keys.orphaned(queue.name), keys.orphaned_ends(queue.name))


@pytest.fixture(scope="module")
def app() -> Iterator[Celery]:
    with Celery(broker="memory://", backend="cache+memory://", set_as_current=False) as app:
        yield app


def test_where_celery_says_that_nothing_follows_no_message_is_kept(
    queue: Queue, app: Celery
) -> None:
    for n in range(12):  # each of the three ways in which base64 can end
        queue.push(caught(app, queue.name, args=["x" * n], task_id=f"plain-{n}"))
    assert queue.cancel("plain-0", remember_s=60) == ["unknown"]
    claimed = queue.claim(2)
    assert len(claimed.jobs) == 2
    assert queue.cancel("plain-1") == ["asked"]
    assert queue.release(*claimed.jobs) == ["cancelled", "queued"]
    assert queue.purge() == (10, 10, 0)
    assert not queue.client.exists(keys.orphaned(queue.name), keys.orphaned_ends(queue.name))


#: What hides the end of a body that nothing follows behind something that does, or is not read.
ALONE = ', {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'


@pytest.mark.parametrize("length", range(3))
def test_whatever_may_be_followed_is_kept(queue: Queue, app: Celery, length: int) -> None:
    args = ["x" * length, ALONE]
    task = app.signature("theirs")
    sent: list[dict[str, Any]] = [
        {"link": task},
        {"link_error": task},
        {"chain": [dict(task)]},
        {"chord": task, "group_id": "g", "group_index": 0},
        {"link": app.signature("theirs", args=[ALONE])},
        {"compression": "zlib"},
        {"serializer": "yaml", "kwargs": {}},
    ]
    raws = [
        caught(app, queue.name, args=args, task_id=f"id-{n}", **options)
        for n, options in enumerate(sent)
    ]
    ended = json.loads(caught(app, queue.name, args=args, task_id="other-charset"))
    raws.append(json.dumps({**ended, "content-encoding": "utf-16"}).encode())
    body = f'[[], {{}}, {{"chain": [1]}}{ALONE[1:-1]}'.encode()
    plain = {"headers": {"id": "not-base64"}, "body": body.decode()}
    raws.append(json.dumps({**ended, **plain, "properties": {}}).encode())
    queue.push(*raws)
    assert queue.purge()[0] == len(raws)
    kept = {raw for _, raw in queue.orphaned_ends().values()}
    assert kept == set(raws)


def test_so_many_are_handed_out_and_come_up_again(queue: Queue) -> None:
    ids = [new_id() for _ in range(5)]
    queue.push(*(foreign(headers={"id": job_id}) for job_id in ids))
    queue.purge()
    assert not queue.orphaned_ends(0)
    first = queue.orphaned_ends(2)
    second = queue.orphaned_ends(100)
    assert (len(first), first.keys() | second.keys()) == (2, set(ids))
    for job_id in second:
        queue.client.hdel(keys.orphaned_ends(queue.name), job_id)
    for job_id in ids:
        queue.client.zadd(keys.orphaned(queue.name), {job_id: 1})
    assert queue.orphaned_ends() == first
    assert set(queue.client.zrange(keys.orphaned(queue.name), 0, -1)) == {
        job_id.encode() for job_id in first
    }


@pytest.mark.parametrize("key", [keys.orphaned, keys.orphaned_ends])
@pytest.mark.leaves_keys
def test_keys_of_another_type_hinder_no_end_and_no_sweep(
    queue: Queue, key: Callable[[str], str]
) -> None:
    queue.client.set(key(queue.name), "theirs", ex=60)
    job_id = new_id()
    queue.push(foreign(headers={"id": job_id}))
    assert queue.purge() == (1, 1, 0)
    assert json.loads(queue.meta(job_id) or b"{}")["status"] == "REVOKED"
    assert not queue.orphaned_ends()


def test_what_follows_is_told_by_the_holder_and_then_no_cancel_helps(queue: Queue) -> None:
    job_id = queue.submit_one()
    first = queue.claim_one()
    assert queue.follow(first) == 1
    assert queue.follow(first) == 1
    assert queue.cancel(job_id) == ["ended"]
    queue.release(first)
    assert queue.follow(first) == 0
    second = queue.claim_one()
    assert queue.follow(first) == 0
    # Of the second claim nobody has told anything yet.
    assert queue.cancel(job_id) == ["asked"]
    assert queue.follow(second) == 3
    assert queue.settle(second) == [3]
    assert queue.follow(second) == 0
    queue.client.delete(keys.job(job_id))
    assert queue.follow(second) == 0
