"""jobs/release.lua, jobs/release_owner.lua, and queues/sweep.lua, which reaps and promotes."""

from __future__ import annotations

import json

import pytest

from headrace.redis import keys
from headrace.redis.scripts.jobs import (
    EXCLUSIVE,
    FENCED,
    HOST_TAKEN,
    IN_EITHER,
    IN_PROCESS,
    IN_WORKER,
    ISOLATED,
    ISOLATION_ENDS,
    RESERVED,
    Run,
)
from tests.harness.clients.script_calls import MAX_CRASHES, Job, Queue

pytestmark = pytest.mark.leaves_keys


def test_a_free_release_takes_the_attempt_back(queue: Queue) -> None:
    job_id = queue.submit_one()
    leased = queue.claim_one()
    assert queue.release(leased, mode="free") == ["queued"]
    record = queue.record(job_id)
    assert (record["s"], record["a"]) == ("q", "0")
    assert record.keys().isdisjoint({"t", "st", "x"})
    again = queue.claim_one()
    assert (again.attempts, again.alone, again.raw) == (1, "", leased.raw)


def test_jobs_given_back_stand_first_again_in_their_order(queue: Queue) -> None:
    ids = [queue.submit_one() for _ in range(6)]
    leased = queue.claim(4).jobs
    assert queue.release(leased[2], leased[0], leased[3], leased[1]) == ["queued"] * 4
    assert queue.claim().ids == ids


def test_jobs_given_back_go_to_their_own_step(queue: Queue) -> None:
    low, high = queue.submit_one(step=9), queue.submit_one(step=3)
    claimed = queue.claim()
    assert claimed.ids == [high, low]
    queue.release(*claimed.jobs)
    assert queue.depth().waiting == 2
    assert (queue.depth().step3, queue.depth().step9) == (1, 1)


@pytest.mark.parametrize("mode", ["alone", "crash"])
def test_a_lost_batch_runs_alone_next_and_nobody_is_charged(queue: Queue, mode: str) -> None:
    ids = [queue.submit_one() for _ in range(3)]
    assert queue.release(*queue.claim().jobs, mode=mode) == ["queued"] * 3
    again = queue.claim()
    assert again.ids == ids
    assert [job.alone for job in again.jobs] == ["1"] * 3
    assert [job.attempts for job in again.jobs] == [2] * 3
    assert all("k" not in queue.record(job_id) for job_id in ids)


def test_alone_charges_nothing_however_often(queue: Queue) -> None:
    queue.submit_one()
    for _ in range(MAX_CRASHES + 2):
        assert queue.release(queue.claim_one(), mode="alone") == ["queued"]


def test_what_crashes_alone_too_often_is_a_dead_letter(queue: Queue) -> None:
    good, poison = queue.submit_one(), queue.submit_one(waiter="api-1", ttl_s=99)
    raw = queue.listed()[1]
    queue.release(*queue.claim().jobs, mode="crash")
    first, second = queue.claim().jobs
    assert queue.settle(first) == [1]
    for _ in range(MAX_CRASHES - 1):
        assert queue.release(second, mode="crash") == ["queued"]
        second = queue.claim_one()
    stacks = 'File "handler.py", line 3 in \u00fcber/\\'
    assert queue.release(second, mode="crash", traceback=stacks) == ["dead"]
    assert queue.claim().jobs == []
    assert queue.held() == {}
    letter = queue.dead_letters()[poison]
    assert (letter["reason"], letter["raw"]) == (b"replica-lost", raw)
    record = queue.record(poison)
    assert (record["s"], record["dl"], record["k"]) == ("f", "1", str(MAX_CRASHES))
    error = json.loads(record["e"])
    assert (error["type"], error["retryable"]) == ("replica-lost", False)
    assert error["message"] == (
        "the model process died each of the 3 times that it ran this input alone; "
        "attempt 4 ended by SIGSEGV"
    )
    meta = json.loads(queue.meta(poison) or b"")
    assert (meta["status"], meta["task_id"]) == ("FAILURE", poison)
    assert (meta["result"]["exc_type"], meta["traceback"]) == ("ReplicaLost", stacks)
    assert letter["traceback"] == stacks.encode()
    assert queue.kept_s(poison) == pytest.approx(99, abs=30)
    assert queue.record(good)["s"] == "s"


