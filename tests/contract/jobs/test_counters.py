"""Each end of a job is counted once, by the script that ends it; so are dead letters and losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.redis import keys
from headrace.redis.scripts.jobs import EXCLUSIVE, IN_EITHER
from tests.harness.clients.script_calls import Leased, Queue, foreign

LATER_US = "1000000000"
ERROR = ("e", '{"type":"transient-error","message":"later","retryable":true}')
#: What is said of one leased job, and what is counted by it.
LEASED: dict[str, tuple[Callable[[Queue, Leased], object], dict[str, int]]] = {}
#: What is done to one job that waits, the id of which it is given.
WAITING: dict[str, tuple[Callable[[Queue, str], object], dict[str, int]]] = {}

_Say = Callable[[Queue, Leased], object]
_Do = Callable[[Queue, str], object]


def counted(queue: Queue) -> dict[str, int]:
    """The counters: of ends by status, of dead letters and of leases that ran out."""
    fields: Any = queue.client.hgetall(keys.stats(queue.model))
    return {name.decode().removeprefix("ended:"): int(value) for name, value in fields.items()}


def _leased(**expected: int) -> Callable[[_Say], _Say]:
    def add(say: _Say) -> _Say:
        LEASED[say.__name__.strip("_")] = (say, expected)
        return say

    return add


def _waiting(**expected: int) -> Callable[[_Do], _Do]:
    def add(do: _Do) -> _Do:
        WAITING[do.__name__.strip("_")] = (do, expected)
        return do

    return add


@_leased(succeeded=1)
def _settled_twice_in_one_call_and_once_more(queue: Queue, job: Leased) -> None:
    assert queue.settle(job, job) == [1, 2]
    assert queue.settle(job) == [2]


@_leased(failed=1)
def _failed(queue: Queue, job: Leased) -> None:
    assert queue.settle(job, state="f", extra=ERROR) == [1]


@_leased(failed=1, dead=1)
def _failed_after_its_retries(queue: Queue, job: Leased) -> None:
    assert queue.settle(job, state="f", extra=ERROR, retry_us="dead") == [1]


@_leased(expired=1)
def _expired(queue: Queue, job: Leased) -> None:
    assert queue.settle(job, state="x", extra=ERROR) == [1]


@_leased(retried=1)
def _put_off_for_a_retry_which_is_said_twice(queue: Queue, job: Leased) -> None:
    assert queue.settle(job, state="f", extra=ERROR, retry_us=LATER_US) == [4]
    assert queue.settle(job, state="f", extra=ERROR, retry_us=LATER_US) == [2]


@_leased()
def _put_off_until_its_eta(queue: Queue, job: Leased) -> None:
    assert queue.settle(job, retry_us=LATER_US) == [4]


@_leased(cancelled=1)
def _cancelled_while_it_ran(queue: Queue, job: Leased) -> None:
    assert queue.cancel(job.id) == ["asked"]
    assert queue.settle(job) == [3]
    assert queue.settle(job) == [2]


@_leased(cancelled=1)
def _cancelled_and_given_back(queue: Queue, job: Leased) -> None:
    assert queue.cancel(job.id) == ["asked"]
    assert queue.release(job) == ["cancelled"]
    assert queue.release(job) == ["fenced"]
    assert queue.settle(job) == [2]


@_leased(succeeded=1)
def _settled_by_who_holds_it_and_by_who_did(queue: Queue, job: Leased) -> None:
    queue.release(job)
    other = queue.claim_one()
    assert queue.settle(job) == [0]
    assert queue.settle(other) == [1]
    assert queue.settle(job, state="f") == [0]


@_leased(failed=1)
def _without_its_message_when_it_is_put_off(queue: Queue, job: Leased) -> None:
    queue.client.hdel(keys.held(queue.name), job.id)
    assert queue.settle(job, extra=ERROR, retry_us=LATER_US) == [1]


@_leased(failed=1)
def _without_its_message_when_it_is_given_back(queue: Queue, job: Leased) -> None:
    queue.client.hdel(keys.held(queue.name), job.id)
    assert queue.release(job) == ["gone"]


def _lose(queue: Queue, job: Leased, lose: Callable[[Leased], object]) -> None:
    """Lose a job alone until it is given up, without a wait in between."""
    queue.release(job, mode="alone")
    for _ in range(3):
        job = queue.claim_one(lease_us=0)
        assert queue.isolate(job, IN_EITHER) == EXCLUSIVE
        lose(job)


@_leased(failed=1, dead=1)
def _lost_with_its_process_again_and_again(queue: Queue, job: Leased) -> None:
    _lose(queue, job, lambda leased: queue.release(leased, mode="crash"))


@_leased(failed=1, dead=1, leases_lost=3)
def _reaped_again_and_again(queue: Queue, job: Leased) -> None:
    _lose(queue, job, lambda _: queue.sweep())


@_leased(failed=1, dead=1)
def _lost_with_its_worker_again_and_again(queue: Queue, job: Leased) -> None:
    _lose(queue, job, lambda _: queue.release_owner("w1", mode="lost"))


@_leased(retried=1)
def _lost_alone_so_that_it_waits(queue: Queue, job: Leased) -> None:
    queue.release(job, mode="alone")
    again = queue.claim_one()
    assert queue.release(again, mode="crash", losses="3 1000000000 1000000000") == ["delayed"]


@_waiting(cancelled=1)
def _cancelled_twice(queue: Queue, job_id: str) -> None:
    assert queue.cancel(job_id, job_id) == ["removed", "ended"]
    assert not queue.claim().jobs


@_waiting(cancelled=1)
def _cancelled_and_purged(queue: Queue, job_id: str) -> None:
    assert queue.entomb(job_id) == ["removed"]
    assert queue.purge() == (0, 1, 0)


@_waiting(cancelled=1)
def _purged(queue: Queue, _: str) -> None:
    assert queue.purge() == (1, 1, 0)


@pytest.mark.parametrize(("say", "expected"), LEASED.values(), ids=LEASED)
def test_the_end_of_a_leased_job(
    queue: Queue, say: Callable[[Queue, Leased], object], expected: dict[str, int]
) -> None:
    queue.submit_one()
    say(queue, queue.claim_one())
    assert counted(queue) == expected
    queue.purge()


@pytest.mark.parametrize(("do", "expected"), WAITING.values(), ids=WAITING)
def test_the_end_of_a_waiting_job(
    queue: Queue, do: Callable[[Queue, str], object], expected: dict[str, int]
) -> None:
    do(queue, queue.submit_one())
    assert counted(queue) == expected


def test_what_the_claim_ends(queue: Queue) -> None:
    assert queue.cancel("revoked", remember_s=60) == ["unknown"]
    queue.push(
        foreign(headers={"id": "revoked"}),
        foreign(headers={"id": "odd", "task": "theirs"}),
        b"no job at all",
    )
    assert queue.claim().refused == 2
    assert counted(queue) == {"cancelled": 1, "failed": 1, "dead": 2}


def test_many_of_one_call_are_counted_by_how_they_end(queue: Queue) -> None:
    for _ in range(7):
        queue.submit_one()
    jobs = queue.claim().jobs
    queue.cancel(jobs[0].id, jobs[1].id)
    assert queue.settle(*jobs[:5]) == [3, 3, 1, 1, 1]
    assert queue.settle(*jobs[4:], state="f") == [2, 1, 1]
    assert counted(queue) == {"cancelled": 2, "succeeded": 3, "failed": 2}


@pytest.mark.leaves_keys
def test_a_counter_of_another_type_hinders_no_end(queue: Queue) -> None:
    queue.client.set(keys.stats(queue.model), "theirs")
    first, second, third = (queue.submit_one() for _ in range(3))
    assert queue.settle(queue.claim_one()) == [1]
    assert queue.cancel(second) == ["removed"]
    assert queue.purge()[0] == 1
    assert [queue.record(job_id)["s"] for job_id in (first, second, third)] == ["s", "c", "c"]
