"""JSON in row and in column form: whatever a body has, and whatever a model returns."""

from __future__ import annotations

import json
import math
from array import array
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extensions.inference_protocols.tensorflow import answers, calls, requests
from extensions.inference_protocols.tensors.datatypes import joined
from extensions.inference_protocols.tensors.envelope import Tensor
from extensions.inference_protocols.tensors.requests import Declaration, check, element_of
from headrace.config.inputs.tensors import DeclaredTensor
from headrace.errors import HeadraceError, InvalidRequest

_VALUES: Final = st.one_of(
    st.sampled_from([None, True, 1, 2**63, 10**400, 1.5, math.nan, math.inf, "x", "\ud800"]),
    st.sampled_from(["AP8=", "?"]).map(lambda text: {"b64": text}),
)
_TREES: Final = st.recursive(
    _VALUES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=8,
)
_DECLARED: Final = [
    Declaration("native"),
    *(
        Declaration(
            "one", [DeclaredTensor(name="a", datatype=datatype, shape=shape)], (), 8, native=False
        )
        for datatype in ("FP32", "INT8", "UINT64", "BOOL", "BYTES", "BF16")
        for shape in ([-1], [-1, 2])
    ),
]


@given(
    keys=st.sampled_from(["instances", "inputs", "examples"]),
    value=_TREES,
    declared=st.sampled_from(_DECLARED),
)
def test_any_json_is_a_request_that_fits_or_is_refused(
    keys: str, value: Any, declared: Declaration
) -> None:
    verb = "classify" if keys == "examples" else "predict"
    try:
        body = json.dumps({keys: value}).encode()
        if declared.native and verb == "predict":
            texts = requests.texts_of(body)
            found = calls.natives_of(texts if isinstance(texts, list) else [texts])
            values = value if keys == "instances" else [value]
            for one, value in zip(found, values, strict=True):
                check(one, declared)
                given, encoded = element_of(one)[0], requests.bytes_of(value)
                assert json.loads(given) == value if encoded is None else given == encoded
            return
        document = requests.document_of(body)
        rows = requests.instances_of(document) if verb == "predict" else None
        found = calls.requests_of(document, rows, declared, verb)
        counts = [check(request, declared) for request in found]
    except HeadraceError:
        return
    if rows is not None:
        assert counts == [len(rows)]


@given(values=st.lists(st.floats(width=32), min_size=1))
def test_a_float_that_is_written_is_read_as_the_same(values: list[float]) -> None:
    tensor = Tensor("y", "FP32", [len(values)], array("f", values).tobytes())
    text = msgspec.json.encode(answers.predictions([tensor]))
    assert array("f", json.loads(text)).tobytes() == tensor.data or any(map(math.isnan, values))
    assert all(isinstance(one, float) for one in json.loads(text))


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (Tensor("y", "INT64", [2, 0, 2], b""), "[[],[]]"),
        (Tensor("y", "UINT8", [2, 1, 2], bytes(range(4))), "[[[0,1]],[[2,3]]]"),
        (Tensor("y", "FP16", [2], b"\x00\x3c\x00\x7c"), "[1.0,Infinity]"),
        (Tensor("y", "FP64", [2], array("d", [0.1, 1e300]).tobytes()), "[0.1,1e+300]"),
        (Tensor("y", "BOOL", [2], b"\x01\x00"), "[true,false]"),
        (Tensor("y_bytes", "BYTES", [1], joined([b"x"])), '[{"b64":"eA=="}]'),
        (Tensor("y", "INT32", [], b"\x05\0\0\0"), "5"),
    ],
)
def test_a_tensor_is_nested_lists(tensor: Tensor, text: str) -> None:
    assert msgspec.json.encode(answers.outputs([tensor])).decode() == text


@pytest.mark.parametrize("text", [b'{"b64": "\xff"}', b'{"\xff": 1}', b'{"b64": "\\ud800"}'])
def test_an_object_with_a_text_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidRequest, match="JSON Parse error"):
        requests.bytes_of_text(msgspec.Raw(text))