def test_what_was_lost_alone_waits_with_jitter_below_a_bound_that_doubles(queue: Queue) -> None:
    ids = [queue.submit_one() for _ in range(40)]
    queue.release(*queue.claim().jobs, mode="crash")
    for crashes, bound_us in ((1, 10_000_000), (2, 20_000_000)):
        leased = queue.claim().jobs
        now_us = queue.claim().now_us
        assert (
            queue.release(*leased, mode="crash", losses="9 10000000 20000000") == ["delayed"] * 40
        )
        waits = [int(queue.view(job_id)[0][2]) - now_us for job_id in ids]
        took_us = queue.claim().now_us - now_us
        assert all(0 <= wait <= bound_us + took_us for wait in waits)
        # Drawn evenly from 0 on: that none of 40 is in one of these halves does not happen.
        assert min(waits) < bound_us / 2 < max(waits)
        assert len(set(waits)) > 30
        assert queue.parked().keys() == set(ids)
        assert (queue.listed(), queue.held()) == ([], {})
        record = queue.record(ids[0])
        assert (record["s"], record["x"], record["k"]) == ("d", "1", str(crashes))
        error = json.loads(record["e"])
        assert (error["type"], error["retryable"]) == ("replica-lost", True)
        for job_id in ids:
            queue.client.zadd(keys.delayed(queue.name), {job_id: 0})
        assert queue.sweep()[0] == 40
    queue.settle_all()


def test_a_job_that_asked_for_its_own_wait_gets_it(queue: Queue) -> None:
    job_id = queue.submit_one()
    queue.client.hset(keys.job(job_id), "rb", "0 0")
    queue.release(queue.claim_one(), mode="crash")
    assert queue.release(queue.claim_one(), mode="crash", losses="9 10000000 10000000") == [
        "queued"
    ]
    queue.settle_all()


def test_retries_are_counted_apart_from_attempts(queue: Queue) -> None:
    job_id = queue.submit_one()
    queue.release(queue.claim_one(), mode="crash")
    for retries in ("", "1", "2"):
        leased = queue.claim_one()
        assert leased.retries == retries
        assert queue.settle(leased, extra=("e", '{"type":"t"}'), retry_us="5000000") == [4]
        due_us = int(queue.view(job_id)[0][2])
        assert due_us == int(queue.client.zscore(keys.delayed(queue.name), job_id) or 0) > 0
        queue.client.zadd(keys.delayed(queue.name), {job_id: 0})
        queue.sweep()
    assert queue.record(job_id)["a"] == "4"
    queue.settle_all()


def test_a_second_dead_letter_of_one_id_keeps_the_first(queue: Queue) -> None:
    job_id = queue.submit_one()
    for _ in range(2):
        for _ in range(MAX_CRASHES + 1):
            queue.release(queue.claim_one(), mode="crash")
        queue.client.delete(keys.job(job_id), keys.meta(job_id))
        queue.submit_one(id=job_id)
    assert len(queue.dead_letters()) == 2


def test_a_job_whose_cancel_was_asked_ends_instead_of_going_back(queue: Queue) -> None:
    job_id = queue.submit_one()
    leased = queue.claim_one()
    queue.cancel(job_id)
    assert queue.release(leased) == ["cancelled"]
    assert queue.record(job_id)["s"] == "c"
    assert json.loads(queue.meta(job_id) or b"")["status"] == "REVOKED"
    assert (queue.listed(), queue.held()) == ([], {})


def test_a_job_that_ends_without_its_process_has_its_last_run(queue: Queue) -> None:
    run = Run("1700000000000000", "0.5", "1,2,0,30,0")
    doomed, cancelled = queue.submit_one(), queue.submit_one()
    first, second = queue.claim().jobs
    queue.cancel(cancelled)
    assert queue.release(second, mode="alone", run=run) == ["cancelled"]
    assert queue.release(first, mode="crash", losses=1, run=run) == ["queued"]
    assert {"st", "dw", "tm"}.isdisjoint(queue.record(doomed)), "it waits again"
    assert queue.release(queue.claim_one(), mode="crash", losses=1, run=run) == ["dead"]
    for job_id in (doomed, cancelled):
        record = queue.record(job_id)
        assert Run(record["st"], record["dw"], record["tm"]) == run


