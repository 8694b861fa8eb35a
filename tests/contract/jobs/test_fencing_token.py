"""Only with the token of the newest claim can a worker renew, settle or release a job."""

from __future__ import annotations

from tests.harness.clients.script_calls import LEASE_US, SUCCESS, Job, Leased, Queue


def _taken_over(queue: Queue) -> tuple[Leased, Leased]:
    """A job whose lease ran out, was reaped, and which another worker now holds."""
    queue.submit_one()
    slow = queue.claim_one(owner="slow", lease_us=0)
    assert queue.sweep()[1] == 1
    return slow, queue.claim_one(owner="other")


def test_each_claim_has_a_token_of_its_own(queue: Queue) -> None:
    queue.submit_one()
    tokens = []
    for _ in range(5):
        leased = queue.claim_one()
        tokens.append(int(leased.token))
        queue.release(leased)
    assert tokens == sorted(set(tokens))
    queue.settle(queue.claim_one())


def test_a_worker_that_lost_its_lease_can_do_nothing(queue: Queue) -> None:
    slow, other = _taken_over(queue)
    assert slow.token != other.token
    assert queue.settle(slow) == [0]
    assert queue.renew(slow, lease_us=0) == [0]
    assert queue.release(slow) == ["fenced"]
    assert queue.release(slow, mode="crash") == ["fenced"]
    assert queue.release_owner("slow") == 0
    assert queue.sweep()[1] == 0, "the renewal of the old claim shortened the new lease"
    record = queue.record(other.id)
    assert (record["s"], record["o"], record["t"]) == ("r", "other", other.token)
    assert queue.meta(other.id) is None
    assert queue.settle(other) == [1]


def test_a_worker_that_lost_its_lease_cannot_settle_what_waits_again(queue: Queue) -> None:
    queue.submit_one()
    slow = queue.claim_one(lease_us=0)
    queue.sweep()
    assert queue.settle(slow) == [0]
    assert queue.release(slow) == ["fenced"]
    assert queue.renew(slow) == [0]
    assert queue.held() == {}
    assert queue.settle(queue.claim_one()) == [1]


def test_a_worker_that_lost_its_lease_cannot_overwrite_a_result(queue: Queue) -> None:
    slow, other = _taken_over(queue)
    queue.settle(other, meta='{"status": "SUCCESS", "result": "good"}')
    assert queue.settle(slow, state="f", meta='{"status": "FAILURE"}') == [0]
    assert queue.meta(slow.id) == b'{"status": "SUCCESS", "result": "good"}'
    assert queue.record(slow.id)["s"] == "s"
    assert queue.release(slow) == ["fenced"]
    assert queue.release(other) == ["fenced"]
    assert queue.renew(other) == [0]


def test_a_release_fences_its_own_repeat_and_its_own_settlement(queue: Queue) -> None:
    queue.submit_one()
    leased = queue.claim_one()
    assert queue.release(leased) == ["queued"]
    assert queue.release(leased) == ["fenced"]
    assert queue.settle(leased) == [0]
    assert len(queue.listed()) == 1
    queue.settle(queue.claim_one())


def test_a_job_settles_once_however_often_it_is_said(queue: Queue) -> None:
    queue.submit_one()
    leased = queue.claim_one()
    assert queue.settle(leased, leased) == [1, 2], "twice in one call"
    before = queue.record(leased.id)
    assert queue.settle(leased, meta='{"status": "FAILURE"}', state="f") == [2]
    assert queue.record(leased.id) == before
    assert queue.meta(leased.id) == SUCCESS.encode()


def test_a_retry_said_twice_is_put_off_once(queue: Queue) -> None:
    queue.submit_one()
    leased = queue.claim_one()
    error = ("e", '{"type":"transient-error"}')
    assert queue.settle(leased, extra=error, retry_us="0") == [4]
    assert queue.settle(leased, extra=error, retry_us="0") == [2]
    assert queue.sweep()[0] == 1
    assert queue.settle(leased, extra=error, retry_us="0") == [0]
    again = queue.claim_one()
    assert again.attempts == 2
    assert queue.settle(leased) == [0]
    assert queue.settle(again) == [1]
    assert "e" not in queue.record(again.id), "a success keeps no error of an earlier attempt"


def test_neighbours_in_one_call_pass_and_fail_apart(queue: Queue) -> None:
    for _ in range(4):
        queue.submit_one()
    a, b, c, d = queue.claim().jobs
    queue.release(b)
    queue.settle(c)
    forged = Leased(d.raw, d.id, "999999", "", 1, alone="", retries="")
    unknown = Leased(b"", "nobody", "1", "", 1, alone="", retries="")
    assert queue.renew(a, b, c, forged, unknown) == [1, 0, 0, 0, 0]
    assert queue.settle(a, b, c, forged, unknown) == [1, 0, 2, 0, 0]
    assert queue.settle(d, queue.claim_one()) == [1, 1]


def test_a_lease_that_ran_out_may_still_be_renewed(queue: Queue) -> None:
    queue.submit_one()
    leased = queue.claim_one(lease_us=0)
    assert queue.renew(leased) == [1]
    assert queue.sweep()[1] == 0
    assert queue.settle(leased) == [1]


def test_a_lease_that_ran_out_may_still_be_settled(queue: Queue) -> None:
    queue.submit_one()
    leased = queue.claim_one(lease_us=0)
    assert queue.settle(leased) == [1]
    assert queue.sweep()[1] == 0


def test_renewing_moves_the_end_of_the_lease(queue: Queue) -> None:
    queue.submit_one()
    leased = queue.claim_one(lease_us=LEASE_US)
    end = queue.client.zscore(queue.keys[4], leased.id)
    assert queue.renew(leased, lease_us=2 * LEASE_US) == [1]
    renewed = queue.client.zscore(queue.keys[4], leased.id)
    assert isinstance(end, float)
    assert isinstance(renewed, float)
    assert renewed - end >= LEASE_US
    queue.settle(leased)


def test_calls_may_be_larger_than_lua_can_unpack(queue: Queue) -> None:
    jobs = [Job() for _ in range(4500)]
    for at in range(0, len(jobs), 500):
        queue.submit(*jobs[at : at + 500])
    leased = queue.claim(4500, max_bytes=1 << 30).jobs
    assert [job.id for job in leased] == [job.id for job in jobs]
    assert set(queue.renew(*leased)) == {1}
    assert set(queue.settle(*leased)) == {1}
    assert queue.held() == {}
