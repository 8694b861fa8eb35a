"""What a generator's tokens become in the reports to the worker."""

from __future__ import annotations

import pytest

from headrace.generator import Piece
from headrace.observability.worker_report import (
    BETWEEN_S,
    GENERATION_COUNTED,
    HISTOGRAMS,
    ModelStats,
    field_of,
)
from workers.model_process.generation import continuous
from workers.model_process.generation.continuous import INTERVAL_S, TokenMeter
from workers.protocol.frames import TokenFigures


class Site:
    """A meter with a clock and a budget of the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.state = 100.0, (0, 0, 80)
        self.frames: list[TokenFigures] = []
        monkeypatch.setattr(continuous, "clock", lambda: self.now)
        self.meter = TokenMeter(self.frames.append, lambda: self.state)

    def piece(self, after_s: float, *tokens: int, delta: str | None = None, of: str = "a") -> None:
        self.now += after_s
        self.meter.count(Piece(of, delta, tokens))


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(monkeypatch)


def histogram(frame: TokenFigures) -> dict[float, int]:
    """How many tokens there are at each bound that has any."""
    bounds = [*HISTOGRAMS[BETWEEN_S], float("inf")]
    return {bound: count for bound, count in zip(bounds, frame.counts, strict=True) if count}


def test_each_token_after_the_first_counts_once_with_its_share_of_the_time(site: Site) -> None:
    site.piece(9.0, 1)
    site.piece(0.02, 2)
    site.piece(0.18, 3, 4, 5, 6)
    site.meter.report(running=False)
    (frame,) = site.frames
    assert histogram(frame) == {0.025: 1, 0.05: 4}
    assert frame.sum_s == pytest.approx(0.2)


def test_requests_do_not_mix_and_one_that_left_is_forgotten(site: Site) -> None:
    site.piece(0.0, 1, of="a")
    site.piece(1.0, 1, of="b")
    site.piece(1.0, 2, of="a")
    site.meter.ended("a")
    site.piece(50.0, 3, of="a")
    site.meter.report(running=False)
    assert histogram(site.frames[0]) == {2.5: 1}


def test_a_delta_without_tokens_is_one_token_and_a_piece_without_both_is_none(site: Site) -> None:
    site.piece(0.0, delta="x")
    site.piece(0.3)
    site.piece(0.3, delta="y")
    site.piece(0.3, 7)
    site.meter.report(running=False)
    assert histogram(site.frames[0]) == {0.5: 1, 1.0: 1}


def test_it_reports_at_the_end_of_an_interval_and_when_nothing_runs(site: Site) -> None:
    site.meter.report(running=False)
    assert site.frames.pop() == TokenFigures((0, 0, 80), 0, 0, 0, [0] * 18, 0.0)
    site.meter.report(running=False)
    assert site.frames == []
    site.state = (2, 60, 80)
    site.now += INTERVAL_S
    site.meter.report(running=True)
    assert site.frames.pop().state == (2, 60, 80)
    site.meter.used({"prompt_tokens": 7, "completion_tokens": 3, "beside": 1})
    site.meter.used({"completion_tokens": 2})
    site.meter.used(None)
    site.meter.report(running=True)
    assert site.frames == [], "too early"
    site.state = (0, 0, 80)
    site.meter.report(running=False)
    frame = site.frames.pop()
    assert (frame.state, frame.prompt, frame.generated) == ((0, 0, 80), 7, 5)


def test_usage_that_is_no_number_is_an_error(site: Site) -> None:
    with pytest.raises(TypeError):
        site.meter.used({"prompt_tokens": None})


def test_the_worker_adds_the_reports(site: Site) -> None:
    stats = ModelStats()
    for _ in range(2):
        site.piece(0.0, 1)
        site.piece(0.02, 1)
        site.meter.used({"prompt_tokens": 7, "cached_tokens": 4, "completion_tokens": 2})
        site.meter.ended("a")
        site.meter.report(running=False)
    for frame in site.frames:
        stats.observe_tokens(frame.prompt, frame.cached, frame.generated, frame.counts, frame.sum_s)
    assert not stats.empty
    drained = dict(stats.drain())
    tokens = [drained[name] for name in GENERATION_COUNTED]
    assert tokens == ["14.0", "8.0", "4.0"]
    *counts, sum_s = drained[field_of(BETWEEN_S)].split()
    assert counts == ["0"] * 4 + ["2"] * 14
    assert float(sum_s) == pytest.approx(0.04)
    assert stats.empty
