"""The log of failed jobs: a line for each, and few lines in a storm."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from headrace.redis.scripts.jobs import CANCELLED, FENCED, POSTPONED, SETTLED, Settlement
from workers.observability.failure_log import BURST, FailureLog


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(clock: Clock, caplog: pytest.LogCaptureFixture) -> FailureLog:
    caplog.set_level(logging.INFO)
    return FailureLog(clock)


def ended(job_id: str, message: str = "KeyError: 'a'", **members: Any) -> Settlement:
    error = {"type": "handler-error", "message": message, "retryable": False, **members}
    return Settlement(job_id, "1", "f", b"", 1, "", "e", json.dumps(error), "")


RAISED = {"exception": "KeyError", "where": "words.py:7"}


def test_each_failed_job_has_a_warning(log: FailureLog, caplog: pytest.LogCaptureFixture) -> None:
    settlements = [ended("a", **RAISED), ended("b"), ended("c", "x" * 9999)]
    log.settled("words", settlements, [SETTLED] * 3)
    first, second, third = caplog.records
    assert [line.levelname for line in caplog.records] == ["WARNING"] * 3
    assert first.getMessage() == "job failed: KeyError: 'a'"
    assert first.__dict__.items() >= {
        "job": "a", "model": "words", "error": "handler-error", "raised": "KeyError at words.py:7",
    }.items()  # fmt: skip
    assert not hasattr(second, "raised")
    assert len(third.getMessage()) < 600


def test_only_what_redis_has_confirmed_is_a_failure(
    log: FailureLog, caplog: pytest.LogCaptureFixture
) -> None:
    good = ended("s")._replace(state="s", value="")
    again = ended("again")._replace(retry_us="5")
    settlements = [good, ended("fenced"), ended("cancelled"), again]
    log.settled("words", settlements, [SETTLED, FENCED, CANCELLED, POSTPONED])
    (line,) = caplog.records
    assert (line.levelname, line.__dict__["job"]) == ("INFO", "again")


def test_a_storm_writes_a_line_a_second_with_the_rest(
    log: FailureLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(BURST + 150):
        log.settled("words", [ended(f"job-{n}", **RAISED)], [SETTLED])
    log.lost("words", "died")
    assert len(caplog.records) == BURST
    caplog.clear()
    clock.now = 1.5
    log.flush()
    rest, died = caplog.records
    assert rest.getMessage() == "150 more jobs failed"
    assert rest.__dict__["failed"] == 150
    assert rest.__dict__["jobs"] == [f"job-{BURST + n}" for n in range(100)]
    assert rest.__dict__["raised"] == "KeyError at words.py:7"
    assert (died.__dict__["jobs"], died.__dict__["error"]) == (["died"], "replica-lost")
    caplog.clear()
    log.settled("words", [ended("later")], [SETTLED])
    assert [line.__dict__["job"] for line in caplog.records] == ["later"]


def test_the_last_lines_are_written_at_the_end(
    log: FailureLog, caplog: pytest.LogCaptureFixture
) -> None:
    log.settled("words", [ended(f"job-{n}") for n in range(BURST + 2)], [SETTLED] * (BURST + 2))
    log.flush(last=True)
    assert caplog.records[-1].getMessage() == "2 more jobs failed"
