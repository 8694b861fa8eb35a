"""What a worker tells of its jobs, as the bytes that it publishes."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from celery.worker import state as celery_state
from kombu.clocks import LamportClock

from headrace.config.model.catalog import load_catalog
from headrace.errors import InputError, TransientError
from headrace.jobs.message import decode_message
from headrace.jobs.options import JobOptions
from headrace.jobs.values.encoding import binary_input, kombu_bytes
from headrace.redis.keys import TASK_NAME
from headrace.redis.scripts.jobs import CANCELLED, FENCED, POSTPONED
from tests.harness.clients.messages import write_message
from tests.harness.workers.worker import write_models
from workers.celery.celery_internals import event_channel, take_ticks
from workers.celery.task_events import (
    EVENTS_MAX,
    EVENTS_S,
    RESULT_MAX_CHARS,
    EventPublisher,
    EventSampler,
    result_text,
)
from workers.jobs.leased_job import Batch, LeasedJob
from workers.jobs.settlement import (
    NOT_RUN,
    RetryPolicy,
    Settlement,
    cancelled,
    failed,
    postponed,
    succeeded,
)
from workers.model_process.outcomes import encode_result
from workers.models.served_model import ServedModel

SETTLED, REPEATED = 1, 2


@dataclass
class Dispatcher:
    enabled: bool = True
    groups: set[str] = field(default_factory=set)


@dataclass
class Desk:
    """A publisher, its model, and the events so far."""

    model: ServedModel
    dispatcher: Dispatcher | None = field(default_factory=Dispatcher)
    clock: LamportClock = field(default_factory=LamportClock)

    def __post_init__(self) -> None:
        self.publisher = EventPublisher(
            "cpu0@test", event_channel(0), lambda n: take_ticks(self.clock, n),
            lambda: self.dispatcher, 100,
        )  # fmt: skip
        self.publisher.serve(self.model)

    def claim(self, *ids: str, value: bytes = b'{"a": 1}', **job: Any) -> list[LeasedJob]:
        now = time.monotonic()
        jobs = []
        for job_id in ids:
            message = decode_message(write_message(job_id, "m", "headrace.m", value, JobOptions()))
            claimed = LeasedJob(
                id=job_id, token=f"token-{job_id}", message=message, created_us=0,
                enqueued_at=now - 2, claimed_at=now - 1, attempts=1, isolated=False,
            )  # fmt: skip
            for name, given in job.items():
                setattr(claimed, name, given)
            self.model._held[job_id] = claimed
            jobs.append(claimed)
        return jobs

    def start(self, jobs: list[LeasedJob]) -> Batch:
        now = time.monotonic()
        for job in jobs:
            job.dispatched_at, job.dispatched_epoch_s = now, time.time()
        batch = Batch(jobs, "idle", now - 0.25, now + 60)
        self.publisher.started(self.model, batch)
        return batch

    def end(self, batch: Batch, *settlements: Settlement, codes: list[int] | None = None) -> None:
        self.publisher.finished(batch, settlements)
        self.settle(*settlements, codes=codes)

    def settle(self, *settlements: Settlement, codes: list[int] | None = None) -> None:
        self.publisher.settled(self.model, settlements, codes or [SETTLED] * len(settlements))

    def said(self) -> list[dict[str, Any]]:
        """The events that leave now."""
        commands = self.publisher.events(float("inf"))
        if not commands:
            return []
        ((verb, channel, raw),) = commands
        assert (verb, channel) == ("PUBLISH", "/0.celeryev/task.multi")
        assert isinstance(raw, bytes)
        message = json.loads(raw)
        assert message["properties"]["delivery_info"]["routing_key"] == "task.multi"
        events: list[dict[str, Any]] = json.loads(base64.b64decode(message["body"]))
        return events

    def kinds(self) -> list[tuple[str, str]]:
        return [(event["uuid"], event["type"].removeprefix("task-")) for event in self.said()]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    catalog = load_catalog(write_models(tmp_path, m={"handler": "echo"}))
    return Desk(ServedModel(catalog.get("m"), 3, []))


def success(job: LeasedJob, value: Any = 1) -> Settlement:
    _, result, kind = encode_result(value)
    text = kombu_bytes(result) if kind else result
    return succeeded(job, text, kind, 1, NOT_RUN, "2026-01-01T00:00:00+00:00")


def failure(job: LeasedJob, error: Exception, **options: Any) -> Settlement:
    assert isinstance(error, (InputError, TransientError))
    return failed(job, error.code, error.message, retryable=error.retryable, **options)


def test_a_batch_is_told_job_by_job_in_order(desk: Desk) -> None:
    jobs = desk.claim("a", "b")
    batch = desk.start(jobs)
    desk.end(batch, success(jobs[0]), failure(jobs[1], InputError("too small"), traceback="Tb"))
    assert desk.kinds() == [
        ("a", "received"), ("a", "started"), ("b", "received"), ("b", "started"),
        ("a", "succeeded"), ("b", "failed"),
    ]  # fmt: skip


def test_what_an_event_says(desk: Desk) -> None:
    started_s = time.time()
    jobs = desk.claim("a", "b", value=b'{"secret": "of the client"}')
    batch = desk.start(jobs)
    desk.end(batch, success(jobs[0], {"x": [1, "é"]}), failure(jobs[1], InputError("no")))
    events = desk.said()
    received, started, *_, succeeded_, failed_ = events
    assert received["name"] == TASK_NAME
    assert received["kwargs"] == "{'model': 'm', 'input': '<json, 27 bytes>'}"
    assert received["root_id"] == "a"
    assert (received["retries"], received["eta"], received["expires"]) == (0, None, None)
    assert 0.9 < started["timestamp"] - received["timestamp"] < 60
    assert started["timestamp"] == pytest.approx(started_s, abs=60)
    assert succeeded_["result"] == '{"x":[1,"é"]}'
    assert 0.25 <= succeeded_["runtime"] < 60
    assert (failed_["exception"], failed_["traceback"]) == ("InputError('no')", None)
    assert {event["hostname"] for event in events} == {"cpu0@test"}
    assert "of the client" not in json.dumps(events)


def test_each_event_has_the_next_tick_of_celerys_clock(desk: Desk) -> None:
    desk.clock.value = 41
    desk.start(desk.claim("a", "b"))
    assert [event["clock"] for event in desk.said()] == [42, 43, 44, 45]
    assert desk.clock.forward() == 46


@pytest.mark.parametrize(
    ("settle", "code", "told"),
    [
        (success, SETTLED, ["succeeded"]),
        (success, REPEATED, ["succeeded"]),
        (success, CANCELLED, ["revoked"]),
        (success, FENCED, []),
        (
            lambda job: failure(job, TransientError("t"), retries=RetryPolicy(3)),
            POSTPONED,
            ["retried"],
        ),
        (
            lambda job: failure(job, TransientError("t"), retries=RetryPolicy(3)),
            CANCELLED,
            ["revoked"],
        ),
    ],
    ids=["settled", "repeated", "cancelled", "fenced", "retried", "cancelled instead"],
)
def test_an_end_is_what_redis_says(
    desk: Desk, settle: Callable[[LeasedJob], Settlement], code: int, told: list[str]
) -> None:
    (job,) = desk.claim("a")
    batch = desk.start([job])
    desk.said()
    desk.end(batch, settle(job), codes=[code])
    assert [kind for _, kind in desk.kinds()] == told


@pytest.mark.parametrize(
    ("settle", "code", "told"),
    [
        (lambda job: failed(job, "expired", "late"), SETTLED, ["received", "failed"]),
        (lambda job: postponed(job, 5), POSTPONED, ["received"]),
        (cancelled, SETTLED, ["received", "revoked"]),
    ],
    ids=["expired", "put off for its eta", "revoked"],
)
def test_a_job_that_ends_at_its_claim(
    desk: Desk, settle: Callable[[LeasedJob], Settlement], code: int, told: list[str]
) -> None:
    (job,) = desk.claim("a")
    desk.settle(settle(job), codes=[code])
    events = desk.said()
    assert [event["type"].removeprefix("task-") for event in events] == told
    assert events[-1].get("terminated", False) is False


def test_a_message_that_cannot_be_read_is_told_without_arguments(desk: Desk) -> None:
    (job,) = desk.claim("a", message=None)
    desk.settle(failed(job, "invalid-request", "the task message cannot be read"))
    received, failed_ = desk.said()
    assert received["kwargs"] == "{}"
    assert failed_["exception"] == "InvalidRequest('the task message cannot be read')"


def test_jobs_that_are_given_back(desk: Desk) -> None:
    jobs = desk.claim("queued", "cancelled", "dead", "gone", "fenced")
    batch = desk.start(jobs)
    desk.said()
    desk.publisher.finished(batch, [])
    desk.publisher.released(jobs, [b"queued", b"cancelled", b"dead", b"gone", b"fenced"])
    assert desk.kinds() == [("cancelled", "revoked"), ("dead", "failed")]


@pytest.mark.parametrize(
    "dispatcher",
    [None, Dispatcher(groups={"worker"}), Dispatcher(enabled=False)],
    ids=["none yet", "only worker events", "disabled"],
)
def test_nothing_is_told_that_nobody_asked_for(desk: Desk, dispatcher: Dispatcher | None) -> None:
    desk.dispatcher = dispatcher
    jobs = desk.claim("a")
    batch = desk.start(jobs)
    # Of a job whose start was not told, the end is not told either.
    desk.dispatcher = Dispatcher()
    desk.end(batch, success(jobs[0]))
    assert desk.publisher.events(float("inf")) == []
    assert desk.publisher.events_at == float("inf")


def test_beyond_the_rate_failures_are_told_whole_and_the_rest_is_counted(desk: Desk) -> None:
    desk.publisher.samplers["m"] = EventSampler("m", "sampled", 0.1, desk.model.stats)
    jobs = desk.claim("seen", "good", "bad", "late", "put-off")
    batch = desk.start(jobs[:3])
    desk.end(batch, success(jobs[0]), success(jobs[1]), failure(jobs[2], InputError("no")))
    desk.settle(
        failed(jobs[3], "expired", "late"), postponed(jobs[4], 5), codes=[SETTLED, POSTPONED]
    )
    assert desk.kinds() == [
        ("good", "received"), ("good", "started"), ("good", "succeeded"),
        ("bad", "received"), ("bad", "failed"),
    ]  # fmt: skip
    assert desk.publisher.samplers["m"].omitted == 2, (
        "`seen` and `late`; who waits for his time has not ended"
    )


def test_of_a_model_without_events_nothing_is_told(desk: Desk) -> None:
    desk.publisher.samplers["m"] = EventSampler("m", False, 100, desk.model.stats)
    jobs = desk.claim("good", "bad", "late")
    batch = desk.start(jobs[:2])
    desk.end(batch, success(jobs[0]), failure(jobs[1], InputError("no")))
    desk.settle(failed(jobs[2], "expired", "late"))
    assert desk.said() == []
    assert desk.publisher.samplers["m"].omitted == 0


def test_while_celery_has_no_dispatcher_the_last_word_stands(desk: Desk) -> None:
    desk.start(desk.claim("before"))
    desk.dispatcher = None
    desk.start(desk.claim("meanwhile"))
    assert ("meanwhile", "started") in desk.kinds()


def test_events_wait_for_company(desk: Desk) -> None:
    before = time.monotonic()
    desk.start(desk.claim("a"))
    assert before + EVENTS_S <= desk.publisher.events_at <= time.monotonic() + EVENTS_S
    assert desk.publisher.events(before) == []
    desk.start(desk.claim(*map(str, range(EVENTS_MAX // 2))))
    assert len(desk.publisher.events(before)) == 1
    assert desk.publisher.events_at == float("inf")


def test_a_stop_sends_what_is_left(desk: Desk) -> None:
    desk.start(desk.claim("a"))
    assert [command[0] for command in desk.publisher.events(float("inf"))] == ["PUBLISH"]


def test_celerys_totals_count_each_hand_over(desk: Desk) -> None:
    total, of_task = celery_state.all_total_count[0], celery_state.total_count[TASK_NAME]
    desk.start(desk.claim("a", "b", "c"))
    assert celery_state.all_total_count[0] - total == 3
    assert celery_state.total_count[TASK_NAME] - of_task == 3
    assert not len(celery_state.active_requests)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 1000])
def test_a_result_that_is_not_json_is_told_by_type_and_size(desk: Desk, size: int) -> None:
    (job,) = desk.claim("a")
    settlement = success(job, b"x" * size)
    assert result_text(settlement.meta, str(settlement.value)) == (
        f"<application/octet-stream, {size} bytes>"
    )


@pytest.mark.parametrize("text", ["é" * 1000, "x" * (RESULT_MAX_CHARS - 2), "😀" * 100])
def test_a_result_is_cut_between_characters(desk: Desk, text: str) -> None:
    (job,) = desk.claim("a")
    shown = result_text(success(job, text).meta, "")
    whole = json.dumps(text, ensure_ascii=False)
    assert len(shown) <= RESULT_MAX_CHARS
    assert shown == whole or (shown.endswith("…") and whole.startswith(shown[:-1]))


def test_no_result_is_told_where_none_is_kept(desk: Desk) -> None:
    assert result_text(b"", "") == ""


def test_inputs_that_are_not_json_are_told_by_type_and_size(desk: Desk) -> None:
    desk.start(desk.claim("a", value=binary_input(b"\x89PNG" * 10, "image/png")))
    assert desk.said()[0]["kwargs"] == "{'model': 'm', 'input': '<image/png, 40 bytes>'}"
