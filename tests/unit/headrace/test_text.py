from __future__ import annotations

import math

import pytest

from headrace.text import (
    NOTHING,
    duration,
    milliseconds,
    number,
    printable,
    rate,
    shorter,
    size,
)


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


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (200_000, "2 d"), (-1, "0 s")],
)
def test_a_duration_has_one_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_values_have_their_unit() -> None:
    assert (rate(4.5), rate(1234)) == ("4.5/s", "1,234/s")
    assert [milliseconds(ms) for ms in (None, 12.34, 4500)] == ["", "12.3 ms", "4.5 s"]
    assert [size(n) for n in (7, 2048, 3 << 29, 5 << 40)] == [
        "7 B", "2.0 KiB", "1.5 GiB", "5.0 TiB",
    ]  # fmt: skip


def test_text_is_cut_and_what_does_not_print_is_escaped() -> None:
    assert (shorter("a name", 6), shorter("a name", 5)) == ("a name", "a na…")
    assert printable("é\x1b\n\ud800") == "é\\x1b\\n\\ud800"
    assert printable("é\x1b\n", keep="\n") == "é\\x1b\n"
