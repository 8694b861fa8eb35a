"""When a job is tried again."""

from __future__ import annotations

import random

from headrace.jobs.job import State
from headrace.jobs.message import decode_message
from headrace.jobs.options import JobOptions
from headrace.redis.scripts.jobs import DEAD
from tests.harness.clients.messages import write_message
from workers.jobs.leased_job import LeasedJob
from workers.jobs.settlement import RetryPolicy, failed


def job(*, attempts: int = 1, retries: int = 0, **options: float) -> LeasedJob:
    asked = JobOptions(**options)  # type: ignore[arg-type] # max_retries is a whole number
    message = decode_message(write_message("id", "m", "headrace.m", b"1", asked))
    return LeasedJob(
        id="id", token="1", message=message, created_us=0, enqueued_at=0, claimed_at=0,
        attempts=attempts, isolated=False, retries=retries,
    )  # fmt: skip


def test_jitter_is_full_below_a_bound_that_doubles_up_to_the_most() -> None:
    policy, chance = RetryPolicy(100, base_s=2, max_s=30), random.Random(20261121)
    for retries, bound_s in ((0, 2), (1, 4), (2, 8), (3, 16), (4, 30), (5, 30), (99, 30)):
        waits = [int(policy.retry_us(retries, chance)) / 1e6 for _ in range(1000)]
        assert 0 <= min(waits) < 0.02 * bound_s
        assert 0.98 * bound_s < max(waits) <= bound_s
        assert 0.45 * bound_s < sum(waits) / 1000 < 0.55 * bound_s


def test_the_same_source_gives_the_same_waits() -> None:
    policy = RetryPolicy(5)
    first, second = ([policy.retry_us(n, random.Random(7)) for n in range(5)] for _ in range(2))
    assert first == second


def test_retries_are_used_up_by_retries_and_by_nothing_else() -> None:
    policy = RetryPolicy(2)
    often = job(attempts=50, retries=1)
    assert failed(often, "transient-error", "m", retryable=True, retries=policy).retried
    used_up = job(attempts=3, retries=2)
    assert failed(used_up, "transient-error", "m", retryable=True, retries=policy).retry_us == DEAD
    final = failed(job(), "handler-error", "m", retries=policy)
    assert (final.retry_us, final.state) == ("", State.FAILED)


def test_what_a_job_asks_for_wins_one_by_one() -> None:
    policy = RetryPolicy(3, 1, 60)
    assert policy.for_job(None) is policy
    assert policy.for_job(job().message) == policy
    assert policy.for_job(job(max_retries=0).message) == RetryPolicy(0, 1, 60)
    assert policy.for_job(job(retry_backoff=0).message) == RetryPolicy(3, 0, 60)
    assert policy.for_job(job(retry_backoff=5, retry_backoff_max=5).message) == RetryPolicy(3, 5, 5)
    assert RetryPolicy(3, 0, 60).retry_us(0) == "0"


def test_what_the_scripts_are_told() -> None:
    assert RetryPolicy(3, 0.5, 60).loss_arguments(4, "7 9") == "4 500000 60000000 7 9"
