"""Which jobs monitors are told of, by the model's `events`."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.observability.worker_report import UNTOLD, ModelStats
from workers.celery.task_events import BURST_S, EventSampler
from workers.jobs.leased_job import LeasedJob
from workers.observability.failure_log import TokenBucket


def jobs(count: int, attempts: int = 1) -> list[LeasedJob]:
    return [
        LeasedJob(str(n), f"t{n}", None, 0, 0.0, 0.0, attempts=attempts, isolated=False)
        for n in range(count)
    ]


def sampler(mode: bool | str, per_s: float = 1.0) -> EventSampler:
    return EventSampler("m", mode, per_s, ModelStats())


def test_a_bucket_gives_its_rate_after_its_burst() -> None:
    bucket, at = TokenBucket(5, 5 * BURST_S), 1000.0
    assert bucket.take(10_000, at) == 5 * BURST_S
    assert bucket.take(1, at) == 0
    assert bucket.take(10, at + 1) == 5
    assert sum(bucket.take(1, at + 1 + n / 100) for n in range(1, 201)) == 10
    assert bucket.take(10_000, at + 10_000) == 5 * BURST_S


@pytest.mark.parametrize("mode", [True, False, "sampled"])
def test_small_loads_are_told_whole_unless_they_are_not_to_be(mode: bool | str) -> None:
    batch = jobs(7)
    assert list(sampler(mode).sample(batch, 1.0)) == (batch if mode else [])
    assert sampler(mode).take_notable(1.0) is bool(mode)


def test_beyond_the_rate_a_sample_is_spread_over_each_batch() -> None:
    sampled, at = sampler("sampled", 4), 1000.0
    batch = jobs(40)
    assert sampled.sample(batch, at) is batch
    assert list(sampled.sample(batch, at)) == []
    assert [job.id for job in sampled.sample(batch, at + 1)] == ["5", "15", "25", "35"]
    every = sampler(True, 4)
    assert all(every.sample(batch, at) is batch for _ in range(10))


def test_later_attempts_and_bad_ends_have_a_rate_of_their_own() -> None:
    sampled, at = sampler("sampled", 1), 1000.0
    sampled.sample(jobs(10), at)
    again = jobs(4, attempts=2)
    assert list(sampled.sample([*jobs(3), *again], at)) == again
    assert [sampled.take_notable(at) for _ in range(7)] == [True] * 6 + [False]
    assert list(sampled.sample(again, at)) == []


def test_what_was_left_out_is_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    stats: Any = ModelStats()
    sampled = EventSampler("m", "sampled", 100, stats)
    with caplog.at_level("INFO"):
        for count in (0, 3, 4):
            sampled.count_omitted(count)
    assert dict(stats.drain()) == {UNTOLD: "7.0"}
    assert sampled.omitted == 7
    (line,) = caplog.messages
    assert "sampled above 100 jobs a second" in line
    off = sampler(False)
    off.count_omitted(5)
    assert off.omitted == 0
