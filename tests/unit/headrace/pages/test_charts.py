from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pages.charts import axis
from headrace.pages.elements import NOTHING, number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (0.0012345, "0.00123"), (9.999, "10"), (99.96, "100"), (100, "100"),
        (1234.5, "1,234"), (-2.5, "-2.5"), (None, NOTHING), (math.inf, NOTHING),
        (math.nan, NOTHING), (2e-70, "2.00e-70"),
    ],
)  # fmt: skip
def test_numbers_have_three_digits(value: float | None, text: str) -> None:
    assert number(value) == text


@given(st.lists(st.floats(0, 1e9), max_size=20), st.booleans())
def test_an_axis_has_room_for_its_values_and_few_ticks(values: list[float], log: bool) -> None:
    made = axis("ms", values, 10.0, 110.0, log=log)
    assert all(10.0 <= made.at(value) <= 110.0 for value in values)
    assert max(values, default=0.0) <= made.high * (1 + 1e-9)
    assert 1 <= len(made.ticks) <= 18
    places = [made.at(tick) for tick in made.ticks]
    assert all(one < other for one, other in pairwise(places))
