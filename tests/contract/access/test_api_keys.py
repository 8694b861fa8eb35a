"""API keys in the scripts: whose jobs exist for whom, what is in flight, and rates."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.redis import keys
from tests.harness.clients.script_calls import Job, Leased, Queue, foreign

pytestmark = pytest.mark.leaves_keys

A, B = "a" * 12, "b" * 12
QUEUED, KNOWN, CONFLICT, OTHERS, TOO_MANY, TOKENS_USED = 1, 2, 3, 5, 6, 8


def count(queue: Queue, key: str = A) -> int:
    stored = queue.client.hget(keys.IN_FLIGHT, key)
    return int(stored) if stored is not None else 0


def code_of(queue: Queue, job: Job) -> int:
    ((code, _, _),) = queue.submit(job)
    return code


def test_an_id_is_its_keys_and_a_manager_sees_it(queue: Queue) -> None:
    job = Job(key=A, request_hash="h")
    assert code_of(queue, job) == QUEUED
    assert queue.record(job.id)["ky"] == A
    assert code_of(queue, Job(id=job.id, key=A, request_hash="h")) == KNOWN
    assert code_of(queue, Job(id=job.id, key=A, request_hash="i")) == CONFLICT
    for hash_ in ("h", "i", ""):
        assert code_of(queue, Job(id=job.id, key=B, request_hash=hash_)) == OTHERS
    manager = Job(id=job.id, key=B, key_sees_all=True, request_hash="h")
    assert code_of(queue, manager) == KNOWN
    nobodys = queue.submit_one()
    assert code_of(queue, Job(id=nobodys, key=A)) == OTHERS
    assert (count(queue), count(queue, B)) == (1, 0)


def test_others_cannot_cancel_it(queue: Queue) -> None:
    job_id, nobodys = queue.submit_one(key=A), queue.submit_one()
    asked = [f"{job_id} {B}", f"{nobodys} {B}", f"{job_id} -", f"none {A}"]
    assert queue.cancel(*asked) == ["unknown"] * 4
    assert queue.cancel(f"{nobodys} -", f"{job_id} {A}") == ["removed", "removed"]
    # Of another's id nothing is remembered, or it would be a way to have it dropped later.
    assert queue.cancel(f"later {B}", remember_s=60) == ["unknown"]
    assert not queue.client.exists(keys.REVOKED)


def test_a_list_has_only_the_keys_own(queue: Queue) -> None:
    queue.index_max = 100
    ids = [queue.submit_one(key=key) for key in (A, B, "", A)]
    queue.push(foreign(headers={"id": "stock"}))
    queue.claim(10)

    def listed(*whose: str) -> set[str]:
        answer = queue.call("queues/list_jobs", [], queue.model, "", "", 0, "", 100, 100, *whose)
        return {item.decode() for item in answer[4::2]}

    assert listed(A) == {ids[0], ids[3]}
    assert listed(B) == {ids[1]}
    assert listed("-") == {ids[2], "stock"}
    assert listed() == {*ids, "stock"}


def test_a_limit_holds_within_one_call_and_across_models(queue: Queue) -> None:
    other = Queue(queue.client, "other")
    assert code_of(other, Job(key=A, key_limit=3)) == QUEUED
    jobs = [Job(key=A, key_limit=3) for _ in range(4)]
    assert [code for code, _, _ in queue.submit_runs(jobs)] == [QUEUED, QUEUED, TOO_MANY, TOO_MANY]
    ((code, _, depth),) = queue.submit(jobs[2])
    assert (code, depth) == (TOO_MANY, 3)
    assert code_of(queue, Job(key=B, key_limit=1)) == QUEUED, "others have their own"
    assert code_of(queue, Job(key=A)) == QUEUED, "a limit that was taken away"
    assert (count(queue), count(queue, B)) == (4, 1)


def test_whatever_ends_a_job_makes_room_once(queue: Queue) -> None:
    def submit(**more: object) -> str:
        return queue.submit_one(key=A, key_limit=1, **more)

    submit()
    leased = queue.claim_one()
    assert queue.settle(leased, retry_us="0") == [4]
    assert count(queue) == 1, "put off, not ended"
    queue.sweep()
    leased = queue.claim_one()
    assert queue.settle(leased) == [1]
    assert queue.settle(leased) == [2]
    assert queue.client.exists(keys.IN_FLIGHT) == 0

    waiting = submit()
    assert queue.cancel(waiting, waiting) == ["removed", "ended"]
    assert count(queue) == 0
    running = submit()
    leased = queue.claim_one()
    assert queue.cancel(running) == ["asked"]
    assert count(queue) == 1, "it runs on"
    assert queue.settle(leased) == [3]
    assert count(queue) == 0
    submit(delay_us=60_000_000)
    queue.purge()
    assert count(queue) == 0
    submit()
    queue.purge()
    assert count(queue) == 0
    submit()
    for losses in (3, 3, 1):
        assert count(queue) == 1, "given back, not ended"
        fate = queue.release(queue.claim_one(), mode="crash", losses=losses)
    assert fate == ["dead"]
    assert count(queue) == 0


def test_a_dead_letter_that_is_put_back_is_in_flight_again(queue: Queue) -> None:
    job_id = queue.submit_one(key=A, key_limit=1)
    error = '{"type":"transient-error","message":"x","retryable":true}'
    assert queue.settle(queue.claim_one(), state="f", extra=("e", error), retry_us="dead") == [1]
    assert count(queue) == 0
    assert queue.requeue(job_id) == ["queued"]
    assert count(queue) == 1
    queue.settle(queue.claim_one())
    assert count(queue) == 0


def test_a_counter_of_another_type_ends_no_work(queue: Queue) -> None:
    job_id = queue.submit_one(key=A, key_limit=1)
    queue.client.delete(keys.IN_FLIGHT)
    queue.client.set(keys.IN_FLIGHT, "x")
    assert code_of(queue, Job(key=A, key_limit=1)) == QUEUED
    assert queue.settle(*queue.claim().jobs) == [1, 1]
    assert queue.record(job_id)["s"] == "s"


def take(queue: Queue, rate: str, wanted: int, least: int = 1) -> tuple[int, int]:
    taken, wait_us = queue.call("access/take_tokens", [], A, rate, wanted, least)
    return int(taken), int(wait_us)


def test_a_bucket_holds_a_seconds_worth_and_says_when_there_is_more(queue: Queue) -> None:
    taken, wait = take(queue, "1000000", 10_000_000)
    assert (taken, wait) == (1_000_000, 0)
    queue.client.delete(keys.rate(A))
    assert take(queue, "0.001", 5) == (1, 0), "one at the least"
    taken, wait = take(queue, "0.001", 1)
    assert taken == 0
    assert 990e6 < wait <= 1000e6
    # As if so much time had passed.
    stored: Any = queue.client.get(keys.rate(A))
    tokens, at = stored.split()
    queue.client.set(keys.rate(A), b"%s %d" % (tokens, int(at) - 1_000_000_000))
    assert take(queue, "0.001", 5) == (1, 0)
    assert 0 < queue.client.pttl(keys.rate(A)) <= 1_002_000


#: A millionth of it comes back in 60 us, so that a slow machine changes nothing below.
MINUTE = 1000


def needing(tokens: int, **more: Any) -> Job:
    return Job(key=A, key_minute=MINUTE, tokens=f"{tokens} ~ -", **more)


def left(queue: Queue) -> float:
    """What the key has left of its minute, as it was written last."""
    stored: Any = queue.client.get(keys.token_rate(A))
    return float(stored.split()[0])


@pytest.fixture
def limited(queue: Queue) -> Queue:
    """The queue, and a key whose record has the limit."""
    queue.client.hset(keys.api_key(A), "tokens_per_minute", str(MINUTE))
    return queue


def test_tokens_of_a_minute_are_shared_within_a_call_and_across_models(queue: Queue) -> None:
    other = Queue(queue.client, "other")
    codes = [code for code, _, _ in queue.submit_runs([needing(300) for _ in range(5)])]
    assert codes == [QUEUED, QUEUED, QUEUED, TOKENS_USED, TOKENS_USED]
    ((code, wait_us, depth),) = other.submit(needing(900))
    assert code == TOKENS_USED
    assert 100 <= depth < 900
    # The missing tokens, at a thousand a minute.
    assert 0 < wait_us <= 48_000_000
    assert code_of(other, Job(key=A, key_minute=MINUTE)) == QUEUED, "its model counts no tokens"
    assert code_of(queue, Job(key=B, key_minute=MINUTE, tokens="300 ~ -")) == QUEUED
    assert code_of(queue, Job(key=A, tokens="300 ~ -")) == QUEUED, "a limit that was taken away"
    ttl_ms = queue.client.pttl(keys.token_rate(A))
    assert 0 < ttl_ms <= 55_000, "until it is full again"


def test_a_job_larger_than_a_minute_is_taken_alone_and_leaves_a_debt(queue: Queue) -> None:
    assert code_of(queue, needing(10 * MINUTE)) == QUEUED
    assert left(queue) == -9 * MINUTE
    ((code, wait_us, depth),) = queue.submit(needing(2 * MINUTE))
    assert (code, depth) == (TOKENS_USED, 0)
    assert 9 * 60_000_000 < wait_us <= 10 * 60_000_000


def test_the_end_of_a_job_corrects_its_estimate_once(limited: Queue) -> None:
    limited.submit(needing(10 * MINUTE))
    leased = limited.claim_one()
    assert limited.settle(leased, used=str(9 * MINUTE)) == [1]
    assert -8 * MINUTE <= left(limited) < -7 * MINUTE, "a thousand more than before, and some time"
    before = left(limited)
    assert limited.settle(leased, used="1") == [2]
    assert left(limited) == before
    limited.client.delete(keys.token_rate(A))
    limited.submit(needing(10))
    assert limited.settle(limited.claim_one(), used=str(5 * MINUTE)) == [1]
    assert left(limited) < -3 * MINUTE, "it used more than was estimated"


def test_only_a_job_that_has_never_run_counts_nothing(limited: Queue) -> None:
    def submit() -> str:
        limited.client.delete(keys.token_rate(A))
        job = needing(10 * MINUTE)
        limited.submit(job)
        return job.id

    limited.cancel(submit())
    assert left(limited) == MINUTE
    submit()
    limited.settle(limited.claim_one(), state="x")
    assert left(limited) == MINUTE
    running = submit()
    leased = limited.claim_one()
    limited.cancel(running)
    assert limited.settle(leased, state="f") == [3]
    assert left(limited) == -9 * MINUTE, "cancelled while it ran"
    submit()
    assert limited.settle(limited.claim_one(), state="f") == [1]
    assert left(limited) == -9 * MINUTE, "nothing is known of what it used"
    submit()
    limited.settle(limited.claim_one(), state="f", extra=("e", "{}"), retry_us="0")
    limited.sweep()
    limited.settle(limited.claim_one(), state="x")
    assert left(limited) == -9 * MINUTE, "it has run before"
    limited.client.delete(keys.api_key(A))
    limited.cancel(submit())
    assert left(limited) == -9 * MINUTE, "its key was revoked"


def test_a_job_that_ended_before_it_used_tokens_returns_them(limited: Queue) -> None:
    def claimed() -> Leased:
        limited.client.delete(keys.token_rate(A))
        limited.submit(needing(10 * MINUTE))
        return limited.claim_one()

    limited.settle(claimed(), state="f", used="0")
    assert left(limited) == MINUTE
    cancelled = claimed()
    limited.cancel(cancelled.id)
    assert limited.settle(cancelled, state="f", used="0") == [3]
    assert left(limited) == MINUTE
    limited.settle(claimed(), state="f", extra=("e", "{}"), retry_us="0")
    limited.sweep()
    limited.settle(limited.claim_one(), state="f", used="0")
    assert left(limited) == -9 * MINUTE, "its first attempt may have used some"


def test_a_bucket_of_another_type_refuses_nothing(limited: Queue) -> None:
    limited.client.lpush(keys.token_rate(A), "x")
    assert code_of(limited, needing(MINUTE)) == QUEUED
    assert limited.settle(limited.claim_one(), used="1") == [1]
