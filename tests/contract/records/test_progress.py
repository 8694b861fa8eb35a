"""jobs/progress.lua: progress is written only for the worker that holds the job."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.jobs.job import Job as JobRead
from headrace.jobs.job import State
from headrace.jobs.progress import Progress
from headrace.queue.following.watcher import read_status
from headrace.redis import keys
from tests.harness.clients.script_calls import Job, Leased, Queue
from tests.harness.wait import wait_until

HALF = '{"fraction":0.5}'


def status(queue: Queue, job_id: str) -> JobRead:
    """How a job stands, which a look at it alone and its whole record tell alike."""
    found, _ = queue.seen(job_id)
    return found


def test_it_stands_in_the_record_while_the_job_runs(queue: Queue) -> None:
    job_id = queue.submit_one()
    leased = queue.claim_one()
    queue.start(leased)
    assert queue.progress(leased, f"1 {HALF}") == 1
    assert status(queue, job_id).progress == Progress(0.5)
    assert queue.progress(leased, '2 {"fraction":null,"message":"nearly"}') == 1
    found = status(queue, job_id)
    assert (found.progress, found.progress_mark) == (Progress(None, message="nearly"), "2")
    assert queue.settle(leased) == [1]
    assert status(queue, job_id).progress is None
    assert queue.progress(leased, f"3 {HALF}") == 0


@pytest.mark.parametrize("lost", ["released", "claimed by another", "put off", "cancelled", "gone"])
def test_who_has_lost_the_job_says_nothing(queue: Queue, lost: str) -> None:
    job_id = queue.submit_one()
    leased = queue.claim_one(lease_us=0)
    queue.progress(leased, f"1 {HALF}")
    if lost == "put off":
        queue.settle(leased, state="f", extra=("e", "{}"), retry_us="1000000000")
    elif lost == "cancelled":
        queue.cancel(job_id)
        queue.settle(leased)
    elif lost == "gone":
        queue.client.delete(keys.job(job_id))
        queue.client.delete(*queue.keys)
    else:
        queue.release(leased)
    other: Leased | None = queue.claim_one() if lost == "claimed by another" else None
    assert queue.progress(leased, f"2 {HALF}") == 0
    if lost != "gone":
        assert status(queue, job_id).progress is None
    if other is not None:
        assert queue.progress(other, f"1 {HALF}") == 1
        queue.settle(other)
    queue.client.delete(keys.delayed(queue.name), keys.parked(queue.name), keys.job(job_id))
    queue.settle_all()


def test_only_a_poke_is_published(queue: Queue) -> None:
    job_id = queue.submit_one()
    leased = queue.claim_one()
    client: Any = queue.client
    with client.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe(keys.progress_channel(job_id))
        wait_until(
            lambda: client.pubsub_channels() == [keys.progress_channel(job_id).encode()],
            "it listens",
        )
        queue.progress(leased, f"1 {HALF}")
        # The first that comes may be the subscription, which is kept from us.
        message: Any = wait_until(lambda: heard.get_message(timeout=1), "it is told")
    assert message["data"] == b""
    queue.settle(leased)


def test_a_look_tells_places_and_times_as_the_record_does(queue: Queue) -> None:
    ids = queue.submit(Job(step=3), Job(), Job(delay_us=10**9), Job())
    assert ids is not None
    rows = [read_status("", row) for row in queue.watch(*_ids(queue), "nobody")]
    assert rows[-1] is None
    known = [row for row in rows if row is not None]
    assert {row.state for row in known} == {State.QUEUED, State.SCHEDULED}
    assert sorted(row.place for row in known) == [0, 1, 2, 3]
    for job_id in _ids(queue):
        status(queue, job_id)
    queue.purge()


def _ids(queue: Queue) -> list[str]:
    return [key.decode().removeprefix("hr:job:") for key in queue.client.scan_iter("hr:job:*")]


def test_a_record_of_the_wrong_type_hinders_no_neighbour(queue: Queue) -> None:
    queue.client.set(keys.job("odd"), "no record", ex=60)
    job_id = queue.submit_one()
    odd, good = queue.watch("odd", job_id)
    assert odd == 0
    assert read_status(job_id, good) is not None
    leased = queue.claim_one()
    assert (
        queue.call("records/progress", [], "odd", "1", "1 {}", leased.id, leased.token, "1 {}") == 1
    )
    queue.settle(leased)