def test_a_record_says_which_workers_had_the_attempts_before(queue: Queue) -> None:
    job_id = queue.submit_one()
    queue.release(queue.claim_one(owner="a"), mode="alone")
    assert queue.record(job_id)["o"] == "a"
    queue.release(queue.claim_one(owner="b"))  # in order, so it was no attempt
    queue.release(queue.claim_one(owner="c"), mode="alone")
    for worker in ("d", "e", "f", "g"):
        queue.release(queue.claim_one(owner=worker), mode="alone")
    assert queue.settle(queue.claim_one(owner="h")) == [1]
    record = queue.record(job_id)
    assert (record["o"], record["a"]) == ("h", "7")
    assert record["pa"].split("\n") == ["2 c", "3 d", "4 e", "5 f", "6 g"], "the newest five"
    job_id = queue.submit_one()
    queue.settle(queue.claim_one())
    assert "pa" not in queue.record(job_id), "one attempt costs nothing"


def test_an_owner_that_died_gives_back_all_and_only_its_own(queue: Queue) -> None:
    ids = [queue.submit_one() for _ in range(6)]
    mine = [*queue.claim(2, owner="dead").jobs]
    others = queue.claim(2, owner="alive").jobs
    mine += queue.claim(2, owner="dead").jobs
    assert queue.release_owner("dead", mode="lost") == 4
    assert queue.release_owner("dead", mode="lost") == 0
    again = queue.claim()
    assert again.ids == [ids[0], ids[1], ids[4], ids[5]], "in the order of their claims"
    assert {job.alone for job in again.jobs} == {"1"}
    assert queue.settle(*mine) == [0] * 4
    assert queue.settle(*others) == [1, 1]


def test_an_owner_keeps_what_it_names(queue: Queue) -> None:
    ids = [queue.submit_one() for _ in range(3)]
    known = queue.claim(2, owner="w").jobs
    queue.claim(1, owner="w")
    assert queue.release_owner("w", *(job.token for job in known)) == 1
    assert queue.held().keys() == set(ids[:2])
    again = queue.claim_one()
    assert (again.id, again.attempts) == (ids[2], 1)


def test_ids_that_do_not_sort_by_time_are_given_back_in_order_too(queue: Queue) -> None:
    for job_id in ("m", "a", "z", "b"):
        queue.submit_one(id=job_id)
    queue.claim(owner="w", lease_us=0)
    assert queue.sweep()[1] == 4
    assert queue.claim(owner="w").ids == ["m", "a", "z", "b"]
    assert queue.release_owner("w") == 4
    assert queue.claim().ids == ["m", "a", "z", "b"]


def test_a_sweep_reaps_leases_that_ran_out_and_no_others(queue: Queue) -> None:
    ids = [queue.submit_one() for _ in range(4)]
    queue.claim(2, lease_us=0)
    queue.claim(2)
    assert queue.sweep() == (0, 2, -1, 2)
    assert queue.sweep() == (0, 0, -1, 2)
    again = queue.claim()
    assert again.ids == ids[:2]
    assert {job.alone for job in again.jobs} == {"1"}


def test_a_sweep_that_may_not_reap_reaps_nothing(queue: Queue) -> None:
    job_id = queue.submit_one()
    leased = queue.claim_one(lease_us=0)
    assert queue.sweep(reap=False) == (0, 0, -1, 0)
    assert list(queue.held()) == [job_id]
    assert queue.settle(leased) == [1]


def test_a_sweep_is_bounded(queue: Queue) -> None:
    for _ in range(10):
        queue.submit_one()
    queue.claim(lease_us=0)
    assert [queue.sweep(limit=4)[1] for _ in range(4)] == [4, 4, 2, 0]


def test_what_is_reaped_alone_too_often_is_a_dead_letter(queue: Queue) -> None:
    job_id = queue.submit_one()
    for _ in range(MAX_CRASHES):
        leased = queue.claim_one(lease_us=0)
        assert queue.isolate(leased, IN_EITHER) == EXCLUSIVE
        assert queue.sweep()[1] == 1
    assert list(queue.dead_letters()) == [job_id]
    assert queue.claim().jobs == []


def test_jobs_that_a_dead_owner_only_held_are_never_charged(queue: Queue) -> None:
    ids = [queue.submit_one() for _ in range(4)]
    queue.release(*queue.claim().jobs, mode="alone")
    for _ in range(3 * MAX_CRASHES):
        assert [job.alone for job in queue.claim(owner="w").jobs] == ["1"] * 4
        assert queue.release_owner("w", mode="lost") == 4
    assert all("k" not in queue.record(job_id) for job_id in ids)
    queue.settle_all()


