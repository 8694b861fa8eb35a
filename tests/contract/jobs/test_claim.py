"""jobs/claim.lua: which jobs it takes, in which order, and what becomes of all others."""

from __future__ import annotations

import json

import pytest

from headrace.jobs.trace_context import read_trace
from headrace.redis import keys
from tests.harness.clients.script_calls import STARTED, Job, Queue, foreign

pytestmark = pytest.mark.leaves_keys


def test_first_in_is_first_out(queue: Queue) -> None:
    ids = [queue.submit_one() for _ in range(10)]
    assert queue.claim(4).ids == ids[:4]
    assert queue.claim(4).ids == ids[4:8]
    claimed = queue.claim(4)
    assert claimed.ids == ids[8:]
    assert claimed.left == 0


def test_better_priorities_go_first_and_share_a_batch(queue: Queue) -> None:
    ids = {step: [queue.submit_one(step=step) for _ in range(3)] for step in (9, 3, 0, 6)}
    in_order = ids[0] + ids[3] + ids[6] + ids[9]
    first = queue.claim(7)
    assert first.ids == in_order[:7]
    assert first.left == 5
    assert queue.claim(7).ids == in_order[7:]


def test_an_empty_queue_gives_nothing_and_writes_nothing(queue: Queue) -> None:
    claimed = queue.claim()
    assert (claimed.left, claimed.refused, claimed.jobs) == (0, 0, [])
    assert queue.client.dbsize() == 0


def test_a_claim_leases_and_says_what_a_worker_needs(queue: Queue) -> None:
    job = Job(ttl_s=77)
    ((_, created, _),) = queue.submit(job)
    leased = queue.claim_one(owner="worker-1")
    assert leased.raw == queue.message(job)
    assert (leased.id, leased.created, leased.attempts) == (job.id, str(created), 1)
    assert (leased.alone, leased.retries) == ("", "")
    assert (leased.step, leased.since) == (0, "")
    assert queue.held() == {job.id: leased.raw}
    record = queue.record(job.id)
    assert (record["s"], record["t"], record["o"]) == ("r", leased.token, "worker-1")
    assert "st" not in record, "it has not begun to run"


def test_a_claim_forgets_the_start_of_the_attempt_before(queue: Queue) -> None:
    job_id = queue.submit_one()
    queue.settle(queue.claim_one(), state="f", extra=("e", "{}"), retry_us="0")
    assert queue.record(job_id)["st"] == STARTED, "that of its last attempt"
    queue.sweep()
    assert queue.claim_one().attempts == 2
    assert "st" not in queue.record(job_id)


def test_a_stock_clients_message_gets_a_record_and_no_time(queue: Queue) -> None:
    raw = foreign()
    queue.push(raw, step=3)
    leased = queue.claim_one()
    assert leased.raw == raw
    assert (leased.created, leased.retries, leased.attempts) == ("", "", 1)
    assert (leased.step, leased.since) == (3, "")
    record = queue.record(leased.id)
    assert (record["m"], record["v"], record["p"], record["s"]) == ("m", "1.0", "3", "r")


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        "123456789012345678901234567890",
        "1.0000000000000000001e-300",
        '"\\u0000 \\ud83d\\ude00 é \\/ 中"',
        '{"a":[],"b":{},"c":[[]],"":null}',
        " [ 1 , 2 ]\n",
    ],
)
def test_no_input_is_encoded_again(queue: Queue, text: str) -> None:
    job = Job(input_json=text.encode())
    queue.submit(job)
    for _ in range(2):
        leased = queue.claim_one()
        assert leased.raw == queue.message(job)
        assert f'"input":{text}}}' in json.loads(leased.raw)["body"]
        queue.release(leased)


def test_a_claim_is_bounded_by_bytes(queue: Queue) -> None:
    big = b'"' + b"x" * 400_000 + b'"'
    ids = [queue.submit_one(input_json=big) for _ in range(5)]
    assert queue.claim(100).ids == ids[:2]
    assert queue.claim(100, max_bytes=100).ids == ids[2:3], "a message larger than all goes alone"
    assert queue.claim(100, max_bytes=900_000).ids == ids[3:]


