from __future__ import annotations

import re
from xml.etree.ElementTree import tostring

from hypothesis import given, settings
from hypothesis import strategies as st

from extensions.tuning.pages.charts import Bar, Point, Series, bar_chart, line_chart


@given(st.lists(st.floats(0, 1e9), max_size=20), st.booleans())
@settings(max_examples=8, deadline=None)
def test_any_values_have_a_chart_with_few_ticks(values: list[float], log: bool) -> None:
    points = [Point(value, n, n * 0.9, n * 1.1, "label") for n, value in enumerate(values)]
    chart = line_chart("t", [Series("s", points, dots=True)], "ms", "jobs", log_x=log)
    ticks = [text for node in chart.iter("text") if (text := node.text or "")[:1].isdigit()]
    assert 2 <= len(ticks) <= 25


def test_a_chart_is_the_same_each_time_and_has_the_colours_of_the_page() -> None:
    bars = [Bar("a $b_ c\x00 <漢>", [(0, 1.0), (9, 2.0)], 2.0, 4.0)]
    first, second = (tostring(bar_chart("t", bars, "ms"), "unicode") for _ in range(2))
    assert first == second
    assert "a $b_ c\ufffd &lt;漢&gt;" in first
    for colour in ("ink", "soft", "c0", "c1"):
        assert f"var(--{colour})" in first
    assert not re.search(r"#\w{6}[\";]", first)