def test_what_began_isolated_in_a_lost_worker_runs_exclusively_next(queue: Queue) -> None:
    queue.submit_one()
    leased = queue.claim_one(owner="w")
    assert queue.isolate(leased, IN_PROCESS) == ISOLATED
    queue.release_owner("w", mode="lost")
    leased = queue.claim_one(owner="w")
    assert leased.alone == "2"
    # The mark of an earlier claim says nothing of this one.
    queue.release_owner("w", mode="lost")
    assert "k" not in queue.record(leased.id)
    leased = queue.claim_one(owner="w")
    assert queue.isolate(leased, IN_WORKER) == EXCLUSIVE
    queue.release_owner("w", mode="lost")
    leased = queue.claim_one(owner="w")
    assert (leased.alone, queue.record(leased.id)["k"]) == ("2", "1")
    assert queue.settle(leased) == [1]


def test_a_job_that_has_left_its_process_is_not_charged_for_its_worker(queue: Queue) -> None:
    job_id = queue.submit_one()
    leased = queue.claim_one(owner="w")
    queue.isolate(leased, IN_WORKER)
    assert queue.isolate(leased, ISOLATION_ENDS) == ISOLATED
    queue.release_owner("w", mode="lost")
    assert "k" not in queue.record(job_id)
    queue.settle_all()


def test_of_one_host_one_job_at_a_time_runs_exclusively(queue: Queue) -> None:
    queue.submit(Job(), Job(), Job())
    first, second, third = queue.claim().jobs
    assert queue.isolate(first, IN_EITHER) == EXCLUSIVE
    assert queue.isolate(first, IN_WORKER) == EXCLUSIVE, "a repeat is granted"
    assert queue.isolate(second, IN_WORKER) == HOST_TAKEN
    assert queue.isolate(second, IN_EITHER) == ISOLATED
    assert queue.isolate(third, IN_WORKER, host="there") == EXCLUSIVE
    queue.isolate(first, ISOLATION_ENDS)
    assert queue.isolate(second, IN_WORKER) == EXCLUSIVE
    queue.settle(second)
    assert queue.isolate(first, IN_WORKER) == EXCLUSIVE
    assert queue.isolate(second, IN_WORKER) == FENCED
    assert queue.isolate(first, ISOLATION_ENDS) == ISOLATED
    assert queue.settle(first, third) == [1, 1]


def test_a_reserved_host_is_taken_and_charges_nothing(queue: Queue) -> None:
    queue.submit(Job(), Job(), Job())
    for job in queue.claim(owner="w").jobs:
        queue.isolate(job, IN_PROCESS)
    queue.release_owner("w", mode="lost")
    first, second, third = queue.claim(owner="w").jobs
    assert queue.isolate(first, RESERVED) == EXCLUSIVE
    assert queue.isolate(second, RESERVED) == HOST_TAKEN
    assert queue.isolate(second, IN_WORKER) == HOST_TAKEN
    assert queue.isolate(third, RESERVED, host="there") == EXCLUSIVE
    assert queue.isolate(first, ISOLATION_ENDS) == ISOLATED
    assert queue.isolate(second, RESERVED) == EXCLUSIVE
    queue.release_owner("w", mode="lost")
    again = queue.claim().jobs
    assert [job.alone for job in again] == ["2"] * 3
    assert all("k" not in queue.record(job.id) for job in again)
    queue.settle(*again)


def test_a_job_whose_worker_is_lost_again_and_again_is_withheld_and_then_charged(
    queue: Queue,
) -> None:
    good, bad = queue.submit_one(), queue.submit_one()
    for losses in range(10):
        claimed = queue.claim(owner="w").jobs
        assert [job.id for job in claimed] == [good, bad]
        assert all(job.raw for job in claimed), losses
        queue.release_owner("w", mode="lost")
    for charged in range(MAX_CRASHES):
        claimed = queue.claim(owner="w").jobs
        assert [job.alone for job in claimed] == ["3"] * 2
        assert [job.raw for job in claimed] == [b""] * 2
        assert queue.isolate(claimed[1], RESERVED) == EXCLUSIVE
        assert queue.isolate(claimed[1], IN_WORKER) == EXCLUSIVE
        assert queue.record(bad).get("k", "0") == str(charged)
        queue.release_owner("w", mode="lost")
    assert list(queue.dead_letters()) == [bad]
    assert "k" not in queue.record(good)
    (last,) = queue.claim().jobs
    assert last.id == good
    assert queue.settle(last) == [1]
    assert queue.requeue(bad) == ["queued"]
    (again,) = queue.claim().jobs
    assert again.raw, "a dead letter that is queued again begins anew"
    queue.settle(again)


