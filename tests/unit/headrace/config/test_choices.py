"""Errors about a value that is not in an enumeration name those that are."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pytest

from headrace.config.model.optimize import Optimize
from headrace.config.suggestions import allowed_values, not_a_choice


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Inner(msgspec.Struct):
    colour: Colour
    number: Literal[1, 2] | None = None


class Limited(msgspec.Struct):
    priority: Annotated[int, msgspec.Meta(ge=0, le=9)] = 0
    wait: Annotated[float, msgspec.Meta(gt=0, le=2592000)] | None = None
    least: Annotated[float, msgspec.Meta(ge=0.5)] = 1
    plain: int = 0
    name: Annotated[str, msgspec.Meta(max_length=64)] = ""
    flag: Literal["", "all"] = ""
    ids: Annotated[list[str], msgspec.Meta(max_length=100)] = []
    colours: Annotated[list[Colour], msgspec.Meta(min_length=1)] = []
    nested: Inner | None = None
    anything: Any = None


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


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("priority", "a whole number from 0 to 9"),
        ("wait", "a number that is above 0 and at most 2592000"),
        ("least", "a number that is at least 0.5"),
        ("plain", "a whole number"),
        ("name", "a text of 0 to 64 characters"),
        ("flag", "all"),
        ("ids", "a list of 0 to 100 entries, each a text"),
        ("colours", "a list of at least 1 entries, each red or green"),
        ("colours[...]", "red or green"),
        ("nested", "an object"),
        ("nested.colour", "red or green"),
        ("anything", ""),
        ("unknown", ""),
        ("", "an object"),
    ],
)
def test_the_values_that_a_place_takes_are_named(where: str, expected: str) -> None:
    assert allowed_values(Limited, where) == expected
