"""The time by Redis' clock, out of answers that may be late."""

from __future__ import annotations

import time

import pytest

from headrace.redis import clock as redis_clock
from headrace.redis.clock import US_PER_S, RedisClock


def answer(ahead_s: float) -> int:
    return int((time.time() + ahead_s) * US_PER_S)


def test_it_is_this_host_s_until_an_answer_comes() -> None:
    clock = RedisClock()
    assert clock.now_s() == pytest.approx(time.time(), abs=5)
    clock.update(answer(100))
    assert clock.now_s() == pytest.approx(time.time() + 100, abs=5)


def test_an_answer_that_was_late_is_believed_only_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = RedisClock()
    clock.update(answer(1000))
    clock.update(answer(900))
    assert clock.now_s() == pytest.approx(time.time() + 1000, abs=5)
    clock.update(answer(1100))
    assert clock.now_s() == pytest.approx(time.time() + 1100, abs=5)
    monkeypatch.setattr(redis_clock, "VALID_S", -1.0)
    clock.update(answer(1200))
    clock.update(answer(-1000))
    assert clock.now_s() == pytest.approx(time.time() - 1000, abs=5)
