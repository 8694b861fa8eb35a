"""What a failed job's traceback shows of its handler."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from workers.jobs.settlement import read_raised


def shown(text: str) -> str:
    raised = read_raised(text)
    assert raised is not None
    return raised.text


def test_the_text_of_the_exception_stays_out() -> None:
    try:
        dict[str, int]()["a secret\nsecond: line"]
    except KeyError as error:
        text = "".join(traceback.format_exception(error))
    assert shown(text) == "KeyError at test_raised.py:21"
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


def test_an_exception_group_has_the_place_where_it_was_raised() -> None:
    def fail() -> None:
        raise ExceptionGroup("several", [ValueError("a"), KeyError("b")])

    try:
        fail()
    except ExceptionGroup as error:
        text = "".join(traceback.format_exception(error))
    assert shown(text) == "ExceptionGroup at test_raised.py:46"


def test_the_place_is_in_the_authors_handler_and_not_in_the_one_that_it_extends() -> None:
    shim = next(Path("extensions/torchserve/handlers").resolve().rglob("base_handler.py"))
    frame = f'  File "{shim}", line 9, in inference\n    self.model(x)\n'
    head, end = "Traceback (most recent call last):\n", "ValueError: bad\n"
    own = '  File "/srv/words.py", line 7, in inference\n    super().inference(x)\n'
    assert shown(head + own + frame + end) == "ValueError at words.py:7"
    assert shown(head + frame + end) == "ValueError at base_handler.py:9"


@pytest.mark.parametrize(
    "text", ["", 'Thread 1 (most recent call first):\n  File "a.py", line 7 in f\n']
)
def test_without_an_exception_there_is_no_place(text: str) -> None:
    assert read_raised(text) is None
