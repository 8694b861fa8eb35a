"""sequences.lua: which requests of sequences are taken, and when a sequence ends."""

from __future__ import annotations

from typing import Any, Final

import pytest

from extensions.torchserve.redis import keys, script
from headrace.jobs.ids import new_id
from headrace.redis import keys as core_keys
from headrace.redis.scripts import Arg
from tests.harness.clients.script_calls import Queue

OF: Final = "m@1.0"
IDLE_US: Final = 3_600_000_000
TIMEOUT_US: Final = 7_200_000_000
TAKEN: Final = (b"taken", 0)


def call(queue: Queue, *arguments: Arg) -> Any:
    return queue.send(script("sequences").call([], *arguments))


def take(
    queue: Queue,
    sequence: str,
    job: str,
    *,
    most: int = 2,
    waiting: int = 1,
    timeout_us: int = 0,
    continuous: bool = False,
) -> tuple[bytes, int]:
    """Ask for a request of a sequence."""
    word, count = call(
        queue, "take", OF, sequence, job, most, waiting, IDLE_US, timeout_us, int(continuous)
    )
    return word, count


def submitted(queue: Queue, sequence: str) -> str:
    """A job of a sequence that was taken and waits."""
    job = new_id()
    assert take(queue, sequence, job) == TAKEN
    return queue.submit_one(id=job)


def answered(queue: Queue, sequence: str) -> str:
    """A job of a sequence that has ended."""
    job = submitted(queue, sequence)
    queue.settle(*queue.claim().jobs)
    return job


def change(queue: Queue, what: str, sequence: str, job: str = "") -> None:
    call(queue, what, OF, sequence, job)


def grow_old(queue: Queue, sequence: str, us: int) -> None:
    """Set all times of a sequence back by so much."""
    state: bytes = queue.client.hget(keys.sequences(OF), sequence)  # type: ignore[assignment]
    began, ended, over, *jobs = state.decode().split()
    older = [str(int(began) - us), str(int(ended) - us), over]
    for entry in jobs:
        job, _, taken = entry.rpartition(":")
        older.append(f"{job}:{int(taken) - us}")
        if at := queue.record(job).get("en"):
            queue.client.hset(core_keys.job(job), "en", int(at) - us)
    queue.client.hset(keys.sequences(OF), sequence, " ".join(older))
    queue.client.zincrby(keys.sequence_ends(OF), -us, sequence)


def known(queue: Queue) -> set[str]:
    """The sequences that Redis has."""
    states: dict[bytes, bytes] = queue.client.hgetall(keys.sequences(OF))  # type: ignore[assignment]
    ends = queue.client.zcard(keys.sequence_ends(OF))
    assert len(states) == ends
    return {name.decode() for name in states}