def test_a_job_that_an_older_version_wrote_is_charged_once_it_is_marked(queue: Queue) -> None:
    job_id = queue.submit_one()
    queue.client.hset(keys.job(job_id), mapping={"x": "1", "k": "1"})
    queue.claim_one(owner="old")
    queue.release_owner("old", mode="lost")
    assert queue.record(job_id)["k"] == "1"
    for _ in range(MAX_CRASHES - 1):
        queue.isolate(queue.claim_one(owner="w"), IN_EITHER)
        queue.release_owner("w", mode="lost")
    assert list(queue.dead_letters()) == [job_id]


def test_a_sweep_promotes_what_is_due_and_says_when_the_next_is(queue: Queue) -> None:
    due = queue.submit_one(delay_us=1, step=3)
    later = queue.submit_one(delay_us=3_600_000_000)
    assert queue.claim().jobs == []
    assert (queue.record(due)["s"], queue.record(later)["s"]) == ("d", "d")
    promoted, _, next_us, left = queue.sweep(reap=False)
    assert (promoted, left) == (1, 1)
    assert 3_590_000_000 < next_us <= 3_600_000_000
    assert queue.record(due)["s"] == "q"
    assert queue.place(due) == 1
    assert queue.claim().ids == [due]
    assert list(queue.parked()) == [later]


def test_delayed_jobs_join_in_the_order_in_which_they_are_due(queue: Queue) -> None:
    late, early = (queue.submit_one(delay_us=10**12) for _ in range(2))
    waiting = queue.submit_one()
    # As though their times had come.
    queue.client.zadd(keys.delayed(queue.name), {late: 2, early: 1})
    while len(queue.parked()):
        queue.sweep()
    assert queue.claim().ids == [waiting, early, late]


def test_a_retry_waits_and_comes_back_with_its_attempts(queue: Queue) -> None:
    job_id = queue.submit_one()
    leased = queue.claim_one()
    error = '{"type":"transient-error","message":"busy","retryable":true}'
    assert queue.settle(leased, state="f", meta="", extra=("e", error), retry_us="1") == [4]
    record = queue.record(job_id)
    assert (record["s"], record["e"], record["a"]) == ("d", error, "1")
    assert (queue.held(), list(queue.parked())) == ({}, [job_id])
    assert queue.client.ttl(keys.job(job_id)) == -1
    assert queue.meta(job_id) is None
    assert queue.sweep()[0] == 1
    again = queue.claim_one()
    assert (again.attempts, again.raw) == (2, leased.raw)


def test_a_job_put_off_for_its_eta_is_charged_no_attempt(queue: Queue) -> None:
    job_id = queue.submit_one()
    assert queue.settle(queue.claim_one(), state="d", meta="", retry_us="1") == [4]
    record = queue.record(job_id)
    assert (record["s"], record["a"]) == ("d", "0")
    assert "e" not in record
    queue.sweep()
    assert queue.claim_one().attempts == 1


def test_records_and_messages_that_somebody_deleted_do_no_harm(queue: Queue) -> None:
    gone, kept, parked = queue.submit_one(), queue.submit_one(), queue.submit_one(delay_us=1)
    raw = queue.listed()[0]
    first, second = queue.claim(lease_us=0).jobs
    queue.client.delete(keys.job(gone), keys.job(parked))
    queue.client.hdel(keys.held(queue.name), kept)
    assert queue.sweep()[:2] == (1, 2)
    assert queue.record(kept)["s"] == "f", "what can never run ends"
    assert raw in queue.listed(), "a message without a record is as a stock client's"
    assert sorted(queue.claim().ids) == sorted([gone, parked])
    assert queue.settle(first, second) == [0, 2]


def test_what_ended_elsewhere_is_neither_reaped_nor_promoted(queue: Queue) -> None:
    leased, parked = queue.submit_one(), queue.submit_one(delay_us=1)
    queue.claim_one(lease_us=0)
    for job_id in (leased, parked):
        queue.client.hset(keys.job(job_id), "s", "s")
    assert queue.sweep() == (0, 1, -1, 0)
    assert (queue.held(), queue.parked(), queue.listed()) == ({}, {}, [])


def test_a_retry_of_a_message_that_somebody_deleted_ends_as_failed(queue: Queue) -> None:
    job_id = queue.submit_one()
    leased = queue.claim_one()
    queue.client.hdel(keys.held(queue.name), job_id)
    assert queue.settle(leased, state="f", extra=("e", "{}"), retry_us="1") == [1]
    assert queue.record(job_id)["s"] == "f"
    assert queue.parked() == {}
