"""Tables in Markdown."""

from __future__ import annotations

from extensions.tuning.pages.markdown import table


def test_numbers_are_at_the_right_and_a_cell_is_text_on_one_line() -> None:
    assert table(("name", ">rate"), [("a|b\nc", "5"), ("d", "12345")]).splitlines() == [
        r"| name   | rate  |",
        "|--------|------:|",
        r"| a\|b c | 5     |",
        r"| d      | 12345 |",
    ]
