from __future__ import annotations

import random

import pytest

from headrace.errors import ConfigError
from headrace.runs.range_set import RangeSet


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_same_set_whatever_the_order(seed: int) -> None:
    chance = random.Random(seed)
    numbers, expected = RangeSet(), set[int]()
    for _ in range(300):
        number = chance.randrange(120)
        if chance.random() < 0.3:
            some = {*chance.choices(range(120), k=3), *range(number, number + chance.randrange(6))}
            numbers.update(some)
            expected |= some
        else:
            numbers.add(number)
            expected.add(number)
        if chance.random() < 0.02:
            bound = chance.randrange(60)
            numbers.drop_below(bound)
            expected = {n for n in expected if n >= bound}
    assert list(numbers) == sorted(expected)
    assert len(numbers) == len(expected)
    assert all((n in numbers) == (n in expected) for n in range(-1, 130))
    assert list(RangeSet(numbers.ranges())) == sorted(expected)


def test_ranges_that_touch_are_one() -> None:
    numbers = RangeSet()
    for number in (0, 2, 4, 3, 1):
        numbers.add(number)
    assert numbers.ranges() == [(0, 4)]


@pytest.mark.parametrize("ranges", [[(3, 2)], [(0, 4), (4, 6)], [(5, 6), (0, 1)], [(-1, 3)]])
def test_ranges_that_are_none_are_refused(ranges: list[tuple[int, int]]) -> None:
    with pytest.raises(ConfigError, match="out of order"):
        RangeSet(ranges)
