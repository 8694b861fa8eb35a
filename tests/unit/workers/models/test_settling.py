"""What the log says of a failed job."""

from __future__ import annotations

import traceback

import pytest

from workers.models.settling import raised_at


def test_the_text_of_the_exception_stays_out() -> None:
    try:
        dict[str, int]()["a secret\nsecond: line"]
    except KeyError as error:
        text = "".join(traceback.format_exception(error))
    assert raised_at("handler-error", text).startswith("KeyError at ")
    assert raised_at("handler-error", text).endswith("test_settling.py:14")
    try:
        int("first\nsecond: secret")
    except ValueError as error:
        text = "".join(traceback.format_exception(error))
    assert raised_at("handler-error", text).startswith("ValueError at ")


@pytest.mark.parametrize("file", ["/venv/lib/python3.11/site-packages/torch/nn.py", "<frozen os>"])
def test_the_place_is_the_handlers_own(file: str) -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/srv/words.py", line 7, in inference\n    self.model(x)\n'
        f'  File "{file}", line 99, in forward\nRuntimeError: bad\n'
    )
    assert raised_at("handler-error", text) == "RuntimeError at /srv/words.py:7"


def test_an_error_that_was_returned_has_its_code_alone() -> None:
    assert raised_at("input-error", "") == "input-error"
