"""jobs/start.lua, and what a job looks like before it has begun in the worker that leased it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.jobs.job import Job as JobRead
from headrace.jobs.job import State
from headrace.redis import keys
from headrace.schema.serialization import job_object
from tests.harness.clients.script_calls import STARTED, Leased, Queue
from tests.harness.wait import wait_until

pytestmark = pytest.mark.leaves_keys


def read(queue: Queue, job_id: str) -> JobRead:
    """The job, which a look at it alone and its whole record tell alike."""
    _, job = queue.seen(job_id)
    return job


def listed(queue: Queue, states: str) -> list[str]:
    head: list[Any] = queue.call("queues/list_jobs", [], queue.model, "", "", 0, states, 10, 10)
    return [value.decode() for value in head[4::2]]


def outcome(queue: Queue, job_id: str) -> Any:
    return queue.call("records/outcomes", [], "", job_id)[0]


def test_a_leased_job_is_queued_until_it_begins(queue: Queue) -> None:
    queue.index_max = 10
    job_id = queue.submit_one()
    leased = queue.claim_one()
    job = read(queue, job_id)
    assert (job.state, job.attempts, job.started_us, job.place) == (State.QUEUED, 0, 0, 1)
    assert (listed(queue, "q"), listed(queue, "r")) == ([job_id], [])
    assert outcome(queue, job_id) == b"q"

    assert queue.start(leased) == 1
    job = read(queue, job_id)
    assert (job.state, job.attempts, job.place) == (State.RUNNING, 1, 0)
    assert job.started_us == int(STARTED)
    assert (listed(queue, "q"), listed(queue, "r")) == ([], [job_id])
    assert outcome(queue, job_id) == b"r"

    queue.settle(leased)
    job = read(queue, job_id)
    assert (job.state, job.attempts, job.started_us) == (State.SUCCEEDED, 1, int(STARTED))


def test_a_job_that_an_older_worker_has_leased_runs(queue: Queue) -> None:
    job_id = queue.submit_one()
    queue.claim_one()
    queue.client.hset(keys.job(job_id), "st", STARTED)
    job = read(queue, job_id)
    assert (job.state, job.attempts, job.started_us) == (State.RUNNING, 1, int(STARTED))


def test_a_short_job_has_its_start_and_its_wait_from_its_settlement(queue: Queue) -> None:
    job_id = queue.submit_one()
    queue.settle(queue.claim_one())
    job = read(queue, job_id)
    assert job.started_us == int(STARTED)
    timings = json.loads(job_object(job))["timings"]
    assert timings == {
        "queued": 1.0, "hold": 2.0, "device_wait": 6.0,
        "preprocess": 3.0, "inference": 4.0, "postprocess": 5.0,
        "total": (job.ended_us - job.created_us) / 1000,
    }  # fmt: skip


def test_what_never_ran_has_no_start(queue: Queue) -> None:
    job_id = queue.submit_one()
    queue.settle(queue.claim_one(), state="x")
    job = read(queue, job_id)
    assert (job.state, job.attempts, job.started_us) == (State.EXPIRED, 0, 0)


@pytest.mark.parametrize("lost", ["released", "claimed again", "ended", "gone"])
def test_who_has_lost_the_job_starts_nothing(queue: Queue, lost: str) -> None:
    job_id = queue.submit_one(webhook_started=True)
    leased = queue.claim_one(lease_us=0)
    if lost == "ended":
        queue.settle(leased, state="x")
    elif lost == "gone":
        queue.client.delete(keys.job(job_id))
    else:
        queue.release(leased)
    other: Leased | None = queue.claim_one() if lost == "claimed again" else None
    assert queue.start(leased) == 0
    assert "st" not in queue.record(job_id)
    assert not queue.client.exists(keys.BACKGROUND_TASKS)
    if other is not None:
        assert queue.start(other) == 1


def test_a_repeat_changes_and_tells_nothing(queue: Queue) -> None:
    queue.submit_one(webhook_started=True)
    leased = queue.claim_one()
    assert [queue.start(leased), queue.start(leased)] == [1, 0]
    assert queue.client.llen(keys.BACKGROUND_TASKS) == 1


def test_a_start_is_published(queue: Queue) -> None:
    job_id = queue.submit_one()
    leased = queue.claim_one()
    client: Any = queue.client
    with client.pubsub(ignore_subscribe_messages=True) as pubsub:
        channel = keys.progress_channel(job_id)
        pubsub.subscribe(channel)
        wait_until(lambda: len(client.pubsub_channels()) == 1, "it listens")
        queue.start(leased)
        wait_until(lambda: pubsub.get_message(timeout=0.1) is not None, "the start was heard")


@pytest.mark.parametrize("end", ["released", "lost"])
def test_a_job_that_goes_back_has_not_begun(queue: Queue, end: str) -> None:
    job_id = queue.submit_one()
    leased = queue.claim_one()
    if end == "lost":
        queue.start(leased)
    queue.release(leased, mode="free" if end == "released" else "alone")
    job = read(queue, job_id)
    assert (job.state, job.started_us) == (State.QUEUED, 0)
    assert read(queue, job_id).attempts == (0 if end == "released" else 1)
    again = queue.claim_one()
    assert read(queue, job_id).attempts == (0 if end == "released" else 1)
    queue.start(again)
    assert read(queue, job_id).attempts == (1 if end == "released" else 2)
