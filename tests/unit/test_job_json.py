"""The job object of a job that waits, and of a fresh job, made faster."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest

from headrace.job_json import fresh_line, job_object
from headrace.jobs import Job, State, job_from_record, new_ids
from headrace.keys import F

ERROR = {"type": "transient-error", "message": "try again", "retryable": True}
DUE_US = 1_700_000_005_250_000
RECORD = {
    F.MODEL: "m", F.VERSION: "1", F.CREATED: "1700000000000000", F.ATTEMPTS: "2",
    F.ERROR: json.dumps(ERROR),
}  # fmt: skip


def shown(state: str, place: int, **record: str) -> dict[str, Any]:
    job = job_from_record("id", {**RECORD, F.STATE: state, **record}, place=place)
    found: dict[str, Any] = json.loads(job_object(job))
    return found


def test_a_job_that_waits_for_another_try_says_until_when_and_why() -> None:
    job = shown("d", DUE_US)
    assert (job["status"], job["attempts"]) == ("scheduled", 2)
    assert job["due_at"] == "2023-11-14T22:13:25.250000+00:00"
    assert job["error"] == ERROR
    assert job["queue_position"] is None


def test_a_job_that_is_queued_or_runs_again_keeps_the_error_of_its_last_try() -> None:
    for state, place in (("q", 7), ("r", 0)):
        job = shown(state, place)
        assert "due_at" not in job
        assert job["error"] == ERROR
        assert job["queue_position"] == (place or None)


def test_a_job_that_was_never_tried_has_no_error() -> None:
    assert "error" not in shown("d", DUE_US, **{F.ERROR: ""})


@pytest.mark.parametrize("version", ["1.0", "100%s%", "\x7f", 'ä"\n'])
def test_a_fresh_line_is_the_job_object(version: str) -> None:
    ids = [*new_ids(2), "mine:1@x.y_z"]
    times = (1_763_700_000_000_000, 1_763_700_000_000_001, 1_763_700_059_999_999)
    states = (State.QUEUED, State.SCHEDULED)
    for job_id, created_us, state, has_replica in product(ids, times, states, (True, False)):
        plain = Job(job_id, "m", version, state, created_us)
        line = fresh_line(job_id, "m", version, state, created_us, has_replica)
        assert line == job_object(plain, has_replica=has_replica)