def test_a_claim_stops_at_a_message_that_does_not_fit(queue: Queue) -> None:
    small, big = queue.submit_one(), queue.submit_one(input_json=b'"' + b"x" * 5000 + b'"')
    later = queue.submit_one(step=9)
    first = queue.claim(100, max_bytes=4000)
    assert (first.ids, first.left) == ([small], 2)
    assert queue.claim(100).ids == [big, later]


def test_what_is_dropped_in_one_claim_is_bounded_too(queue: Queue) -> None:
    ids = [queue.submit_one() for _ in range(700)]
    queue.cancel(*ids)
    assert queue.depth().waiting == 0
    first = queue.claim(1)
    assert 0 < first.left < 700
    assert queue.claim(1).left < first.left
    queue.submit_one()
    while not (claimed := queue.claim(1)).jobs:
        assert claimed.left
    assert queue.depth().waiting == 0


def test_large_messages_that_are_dropped_are_bounded_by_bytes(queue: Queue) -> None:
    ids = [queue.submit_one(input_json=b'"' + b"x" * 1000 + b'"') for _ in range(30)]
    size = len(queue.listed()[0])
    queue.entomb(*ids)
    assert queue.claim(max_bytes=size).left == 30 - 8


def test_repeats_are_dropped(queue: Queue) -> None:
    raw = foreign()
    queue.push(raw, raw)
    leased = queue.claim_one()
    queue.push(raw)
    assert queue.claim().jobs == [], "leased already"
    queue.settle(leased)
    queue.push(raw)
    claimed = queue.claim()
    assert (claimed.jobs, claimed.refused, claimed.left) == ([], 0, 0), "ended already"
    assert queue.dead_letters() == {}


def test_a_repeat_is_dropped_though_somebody_deleted_the_record(queue: Queue) -> None:
    raw = foreign()
    queue.push(raw)
    leased = queue.claim_one()
    queue.client.delete(keys.job(leased.id))
    queue.push(raw)
    assert queue.claim().jobs == []
    assert queue.held() == {leased.id: raw}


def test_a_repeat_of_a_delayed_message_is_dropped(queue: Queue) -> None:
    job = Job(delay_us=3_600_000_000)
    queue.submit(job)
    queue.push(queue.message(job))
    assert queue.claim().jobs == []
    assert list(queue.parked()) == [job.id]


def test_an_id_that_is_another_models_job_is_refused(queue: Queue) -> None:
    other = Queue(queue.client, "other")
    job_id = other.submit_one()
    queue.push(foreign(headers={"id": job_id}))
    claimed = queue.claim()
    assert (claimed.jobs, claimed.refused) == ([], 1)
    (letter,) = queue.dead_letters().values()
    assert letter["reason"] == b"id-in-another-queue"
    leased = other.claim_one()
    queue.push(foreign(headers={"id": job_id}))
    assert queue.claim().jobs == [], "nor while that is leased"
    assert other.settle(leased) == [1]


_PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    "parent",
    [
        _PARENT, f" \t{_PARENT} ", f"01{_PARENT[2:]}", f"cc{_PARENT[2:]}-more-of-it",
        f"cc{_PARENT[2:]}.more", f"cc{_PARENT[2:]}-a\nb", f"cc{_PARENT[2:]}-{'x' * 300}",
        f"{_PARENT}-more", f"{_PARENT}0", f"ff{_PARENT[2:]}", _PARENT.upper(), _PARENT[:-1],
        f"{_PARENT},{_PARENT}", f"\n{_PARENT}", f"{_PARENT}\n", "",
        f"00-{'0' * 32}-b7ad6b7169203331-01", f"00-{'a' * 32}-{'0' * 16}-01", 7, ["00"], {"a": 1},
    ],
)  # fmt: skip
def test_a_claim_reads_the_trace_of_a_stock_client_as_the_worker_does(
    queue: Queue, parent: object
) -> None:
    queue.push(foreign(headers={"id": "traced", "traceparent": parent}))
    queue.push(foreign(headers={"id": "plain"}))
    assert queue.claim().ids == ["traced", "plain"]
    trace = read_trace(parent)
    assert queue.record("traced").get("tr") == (trace.trace_id if trace is not None else None)
    assert "tr" not in queue.record("plain")
