"""Ids, states, options and records of jobs."""

from __future__ import annotations

import os
import uuid
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.jobs.ids import ids_on_demand, new_id, new_ids
from headrace.jobs.job import State, batch_text, iso, job_from_record
from headrace.jobs.options import JobOptions
from headrace.redis.fields import JobField


def test_an_id_is_a_uuid7_of_this_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = 1_763_700_000_123
    monkeypatch.setattr("headrace.jobs.ids.time.time_ns", lambda: now_ms * 1_000_000 + 999_999)
    ids = {*(new_id() for _ in range(1000)), *new_ids(1000), *islice(ids_on_demand(), 1000)}
    assert len(ids) == 3000
    for text in ids:
        value = uuid.UUID(text)
        assert str(value) == text
        assert value.version == 7
        assert value.variant == uuid.RFC_4122
        assert value.int >> 80 == now_ms


def test_a_forked_process_has_ids_of_its_own() -> None:
    new_id()  # so that some are drawn
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, new_id()[14:].encode())
        os._exit(0)
    os.close(writer)
    try:
        with open(reader, "rb") as told:
            theirs = told.read().decode()
    finally:
        os.waitpid(child, 0)
    assert theirs
    assert theirs not in {new_id()[14:] for _ in range(200)}


def test_ids_sort_by_their_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(n * 1_000_000 for n in (1, 2, 1 << 40, (1 << 40) + 1))
    monkeypatch.setattr("headrace.jobs.ids.time.time_ns", lambda: next(times))
    ids = [new_id() for _ in range(4)]
    assert all(earlier < later for earlier, later in pairwise(ids))


def test_all_bits_of_an_id_but_version_and_variant_vary() -> None:
    ids = [uuid.UUID(text).int for text in new_ids(400)]
    ever_one = 0
    ever_zero = 0
    for value in ids:
        ever_one |= value
        ever_zero |= ~value
    random_bits = ((1 << 80) - 1) & ~(0xF << 76) & ~(0x3 << 62)
    assert ever_one & random_bits == random_bits
    assert ever_zero & random_bits == random_bits


@given(us=st.integers(0, 4_102_444_800_000_000))
def test_times_are_exact_to_the_microsecond(us: int) -> None:
    when = datetime.fromisoformat(iso(us))
    assert (when - datetime(1970, 1, 1, tzinfo=UTC)) == timedelta(microseconds=us)
    assert iso(us).endswith("+00:00")


def test_states_have_the_words_of_the_api() -> None:
    assert {state: (state.status, state.final) for state in State} == {
        State.QUEUED: ("queued", False),
        State.SCHEDULED: ("scheduled", False),
        State.RUNNING: ("running", False),
        State.SUCCEEDED: ("succeeded", True),
        State.FAILED: ("failed", True),
        State.EXPIRED: ("expired", True),
        State.CANCELLED: ("cancelled", True),
    }


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 10},
        {"priority": -1},
        {"priority": "1"},
        {"expires": 0},
        {"expires": -1},
        {"expires": 3e6},
        {"countdown": -0.1},
        {"timeout": 0},
        {"result_ttl": 0},
        {"result_ttl": 1.5},
        {"max_retries": -1},
        {"max_retries": 101},
        {"retry_backoff": -1},
        {"retry_backoff_max": 86_401},
        {"metadata": []},
        {"unknown": 1},
    ],
    ids=lambda options: "-".join(f"{name}={value}" for name, value in options.items()),
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(options, JobOptions)


def test_options_within_range_are_taken() -> None:
    given_options = {
        "priority": 9, "expires": 0.5, "countdown": 0, "timeout": 1, "result_ttl": 1,
        "max_retries": 0, "retry_backoff": 0, "retry_backoff_max": 86_400, "metadata": {"a": [1]},
    }  # fmt: skip
    options = msgspec.convert(given_options, JobOptions)
    not_given = {"webhook": None, "webhook_events": None}
    assert msgspec.to_builtins(options) == given_options | not_given


def test_a_record_that_was_just_submitted() -> None:
    record = {
        JobField.STATE: "q",
        JobField.CREATED: "1700000000000001",
        JobField.MODEL: "m",
        JobField.VERSION: "2",
    }
    job = job_from_record("a", record, place=3)
    assert (job.id, job.model, job.version, job.state) == ("a", "m", "2", State.QUEUED)
    assert (job.created_us, job.started_us, job.ended_us) == (1700000000000001, 0, 0)
    assert (job.attempts, job.place, job.batch_size) == (0, 3, 0)
    assert (job.timings, job.result_json, job.traceback) == ("", None, None)
    assert not job.dead_lettered
    assert not job.cancel_requested


def test_a_record_that_ended_well() -> None:
    record = {
        JobField.STATE: "s", JobField.CREATED: "1000", JobField.STARTED: "2000",
        JobField.ENDED: "21500", JobField.ATTEMPTS: "2",
        JobField.BATCH: "8", JobField.TIMINGS: "1.000,2.250,3.000,4.000,5.000",
        JobField.RESULT_TYPE: "image/png", JobField.CANCEL: "1", JobField.DEVICE_WAIT: "6.500",
    }  # fmt: skip
    result = '{"big": 123456789012345678901, "empty": [] }'
    job = job_from_record("a", record, f'{{"status": "SUCCESS", "result": {result}}}')
    assert job.result_json == result.encode(), "the result is not encoded again"
    assert (job.attempts, job.batch_size, job.result_type) == (2, 8, "image/png")
    assert job.cancel_requested


@pytest.mark.parametrize(("size", "padding"), [(8, 0), (5, 3)])
def test_the_record_tells_size_and_padding_of_the_batch(size: int, padding: int) -> None:
    record = {JobField.STATE: "s", JobField.BATCH: str(batch_text(size, padding))}
    job = job_from_record("a", record)
    assert (job.batch_size, job.batch_padding) == (size, padding)


def test_a_record_that_failed() -> None:
    record = {
        JobField.STATE: "f",
        JobField.CREATED: "1",
        JobField.ERROR: '{"type":"x"}',
        JobField.DEAD: "1",
    }
    meta = '{"status": "FAILURE", "result": {"exc_type": "E"}, "traceback": "Traceback …"}'
    job = job_from_record("a", record, meta)
    assert job.result_json is None
    assert (job.error_json, job.traceback) == ('{"type":"x"}', "Traceback …")
    assert job.dead_lettered
    assert "Traceback" not in repr(job), "a log line is not to carry what a handler saw"
