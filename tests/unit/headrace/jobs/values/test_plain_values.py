"""The JSON form of each kind of value, and an error that names what has none."""

from __future__ import annotations

import re
from collections import ChainMap, UserDict, deque
from datetime import UTC, datetime
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import pandas as pd
import pytest
import torch

from headrace.client.inputs import encode_input
from headrace.errors import InvalidRequest
from workers.model_process.outcomes import outcomes_of


class Text(str):
    __slots__ = ()


class Whole(int):
    pass


class Moment(datetime):
    pass


class Kind(Enum):
    A = "a"


class Endless:
    def tolist(self) -> Endless:
        return self


def outcome(value: Any) -> list[Any]:
    (found,) = outcomes_of([value], lambda _: None)
    return found


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (np.longdouble(1.5), 1.5),
        (np.array([1, 2], np.longdouble), [1, 2]),
        (np.float16(0.5), 0.5),
        (np.bool_(True), True),
        (np.array([{"a": np.float32(1)}, None], object), [{"a": 1}, None]),
        (np.ma.MaskedArray([1, 2], mask=[False, True]), [1, None]),
        (np.datetime64("2026-01-02T03:04:05.123456789"), "2026-01-02T03:04:05.123456789"),
        (np.array(["2026-01-02", "NaT"], "M8[ns]"), ["2026-01-02T00:00:00.000000000", None]),
        (np.array(["20000-01-02"], "M8[D]"), ["20000-01-02"]),
        (np.timedelta64(5, "s"), "PT5S"),
        (pd.Timedelta("-1s"), "-PT1S"),
        ([pd.NaT, pd.NA, pd.Timedelta("nat")], [None, None, None]),
        (torch.ones(2, dtype=torch.bfloat16), [1, 1]),
        (torch.nn.Parameter(torch.ones(1)), [1]),
        (Text("x"), "x"),
        (Whole(3), 3),
        (Moment(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00+00:00"),
        (UserDict(a=1), {"a": 1}),
        (ChainMap({"a": 1}), {"a": 1}),
        (deque([1]), [1]),
        (range(2), [0, 1]),
        ({None: 1, True: 2, np.int64(3): 4, UUID(int=1): 5, Kind.A: 6},
         {"null": 1, "true": 2, "3": 4, str(UUID(int=1)): 5, "a": 6}),
        (2**70, 2**70),
    ],
)  # fmt: skip
def test_each_value_has_the_same_form_in_results_and_inputs(value: Any, form: Any) -> None:
    found = outcome({"value": value})
    assert found[0], found
    for text in (found[1], encode_input({"value": value})):
        assert msgspec.json.decode(text)["value"] == form


def loop() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (1j, "complex number"),
        (np.complex64(1), "numpy's complex64"),
        (np.clongdouble(1), "numpy's complex"),
        (np.timedelta64(5, "Y"), r"timedelta64\[Y\]"),
        (np.timedelta64(5, "ns"), r"timedelta64\[ns\]"),
        (pd.Timedelta(5, "ns"), "pandas.Timedelta with nanoseconds"),
        (torch.ones(1, dtype=torch.complex64), "torch.complex64"),
        (torch.ones(2).to_sparse(), "sparse tensor"),
        (torch.float32, "torch.dtype"),
        ({(1, 2): 3}, "a key of an object must be text or a number, not builtins.tuple"),
        (Endless(), "Endless is not a JSON value"),
        (iter([1]), "list_iterator is not a JSON value"),
        (int, "builtins.type is not a JSON value"),
    ],
)
def test_what_has_no_form_is_named(value: Any, why: str) -> None:
    failed = outcome([value])
    assert failed[1] == "handler-error"
    with pytest.raises(InvalidRequest, match=why):
        encode_input([value])
    assert re.search(why, failed[2])


def test_a_value_that_contains_itself_is_named() -> None:
    assert outcome(loop())[2] == (
        "the result cannot be sent: it is nested too deeply, or contains itself"
    )
