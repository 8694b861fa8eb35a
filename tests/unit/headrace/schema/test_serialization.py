"""The job object of a job that waits, and of a fresh job, made faster."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest
from msgspec import structs

from headrace.jobs.ids import new_ids
from headrace.jobs.job import Job, State, StoredResult, job_from_record
from headrace.redis.fields import JobField
from headrace.schema.serialization import Waiting, fresh_object, job_object

ERROR = {"type": "transient-error", "message": "try again", "retryable": True}
_ALWAYS = [
    "id", "model", "version", "status", "created_at", "started_at", "finished_at", "attempts",
    "queue_position", "batch_size", "timings", "metadata", "waiting_for", "trace_id",
    "urls",
]  # fmt: skip
WAITING_FOR = (Waiting("load"), Waiting("replica", "no worker runs"), None)
DUE_US = 1_700_000_005_250_000
RECORD = {
    JobField.MODEL: "m", JobField.VERSION: "1",
    JobField.CREATED: "1700000000000000", JobField.ATTEMPTS: "2",
    JobField.ERROR: json.dumps(ERROR),
}  # fmt: skip


def shown(state: str, place: int, **record: str) -> dict[str, Any]:
    job = job_from_record("id", {**RECORD, JobField.STATE: state, **record}, place=place)
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
        job = shown(state, place, **{JobField.STARTED: str(DUE_US)})
        assert "due_at" not in job
        assert job["error"] == ERROR
        assert job["queue_position"] == (place or None)


def test_the_trace_of_a_job_is_null_without_one() -> None:
    assert shown("q", 1)["trace_id"] is None
    assert shown("s", 0, **{JobField.TRACE: "ab" * 16})["trace_id"] == "ab" * 16


def test_the_worker_of_a_job_and_those_before_are_left_out_where_they_are_not_known() -> None:
    assert {"worker", "earlier_attempts"}.isdisjoint(shown("q", 1))
    record = {JobField.OWNER: "cpu0@b-2", JobField.EARLIER: "1 cpu0@a-1\n2 gpu 0@a-7"}
    job = shown("s", 0, **record)
    assert job["worker"] == "cpu0@b-2"
    assert job["earlier_attempts"] == [
        {"attempt": 1, "worker": "cpu0@a-1"},
        {"attempt": 2, "worker": "gpu 0@a-7"},
    ]


def test_a_job_that_was_never_tried_has_no_error() -> None:
    assert "error" not in shown("d", DUE_US, **{JobField.ERROR: ""})


@pytest.mark.parametrize("version", ["1.0", "100%s%", "\x7f", 'ä"\n'])
def test_a_fresh_object_is_the_job_object(version: str) -> None:
    ids = [*new_ids(2), "mine:1@x.y_z"]
    times = (1_763_700_000_000_000, 1_763_700_000_000_001, 1_763_700_059_999_999)
    states = (State.QUEUED, State.SCHEDULED)
    for job_id, created_us, state, waiting_for in product(ids, times, states, WAITING_FOR):
        plain = Job(job_id, "m", version, state, created_us)
        line = fresh_object("m", version, state, created_us, waiting_for)(job_id)
        assert line == job_object(plain, waiting_for=waiting_for)
        plain.trace_id = "0af7651916cd43dd8448eb211c80319c"
        traced = fresh_object("m", version, state, created_us, waiting_for, trace_id=plain.trace_id)
        assert traced(job_id) == job_object(plain, waiting_for=waiting_for)


@pytest.mark.parametrize(
    "job",
    [
        Job("a", "m", "1.0", State.SUCCEEDED, 1, 2, 1_763_700_000_000_009, attempts=1),
        Job(
            "mine:1@x.y_z", "m", 'ä"\n%s', State.SUCCEEDED, 1_763_700_000_000_001,
            1_763_700_000_999_999, 1_763_700_001_000_000, attempts=3, batch_size=8, place=2,
            metadata_json='{"a": "ä"}', request_hash="x", cancel_requested=True, due_us=1,
        ),
        Job("b", "m", "1", State.SUCCEEDED, 5, 5, 5, dead_lettered=True, batch_padding=2),
        Job("c", "m", "1", State.SUCCEEDED, 5, 5, 5, stored=StoredResult("s:x", 9, "image/png")),
        Job("d", "m", "1", State.SUCCEEDED, 5, 0, 6, stages_json='[{"name": "s"}]'),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("meta", "kind", "result"),
    [
        ('{"status": "SUCCESS", "result": {"x" : [1, "ä"]}}', "", '{"x" : [1, "ä"]}'),
        ('{"result": {"__type__": "base64", "__value__": "AA=="}}', "image/png",
         '{"content_type":"image/png","base64":"AA=="}'),
        ("", "", "null"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("timings", ["1.000,0.000,0.250,12.345,0.001", ""])
def test_a_job_that_has_succeeded_has_the_members_of_any_other_and_its_result(
    job: Job, meta: str, kind: str, result: str, timings: str
) -> None:
    whole = structs.replace(job, meta=meta, result_type=kind, timings=timings)
    without = json.loads(job_object(whole, with_result=False))
    shown = job_object(whole)
    if job.stored is not None:
        result = "null"
    assert json.loads(shown) == {**without, "result": json.loads(result)}
    assert f'"result":{result}'.encode() in shown, "spliced in as it was written"
    assert list(json.loads(shown))[: len(_ALWAYS)] == _ALWAYS
