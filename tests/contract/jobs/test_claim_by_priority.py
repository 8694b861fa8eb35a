"""jobs/claim.lua: how many of each step are taken, and what goes before better jobs after all."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.redis import keys
from tests.harness.clients.script_calls import Queue, foreign

pytestmark = pytest.mark.leaves_keys

MINUTE_US = 60_000_000


def aged(queue: Queue, *ids: str, by_us: int = 2 * MINUTE_US, field: str = "c") -> None:
    """The jobs were created (or have joined their list) so much earlier."""
    for job_id in ids:
        now = int(queue.record(job_id).get(field) or queue.record(job_id)["c"])
        queue.client.hset(keys.job(job_id), field, now - by_us)


def test_each_step_has_a_most_of_its_own(queue: Queue) -> None:
    ids = {step: [queue.submit_one(step=step) for _ in range(3)] for step in keys.STEPS}
    claimed = queue.claim(5, most=(4, 4, 4))
    assert claimed.ids == [*ids[0], ids[3][0]]
    assert [job.step for job in claimed.jobs] == [0, 0, 0, 3]
    assert claimed.lefts == (0, 2, 3, 3)
    assert queue.claim(2, most=(2, 2, 0)).ids == ids[3][1:]
    assert queue.claim(8, most=(8, 8, 0)).ids == ids[6], "there is room, but none for step 9"
    assert queue.claim(8, most=(0, 0, 0)).ids == []
    assert queue.claim(8, most=(8, 8, 2)).ids == ids[9][:2]


def test_what_has_waited_too_long_is_taken_before_better_jobs(queue: Queue) -> None:
    late, later = (queue.submit_one(step=9) for _ in range(2))
    better = [queue.submit_one() for _ in range(5)]
    aged(queue, late, later)
    assert queue.claim(2).ids == better[:2], "without a bound it waits for ever"
    assert queue.claim(1, yield_us=3 * MINUTE_US).ids == better[2:3], "not yet"
    claimed = queue.claim(1, yield_us=MINUTE_US)
    assert claimed.ids == [late, better[3]], "one, beside as many as there is room for"
    assert claimed.lefts == (1, 0, 0, 1)
    assert queue.claim(0, yield_us=MINUTE_US).ids == [later]


def test_with_room_for_all_the_order_stays(queue: Queue) -> None:
    late, better = queue.submit_one(step=9), queue.submit_one()
    aged(queue, late)
    assert queue.claim(2, yield_us=MINUTE_US).ids == [better, late]


def test_of_several_steps_the_one_that_has_waited_longest_beyond_is_taken(queue: Queue) -> None:
    six, nine, three = (queue.submit_one(step=step) for step in (6, 9, 3))
    better = [queue.submit_one() for _ in range(4)]
    aged(queue, nine, by_us=2 * MINUTE_US)
    aged(queue, six, by_us=3 * MINUTE_US)
    order = [queue.claim(1, yield_us=MINUTE_US).ids for _ in range(3)]
    assert order == [[six, better[0]], [nine, better[1]], [better[2]]]
    assert three not in queue.held()


def test_a_delayed_job_counts_from_when_it_joined_its_list(queue: Queue) -> None:
    late = queue.submit_one(step=9, delay_us=1)
    while queue.sweep()[0] == 0:
        pass
    better = [queue.submit_one() for _ in range(2)]
    aged(queue, late)
    assert queue.claim(1, yield_us=MINUTE_US).ids == better[:1]
    aged(queue, late, field="j")
    claimed = queue.claim(1, yield_us=MINUTE_US)
    assert claimed.ids == [late, better[1]]
    assert claimed.jobs[0].since == queue.record(late)["j"]


def test_a_stock_clients_job_counts_from_when_it_was_first_passed_over(queue: Queue) -> None:
    first, second = foreign(), foreign()
    queue.push(first, second, step=6)
    better = [queue.submit_one() for _ in range(5)]
    assert queue.claim(1, yield_us=MINUTE_US).ids == better[:1]
    noted: Any = queue.client.hget(keys.count(queue.name), "passed6")
    assert noted is not None
    assert queue.claim(1, yield_us=MINUTE_US).ids == better[1:2]
    assert queue.client.hget(keys.count(queue.name), "passed6") == noted, "it counts on"
    taken, at = noted.decode().split()
    past = int(at) - 2 * MINUTE_US
    queue.client.hset(keys.count(queue.name), "passed6", f"{taken} {past}")
    claimed = queue.claim(1, yield_us=MINUTE_US)
    assert claimed.jobs[0].raw == first
    assert (claimed.jobs[0].since, claimed.jobs[0].created) == (str(past), "")
    assert queue.claim(1, yield_us=MINUTE_US).ids == better[3:4], "the next counts from now"


def test_what_is_no_job_any_more_keeps_no_old_one_from_its_turn(queue: Queue) -> None:
    queue.push(b"not json", step=9)
    ids = [queue.submit_one(step=9) for _ in range(20)]
    queue.cancel(*ids[:10])
    queue.entomb(*ids[10:19])
    better = queue.submit_one()
    aged(queue, ids[19])
    claimed = queue.claim(1, yield_us=MINUTE_US)
    assert (claimed.ids, claimed.refused) == ([ids[19], better], 1)
    assert queue.depth().waiting == 0


def test_the_bytes_of_a_claim_bound_it_still(queue: Queue) -> None:
    late = queue.submit_one(step=9, input_json=b'"' + b"x" * 5000 + b'"')
    better = [queue.submit_one() for _ in range(2)]
    aged(queue, late)
    assert queue.claim(1, yield_us=MINUTE_US, max_bytes=4000).ids == [late]
    assert queue.claim(2).ids == better


def test_an_overdue_job_that_is_given_back_is_overdue_still(queue: Queue) -> None:
    late = queue.submit_one(step=9)
    for _ in range(3):
        queue.submit_one()
    aged(queue, late)
    first = queue.claim(1, yield_us=MINUTE_US).jobs[0]
    assert queue.release(first) == ["queued"]
    assert queue.claim(1, yield_us=MINUTE_US).jobs[0].id == late
