"""Dead letters: how a job becomes one, and how it is requeued or deleted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.redis import keys
from tests.harness.clients.script_calls import Queue, foreign

pytestmark = pytest.mark.leaves_keys

ERROR = '{"type":"transient-error","message":"no lights on","retryable":true}'
META = json.dumps({"status": "FAILURE", "result": None, "traceback": "Traceback: x"})
LETTERS_MAX = 100_000


def die(queue: Queue, **options: Any) -> str:
    """A job whose retries are used up; its id."""
    job_id = queue.submit_one(**options)
    assert queue.settle(
        queue.claim_one(), state="f", meta=META, extra=("e", ERROR), retry_us="dead"
    ) == [1]
    return job_id


def test_a_job_whose_retries_are_used_up_is_kept_with_all_that_is_known(queue: Queue) -> None:
    job_id = queue.submit_one(step=3)
    (raw,) = queue.listed()
    created = queue.record(job_id)["c"]
    queue.settle(queue.claim_one(), state="f", meta=META, extra=("e", ERROR), retry_us="dead")
    letter = queue.dead_letters()[job_id]
    died = letter.pop("at")
    assert letter == {
        "reason": b"transient-error", "error": b"no lights on", "raw": raw, "id": job_id.encode(),
        "step": b"3", "attempts": b"1", "created": created.encode(), "traceback": b"Traceback: x",
    }  # fmt: skip
    assert int(died) >= int(created)
    record = queue.record(job_id)
    assert (record["s"], record["dl"], record["e"]) == ("f", "1", ERROR)
    assert queue.meta(job_id) == META.encode()
    assert queue.client.ttl(keys.dead_letter(queue.name, job_id)) > 13 * 86400
    assert queue.held() == {}


def test_a_dead_letter_goes_back_as_the_job_that_it_was(queue: Queue) -> None:
    job_id = die(queue, step=3, ttl_s=77)
    waiting = queue.submit_one(step=3)
    assert queue.requeue(job_id) == ["queued"]
    assert queue.dead_letters() == {}
    assert queue.meta(job_id) is None
    record = queue.record(job_id)
    assert record["s"] == "q"
    assert record.keys().isdisjoint({"e", "dl", "en", "st", "t", "a", "b", "tm"})
    assert queue.client.ttl(keys.job(job_id)) == -1
    assert (queue.place(waiting), queue.place(job_id)) == (1, 2)
    first, second = queue.claim().jobs
    assert (first.id, second.id, second.attempts, second.retries) == (waiting, job_id, 1, "")
    assert queue.settle(first, second) == [1, 1]
    assert queue.record(job_id)["s"] == "s"


def test_a_job_that_crashed_is_charged_anew(queue: Queue) -> None:
    job_id = queue.submit_one()
    queue.release(queue.claim_one(), mode="alone")
    while queue.release(queue.claim_one(), mode="crash") != ["dead"]:
        pass
    assert queue.dead_letters()[job_id]["attempts"] == b"4"
    assert queue.requeue(job_id) == ["queued"]
    leased = queue.claim_one()
    assert (leased.attempts, leased.alone) == (1, "")


def test_a_dead_letter_outlives_its_record(queue: Queue) -> None:
    job_id = die(queue, step=9)
    queue.client.delete(keys.job(job_id), keys.meta(job_id))
    assert queue.requeue(job_id) == ["queued"]
    leased = queue.claim_one()
    assert (leased.id, leased.attempts) == (job_id, 1)
    assert queue.record(job_id)["p"] == "9"


def test_what_cannot_go_back_stays_and_says_why(queue: Queue) -> None:
    queue.push(b"no json", foreign(headers={"task": "other.task", "id": "theirs"}))
    assert queue.claim().refused == 2
    names = sorted(queue.dead_letters())
    assert queue.requeue(*names, "nobody") == ["unreadable", "unreadable", "unknown"]
    assert sorted(queue.dead_letters()) == names


def test_a_job_that_lives_is_not_put_beside_itself(queue: Queue) -> None:
    job_id = die(queue)
    kept = queue.dead_letters()[job_id]
    assert queue.requeue(job_id, job_id) == ["queued", "unknown"]
    letter: Any = kept
    queue.client.hset(keys.dead_letter(queue.name, job_id), mapping=letter)
    queue.client.zadd(keys.dead(queue.name), {job_id: 1})
    assert queue.requeue(job_id) == ["alive"], "it waits"
    queue.entomb(job_id)
    assert queue.requeue(job_id) == ["alive"], "its message is still listed"
    assert queue.claim().jobs == []
    assert queue.requeue(job_id) == ["queued"]


@pytest.mark.parametrize("model", ["m", "another"])
def test_a_dead_letter_leaves_a_later_job_of_its_id_alone(queue: Queue, model: str) -> None:
    job_id = die(queue)
    queue.client.delete(keys.job(job_id), keys.meta(job_id))
    later = Queue(queue.client, model)
    assert later.submit_one(id=job_id) == job_id
    later.settle(later.claim_one(), meta='{"result": "its own"}')
    assert queue.requeue(job_id) == ["alive"]
    assert later.record(job_id)["s"] == "s"
    assert later.meta(job_id) == b'{"result": "its own"}'
    assert list(queue.dead_letters()) == [job_id]


def test_purged_dead_letters_are_gone(queue: Queue) -> None:
    first, second = die(queue), die(queue)
    assert queue.purge_dead_letters(first, "nobody") == 1
    assert list(queue.dead_letters()) == [second]
    assert queue.record(first)["s"] == "f"
    assert queue.depth().dead == 1


def test_the_oldest_are_dropped_when_there_are_too_many(queue: Queue) -> None:
    oldest = die(queue)
    at = int(queue.dead_letters()[oldest]["at"])
    more: Any = {f"n{number}": at + 1 for number in range(LETTERS_MAX - 1)}
    queue.client.zadd(keys.dead(queue.name), more)
    newest = die(queue)
    assert queue.client.zcard(keys.dead(queue.name)) == LETTERS_MAX
    assert queue.client.exists(keys.dead_letter(queue.name, oldest)) == 0
    assert queue.client.zscore(keys.dead(queue.name), newest) is not None


def test_dead_letters_that_have_run_out_leave_the_index(queue: Queue) -> None:
    old = die(queue)
    queue.client.zadd(keys.dead(queue.name), {old: 1}, xx=True)
    new = die(queue)
    names: Any = queue.client.zrange(keys.dead(queue.name), 0, -1)
    assert names == [new.encode()]