def test_one_sequence_too_many_is_refused_until_another_has_been_silent(queue: Queue) -> None:
    answered(queue, "a")
    answered(queue, "b")
    assert take(queue, "c", "1") == (b"many", 2)
    grow_old(queue, "a", IDLE_US // 2)
    assert take(queue, "c", "1") == (b"many", 2)
    grow_old(queue, "a", IDLE_US)
    assert take(queue, "c", "1") == TAKEN
    assert known(queue) == {"b", "c"}


def test_a_silence_begins_when_the_last_request_has_ended(queue: Queue) -> None:
    job = submitted(queue, "a")
    grow_old(queue, "a", 2 * IDLE_US)
    assert take(queue, "b", "1", most=1) == (b"many", 1), "its request waits"
    leased = queue.claim_one()
    assert leased.id == job
    assert take(queue, "b", "1", most=1) == (b"many", 1), "its request runs"
    queue.settle(leased)
    assert take(queue, "b", "1", most=1) == (b"many", 1), "its silence has begun now"
    grow_old(queue, "a", 2 * IDLE_US)
    assert take(queue, "b", "1", most=1) == TAKEN


def test_a_sequence_that_was_silent_too_long_begins_anew(queue: Queue) -> None:
    answered(queue, "a")
    grow_old(queue, "a", 2 * IDLE_US)
    assert take(queue, "a", "1", most=1, timeout_us=TIMEOUT_US) == TAKEN
    state: bytes = queue.client.hget(keys.sequences(OF), "a")  # type: ignore[assignment]
    began, *_, entry = state.decode().split()
    assert entry == f"1:{began}"


def test_more_requests_of_a_sequence_than_may_wait_are_refused(queue: Queue) -> None:
    """One runs, or is the next to run, and does not wait."""
    first, second = submitted(queue, "a"), submitted(queue, "a")
    assert take(queue, "a", "3") == (b"full", 2)
    queue.settle(queue.claim_one())
    third = submitted(queue, "a")
    assert take(queue, "a", "4") == (b"full", 2)
    assert queue.cancel(third) == ["removed"]
    assert take(queue, "a", "4") == TAKEN
    assert queue.record(first)["s"] == "s"
    assert queue.record(second)["s"] == "q"
    queue.settle_all()


def test_what_runs_in_a_continuous_batch_does_not_wait(queue: Queue) -> None:
    for _ in range(3):
        job = new_id()
        assert take(queue, "a", job, continuous=True) == TAKEN
        queue.submit_one(id=job)
        queue.claim_one()
    for n in range(2):
        assert take(queue, "a", str(n), continuous=True) == TAKEN
    assert take(queue, "a", "6", continuous=True) == (b"full", 2)
    queue.settle_all()


def test_a_timeout_ends_a_sequence_that_is_not_silent(queue: Queue) -> None:
    answered(queue, "a")
    for _ in range(3):
        grow_old(queue, "a", IDLE_US // 2)
        job = new_id()
        assert take(queue, "a", job, most=1, timeout_us=TIMEOUT_US) == TAKEN
        queue.submit_one(id=job)
        queue.settle(queue.claim_one())
    assert take(queue, "b", "1", most=1, timeout_us=TIMEOUT_US) == (b"many", 1)
    grow_old(queue, "a", IDLE_US // 2)
    assert take(queue, "b", "1", most=1, timeout_us=TIMEOUT_US) == TAKEN


def test_requests_that_wait_at_the_timeout_still_count(queue: Queue) -> None:
    submitted(queue, "a")
    grow_old(queue, "a", 2 * TIMEOUT_US)
    assert take(queue, "b", "1", most=1, timeout_us=TIMEOUT_US) == (b"many", 1)
    queue.settle(queue.claim_one())
    assert take(queue, "b", "1", most=1, timeout_us=TIMEOUT_US) == TAKEN


def test_a_repeat_is_counted_once(queue: Queue) -> None:
    for _ in range(3):
        assert take(queue, "a", "1", waiting=1) == TAKEN
    assert take(queue, "a", "2", waiting=1) == TAKEN
    assert take(queue, "a", "3", waiting=1) == (b"full", 2)
    assert take(queue, "a", "2", waiting=1) == TAKEN


def test_a_repeat_of_a_job_needs_no_place(queue: Queue) -> None:
    job = answered(queue, "a")
    change(queue, "end", "a")
    assert take(queue, "b", job) == TAKEN
    change(queue, "drop", "b", job)
    assert known(queue) == {"a"}
    assert take(queue, "c", "1", most=1) == TAKEN
    assert take(queue, "b", job, most=1) == TAKEN


def test_a_request_that_became_no_job_is_taken_back(queue: Queue) -> None:
    assert take(queue, "a", "1") == TAKEN
    change(queue, "drop", "a", "1")
    assert known(queue) == set()
    answered(queue, "a")
    assert take(queue, "a", "2", waiting=1) == TAKEN
    change(queue, "drop", "a", "2")
    change(queue, "drop", "a", "unknown")
    change(queue, "drop", "unknown", "2")
    assert known(queue) == {"a"}
    assert take(queue, "a", "3", waiting=1) == TAKEN


def test_a_job_that_was_submitted_is_not_taken_back(queue: Queue) -> None:
    job = submitted(queue, "a")
    change(queue, "drop", "a", job)
    assert take(queue, "b", "1", most=1) == (b"many", 1)
    queue.settle(queue.claim_one())


def test_a_request_whose_api_process_died_before_the_submit_ends_soon(queue: Queue) -> None:
    assert take(queue, "a", "1", waiting=0) == TAKEN
    assert take(queue, "a", "2", waiting=0) == (b"full", 1)
    grow_old(queue, "a", 31_000_000)
    assert take(queue, "a", "2", waiting=0) == TAKEN


def test_a_handler_ends_a_sequence(queue: Queue) -> None:
    answered(queue, "a")
    change(queue, "end", "a")
    change(queue, "end", "unknown")
    assert take(queue, "b", "1", most=1) == TAKEN


def test_requests_that_wait_at_the_end_are_not_lost(queue: Queue) -> None:
    submitted(queue, "a")
    change(queue, "end", "a")
    assert take(queue, "b", "1", most=1) == (b"many", 1)
    queue.settle(queue.claim_one())
    assert take(queue, "b", "1", most=1) == TAKEN


def test_a_request_after_the_end_keeps_the_sequence(queue: Queue) -> None:
    submitted(queue, "a")
    change(queue, "end", "a")
    submitted(queue, "a")
    queue.settle(*queue.claim().jobs)
    assert take(queue, "b", "1", most=1) == (b"many", 1)


@pytest.mark.parametrize("state", [b"", b"of another version", b"1 2 3"])
def test_a_state_that_cannot_be_read_is_none(queue: Queue, state: bytes) -> None:
    answered(queue, "a")
    queue.client.hset(keys.sequences(OF), "a", state)
    assert take(queue, "a", "1", most=1) == TAKEN


def test_the_state_of_all_sequences_ends_with_them(queue: Queue) -> None:
    answered(queue, "a")
    for name in (keys.sequences(OF), keys.sequence_ends(OF)):
        assert IDLE_US / 1e6 < queue.client.ttl(name) <= IDLE_US / 1e6 + keys.SEQUENCES_TTL_S
