"""Text of a server or a stranger reaches no terminal with its control characters."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest

from headrace.cli.shared import output
from headrace.cli.shared.progress_bar import Bar

#: A screen that is cleared, a title, a CSI of one character, a text that runs backwards.
EVIL = "a\x1b[2J\x1b]0;title\x07b\x9b31mc\u202ed\x7f"
SHOWN = "a\\x1b[2J\\x1b]0;title\\x07b\\x9b31mc\\u202ed\\x7f"


on_terminal = pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Make standard output a terminal, or none."""
    monkeypatch.setenv("NO_COLOR", "1")
    # At each call, as capfd replaces sys.stdout.
    return lambda terminal: monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)


def test_a_message_without_standard_error_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)  # as of `headrace ... 2>&-`
    output.message("a remark")


@on_terminal
def test_messages_tables_and_facts_are_escaped(
    terminal: bool, use: Callable[[bool], None], capfd: pytest.CaptureFixture[str]
) -> None:
    use(terminal)
    output.message(EVIL)
    output.table(["ID", "ERROR"], [["1", f"{EVIL}\nforged  row"]])
    output.pairs([("error", EVIL)])
    output.item({}, EVIL, as_json=False)
    output.listing([EVIL], ["A"], lambda value: [value], as_json=False)
    out, err = capfd.readouterr()
    assert err == f"headrace: {SHOWN}\n"
    assert out.count(SHOWN) == 4
    assert f"{SHOWN}\\nforged  row" in out
    assert all(char.isprintable() or char == "\n" for char in out)


@on_terminal
def test_json_is_escaped_and_means_the_same(
    terminal: bool, use: Callable[[bool], None], capfd: pytest.CaptureFixture[str]
) -> None:
    use(terminal)
    value = {"text": f"{EVIL}\n\U000e0001é😀", EVIL: 1}
    output.json_line(value)
    out, _ = capfd.readouterr()
    assert out[:-1].isprintable()
    assert "é😀" in out
    assert json.loads(out) == json.loads(output.json_text(value)) == value


@on_terminal
def test_a_result_is_escaped_on_a_terminal_alone(
    terminal: bool, use: Callable[[bool], None], capfd: pytest.CaptureFixture[str]
) -> None:
    use(terminal)
    output.line(f"{EVIL}\n\tb")
    output.write_text(EVIL)
    out, _ = capfd.readouterr()
    expected = SHOWN if terminal else EVIL
    assert out == f"{expected}\n\tb\n{expected}"


def test_what_is_above_a_bar_is_escaped(capfd: pytest.CaptureFixture[str]) -> None:
    with Bar("x", lambda: 1, quiet=True) as bar:
        bar.message(EVIL)
    assert capfd.readouterr().err == f"headrace: {SHOWN}\n"
