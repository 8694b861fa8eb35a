"""Errors about a value that is not in an enumeration name those that are."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pytest

from headrace.config.model.optimize import Optimize
from headrace.config.suggestions import not_a_choice


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Inner(msgspec.Struct):
    colour: Colour
    number: Literal[1, 2] | None = None


class Outer(msgspec.Struct, rename="kebab"):
    inner_one: Inner | None = None
    several: list[Literal["a", "b"]] = []
    named: dict[str, Inner] = {}
    amount: Annotated[int, msgspec.Meta(ge=1)] | Literal["auto"] = 1


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("off", bool | Literal["auto"], "expected true, false or auto, got 'off'"),
        ("x", Literal["y"], "expected y, got 'x'"),
        ("blue", Colour, "expected red or green, got 'blue'"),
        ({"backend": "c"}, Optimize,
         "backend: expected aot, compile, eager, onnxruntime, openvino, tensorrt or torchscript, "
         "got 'c'"),
        ({"inner-one": {"colour": "b"}}, Outer,
         "inner-one.colour: expected red or green, got 'b'"),
        ({"inner-one": {"colour": "red", "number": 3}}, Outer,
         "inner-one.number: expected 1 or 2, got 3"),
        ({"several": ["a", "c"]}, Outer, "several[1]: expected a or b, got 'c'"),
        ({"named": {"k": {"colour": "b"}}}, Outer,
         "named[...].colour: expected red or green, got 'b'"),
        ({"amount": "few"}, Outer, "amount: expected int >= 1 or auto, got 'few'"),
        ({"several": 3}, Outer, ""),
    ],
)  # fmt: skip
def test_the_values_are_named(value: object, kind: Any, expected: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(value, kind)
    assert not_a_choice(caught.value, kind) == expected
