"""Whatever bytes come, a body is read or refused."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extensions.inference_protocols.handlers.arrays import read_input
from extensions.inference_protocols.http.bodies import read_request
from extensions.inference_protocols.tensorflow.service import TensorProto, tensors_of
from extensions.inference_protocols.tensors.datatypes import SIZES
from extensions.inference_protocols.tensors.envelope import Tensor
from extensions.inference_protocols.tensors.requests import (
    Declaration,
    InferRequest,
    check,
    envelope_of,
)
from headrace.config.inputs.tensors import DeclaredTensor
from headrace.errors import InvalidRequest, PayloadTooLarge

#: Often right, so that the checks behind the first are reached too.
NUMBERS = st.sampled_from([-1, 0, 1, 2, 4, 8, 2**31, 2**63, 2**70]) | st.integers()
WORDS = st.text(max_size=3)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats(width=32, allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=6,
)
NAMES = st.sampled_from(["A", "B"]) | st.text(max_size=2)
ROWS = st.fixed_dictionaries(
    {
        "name": NAMES,
        "datatype": st.sampled_from([*SIZES, "FP8"]),
        "shape": st.lists(NUMBERS, max_size=3) | VALUES,
    },
    optional={
        "data": VALUES,
        "parameters": st.fixed_dictionaries({}, optional={"binary_data_size": NUMBERS | VALUES}),
    },
)
REQUESTS = st.fixed_dictionaries(
    {"inputs": st.lists(ROWS, max_size=2)},
    optional={"outputs": VALUES, "id": VALUES, "parameters": VALUES},
)


def declared(first: Any) -> Declaration:
    inputs = [
        DeclaredTensor(name="A", datatype=first, shape=[-1, -1]),
        DeclaredTensor(name="B", datatype="BYTES", shape=[-1], optional=True),
    ]
    return Declaration("m", inputs, [], rows_max=8, native=False)


def test_a_long_shape_and_long_names_are_refused_in_a_few_words() -> None:
    model = declared("FP32")
    for tensor in (
        Tensor("A", "FP32", [2**62] * 100_000, b""),
        Tensor("A" * 1_000_000, "FP32", [1], bytes(4)),
    ):
        with pytest.raises(InvalidRequest) as refused:
            check(InferRequest([tensor], id="i" * 1_000_000), model)
        assert len(refused.value.message) < 5000


def filled(datatype: str, *shape: int, **values: Any) -> Any:
    sizes = {"dim": [{"size": size} for size in shape]}
    return TensorProto(dtype=f"DT_{datatype}", tensor_shape=sizes, **values)


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([filled("FLOAT", 1000)] * 3, PayloadTooLarge),
        ([filled("FLOAT", 2**60)], PayloadTooLarge),
        ([filled("STRING", 200, string_val=[b"x" * 100])], PayloadTooLarge),
        ([filled("STRING", 2_000_000)], InvalidRequest),
        # Each value takes one byte in the message.
        ([filled("INT64", 2000, int64_val=[1] * 2000)], PayloadTooLarge),
    ],
)
def test_a_short_message_makes_no_large_tensors(
    messages: list[Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        tensors_of({str(n): message for n, message in enumerate(messages)}, 10_000)


@pytest.mark.parametrize(
    ("message", "raw"),
    [
        (filled("BOOL", 3, bool_val=[False, True]), b"\0\1\1"),
        (filled("HALF", 2, half_val=[0x3C00]), b"\0\x3c" * 2),
        (filled("INT16", 2), bytes(4)),
        (filled("STRING", 3, string_val=[b"a"]), b"\1\0\0\0a" * 3),
        (filled("STRING", 2), bytes(8)),
        (filled("DOUBLE", 0), b""),
    ],
)
def test_the_last_value_fills_the_shape(message: Any, raw: bytes) -> None:
    (tensor,) = tensors_of({"x": message}, 100)
    assert tensor.data == raw


@pytest.mark.parametrize(
    ("message", "datatype"),
    [
        (filled("UINT8", 1, int_val=[256]), "UINT8"),
        (filled("INT8", 2, int_val=[0, -129]), "INT8"),
        # The bits of a value of two bytes.
        (filled("HALF", 1, half_val=[2**16]), "UINT16"),
    ],
)
def test_a_value_that_does_not_fit_its_datatype_is_refused(message: Any, datatype: str) -> None:
    with pytest.raises(InvalidRequest, match=f"input 'x' has a value that no {datatype} can be"):
        tensors_of({"x": message}, 100)


@given(REQUESTS, st.binary(max_size=40), st.sampled_from(list(SIZES)), st.integers(-2, 2))
def test_a_request_is_read_or_refused(
    request: dict[str, Any], raw: bytes, datatype: str, off: int
) -> None:
    text = msgspec.json.encode(request)
    header = b"%d" % (len(text) + off) if raw else b""
    model = declared(datatype)
    with contextlib.suppress(InvalidRequest):
        read = read_request(text + raw, header, model)
        rows = check(read, model)
        arrays = read_input(*envelope_of(read, rows), model.inputs)
        assert set(arrays) <= {"A", "B"}
        assert all(list(arrays[one.name].shape) == one.shape for one in read.inputs)


@given(st.binary(max_size=60), st.binary(max_size=3))
def test_any_bytes_are_read_or_refused(body: bytes, header: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        read_request(body, header, declared("FP32"))
    with contextlib.suppress(InvalidRequest):
        read_input(body, f"application/vnd.headrace.tensors;header={header!r}", [])
