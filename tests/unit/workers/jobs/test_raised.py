"""What a failed job's traceback shows of its handler."""

from __future__ import annotations

import traceback

import pytest

from workers.jobs.raised import read_raised


def shown(text: str) -> str:
    raised = read_raised(text)
    assert raised is not None
    return raised.text


def test_the_text_of_the_exception_stays_out() -> None:
    try:
        dict[str, int]()["a secret\nsecond: line"]
    except KeyError as error:
        text = "".join(traceback.format_exception(error))
    assert shown(text) == "KeyError at test_raised.py:20"
    try:
        int("first\nsecond: secret")
    except ValueError as error:
        text = "".join(traceback.format_exception(error))
    assert shown(text).startswith("ValueError at ")


@pytest.mark.parametrize("file", ["/venv/lib/python3.11/site-packages/torch/nn.py", "<frozen os>"])
def test_the_place_is_the_handlers_own(file: str) -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/srv/words.py", line 7, in inference\n    self.model(x)\n'
        f'  File "{file}", line 99, in forward\nsome.module.RuntimeError: bad\n'
    )
    assert shown(text) == "RuntimeError at words.py:7"
    middle = text.replace("Traceback (most recent call last):\n", "")
    assert shown(middle) == "RuntimeError at words.py:7", "the beginning was cut off"


@pytest.mark.parametrize(
    "text", ["", 'Thread 1 (most recent call first):\n  File "a.py", line 7 in f\n']
)
def test_without_an_exception_there_is_no_place(text: str) -> None:
    assert read_raised(text) is None
