"""Faster, slower or no difference: the verdict on times that are made up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor

from handlers.optimize import check
from handlers.optimize.check import Timing, Verdict, compare, together

Clock = Callable[[dict[int, list[float]]], list[int]]


def eager(x: Tensor) -> Tensor:
    return x


def own(x: Tensor) -> Tensor:
    return x


@pytest.fixture
def ratios(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Sets, by batch size, how many times as fast the variant is in each round, again and again.

    Returns the size of each run of the variant.
    """

    def replace(found: dict[int, list[float]]) -> list[int]:
        runs = list[int]()
        rounds: dict[int, Iterator[float]] = {size: cycle(one) for size, one in found.items()}

        def milliseconds(call: object, args: tuple[Tensor, ...]) -> float:
            if call is eager:
                return 100.0
            runs.append(len(args[0]))
            return 100.0 / next(rounds[len(args[0])])

        monkeypatch.setattr(check, "milliseconds", milliseconds)
        return runs

    return replace


def verdict(*sizes: int) -> Verdict:
    timed: dict[int, tuple[Any, ...]] = {size: (torch.zeros(size, 1),) for size in sizes}
    return compare(eager, own, [], timed, None, 0.01)


def test_a_clear_difference_needs_six_rounds(ratios: Clock) -> None:
    runs = ratios({1: [2.0], 4: [3.0]})
    found = verdict(1, 4)
    assert runs == [1] * 6 + [4] * 6
    assert (found.word, found.refused) == ("faster", "")
    assert found.times["4"].eager_ms == 100
    assert found.times["4"].own_ms == pytest.approx(33.333)
    assert found.speed == (
        "faster than eager: 2.00 times as fast (2.00 to 2.00) for a batch of 1, "
        "3.00 times as fast (3.00 to 3.00) for a batch of 4"
    )


def test_disturbed_rounds_do_not_refuse_an_equal_variant(ratios: Clock) -> None:
    # The mean is 0.85, and by the fastest runs it would be 1.3 times as fast.
    runs = ratios({4: [1.0, 0.4, 0.99, 0.5, 1.01, 1.3, 0.95, 0.7]})
    found = verdict(4)
    assert found.refused == ""
    assert found.word == "no difference"
    assert "no difference to the speed of eager: 0.97 times as fast (" in found.speed
    assert len(runs) == check.LOOKS[-1]


def test_a_wide_interval_gets_more_rounds(ratios: Clock) -> None:
    runs = ratios({4: [0.8, 1.2, 1.3, 1.2, 1.25, 1.3, 1.2, 1.3, 1.2, 1.3, 1.2, 1.3]})
    assert verdict(4).word == "faster"
    assert len(runs) == check.LOOKS[1]


def test_equal_times_end_at_the_first_look(ratios: Clock) -> None:
    runs = ratios({4: [1.0, 1.01, 0.99]})
    assert verdict(4).word == "no difference"
    assert len(runs) == check.LOOKS[0]


@pytest.mark.parametrize(
    ("small", "large", "word"),
    [(1.2, 0.8, "slower"), (0.8, 1.2, "faster"), (0.8, 1.0, "slower"), (1.2, 1.0, "faster")],
)
def test_the_largest_batch_decides_if_it_shows_a_difference(
    ratios: Clock, small: float, large: float, word: str
) -> None:
    ratios({1: [small], 4: [large]})
    found = verdict(4, 1)
    assert list(found.times) == ["1", "4"]
    assert found.word == word
    assert found.refused.startswith("it is slower than eager: ") is (word == "slower")


def test_slow_batches_end_after_a_time(ratios: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "TIMED_S", 0.0)
    runs = ratios({4: [0.5, 1.5]})
    assert verdict(4).word == "no difference"
    assert len(runs) == check.ROUNDS_MIN


def test_the_times_of_several_modules_are_summed() -> None:
    def verdict(eager_ms: float, gain: float) -> Verdict:
        times = Timing(eager_ms=eager_ms, own_ms=eager_ms / gain, gain=gain, low=gain, high=gain)
        return Verdict(times={"1": times}, error=gain / 1000)

    # 30 + 10 ms become 10 + 20 ms.
    both = together([verdict(30, 3), verdict(10, 0.5)], ["First", "Second"])
    assert both.times["1"].own_ms == pytest.approx(30)
    assert both.times["1"].gain == pytest.approx(4 / 3)
    assert both.error == 0.003
    assert both.agreement is None
    # Rounds of the whole model replace the times of each module; their ratio stays.
    kept = both.timed({1: [(40.0, 20.0)] * 6})
    assert together([kept, kept], ["First", "Second"]).times["1"].gain == pytest.approx(2)
