"""Tensors as arrays in a model process, and what a handler returns as tensors."""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from extensions.inference_protocols.handlers.arrays import (
    TensorInput,
    array_of,
    read_input,
    write_result,
)
from extensions.inference_protocols.tensors.datatypes import SIZES, elements
from extensions.inference_protocols.tensors.envelope import (
    RequestedOutput,
    Tensor,
    read_outputs,
    write_inputs,
)
from handlers.extension import TensorPart
from headrace.config.inputs.tensors import DeclaredTensor
from headrace.errors import HandlerError, InputError, InvalidRequest
from headrace.handler import Response
from workers.model_process.tensors import ModelTensors

DTYPES: Final = (
    "bool", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", ml_dtypes.bfloat16,
)  # fmt: skip


def tensor(name: str, datatype: str, *shape: int, **more: Any) -> DeclaredTensor:
    return DeclaredTensor(name=name, datatype=datatype, shape=list(shape), **more)  # type: ignore[arg-type]


def sent(result: Any, *outputs: DeclaredTensor, wanted: Any = ()) -> list[Tensor]:
    response = write_result(result, TensorInput({}, wanted), outputs)
    assert isinstance(response, Response)
    return read_outputs(response.body, response.content_type)


@given(st.sampled_from(DTYPES), st.data())
def test_an_array_comes_back_as_it_was(dtype: Any, data: st.DataObject) -> None:
    shape = data.draw(arrays.array_shapes(min_dims=0, min_side=0, max_dims=4, max_side=3))
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    (found,) = sent({"OUT": np.asarray(array, order="F")})
    again = array_of(found)
    assert (again.dtype, again.shape) == (array.dtype, array.shape)
    assert again.tobytes() == array.tobytes()


def test_every_datatype_is_read_as_a_view() -> None:
    for datatype, size in SIZES.items():
        if size:
            body, kind = write_inputs([Tensor("IN", datatype, [2], bytes(2 * size))])
            found = read_input(body, kind, [tensor("IN", datatype, 2)])["IN"]
            assert not found.flags.owndata
            assert (found.shape, found.itemsize) == ((2,), size)


def test_bytes_are_objects() -> None:
    (found,) = sent({"OUT": np.array([[b"a", "ä"], [b"", b"\0"]], object)})
    assert (found.datatype, found.shape) == ("BYTES", [2, 2])
    assert elements(found.data) == [b"a", "ä".encode(), b"", b"\0"]
    assert array_of(found).tolist() == [[b"a", "ä".encode()], [b"", b"\0"]]


def test_tensors_of_torch_and_lists_are_outputs_too() -> None:
    found = sent(
        {"T": torch.tensor([1.5, 2.0], dtype=torch.bfloat16), "L": [[1, 2]], "S": "words"},
        tensor("L", "UINT8", -1, 2),
    )
    assert [(one.datatype, one.shape) for one in found] == [
        ("BF16", [2]), ("UINT8", [1, 2]), ("BYTES", [1]),
    ]  # fmt: skip
    assert array_of(found[0]).astype(float).tolist() == [1.5, 2.0]
    assert sent(np.float32(3), tensor("ONLY", "FP32", 1))[0].name == "ONLY"


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"OUT": np.zeros(2)}, "the output OUT is FP64, but the model declares FP32"),
        ({"OUT": [[1], [1, 2]]}, "the output OUT is no tensor"),
        ({"OTHER": [1.0]}, "the handler returned no output 'OUT'; it returned OTHER"),
        ({"OUT": np.zeros(1, complex)}, "has the type complex128, which no tensor has"),
    ],
)
def test_a_result_that_does_not_fit_fails_the_job(result: Any, message: str) -> None:
    with pytest.raises(HandlerError, match=message):
        sent(result, tensor("OUT", "FP32", -1), wanted=[RequestedOutput("OUT")])


def test_an_output_that_only_the_client_knows_is_its_mistake() -> None:
    with pytest.raises(InputError, match="returned no output 'NOPE'; it returned OUT"):
        sent({"OUT": [1.0]}, wanted=[RequestedOutput("NOPE")])


def test_classes_are_in_the_order_of_their_scores() -> None:
    scores = np.array([[0.1, 0.7, 0.7, 0.2], [4, 3, 2, 1]], "f4")
    output = tensor("OUT", "FP32", -1, 4, labels=["cat", "dog"])
    (found,) = sent({"OUT": scores}, output, wanted=[RequestedOutput("OUT", classes=2)])
    assert found.shape == [2, 2]
    assert elements(found.data) == [b"0.700000:1:dog", b"0.700000:2", b"4.000000:0:cat",
                                    b"3.000000:1:dog"]  # fmt: skip
    (found,) = sent({"OUT": np.array([1, 9])}, wanted=[RequestedOutput("OUT", classes=9)])
    assert elements(found.data) == [b"9:1", b"1:0"]


def test_no_rows_have_no_classes() -> None:
    output = tensor("OUT", "FP32", -1, 4)
    wanted = [RequestedOutput("OUT", classes=2)]
    (found,) = sent({"OUT": np.zeros((0, 4), "f4")}, output, wanted=wanted)
    assert (found.shape, bytes(found.data)) == ([0, 2], b"")


def test_numbers_are_no_bytes() -> None:
    with pytest.raises(HandlerError, match="int is neither text nor bytes"):
        sent({"OUT": [3, 5]}, tensor("OUT", "BYTES", -1))


def test_what_cannot_be_written_fails_its_job_alone() -> None:
    part = TensorPart(read=read_input, write=write_result)
    tensors = ModelTensors([], [tensor("OUT", "FP32", -1)], part)
    result = {"OUT": torch.eye(2).to_sparse()}
    assert isinstance(tensors.written(result, TensorInput({}, ())), HandlerError)
    assert isinstance(tensors.written([1.0], TensorInput({}, ())), Response)


def test_lists_in_json_are_arrays_too() -> None:
    declared = [tensor("N", "FP16", -1), tensor("T", "BYTES", -1)]
    value = read_input({"N": [1, 2], "T": ["a"]}, "application/json", declared)
    assert (value["N"].dtype, value["T"].tolist()) == (np.float16, [b"a"])
    assert write_result({"N": 1}, value, declared) == {"N": 1}, "its result stays JSON"


def test_an_envelope_of_a_client_is_checked_again() -> None:
    body, kind = write_inputs([Tensor("IN", "FP32", [3], bytes(8))])
    for declared in ([tensor("IN", "FP32", 3)], [tensor("IN", "INT32", 3)], []):
        with pytest.raises(InvalidRequest):
            read_input(body, kind, declared)
    whole, whole_kind = write_inputs([Tensor("IN", "FP32", [3], bytes(12))])
    for declared, rows in (([tensor("IN", "FP32", 2)], 1), ([tensor("IN", "FP32", -1)], 9)):
        with pytest.raises(InvalidRequest, match="another shape, or other rows"):
            read_input(whole, whole_kind.replace("rows=1", f"rows={rows}"), declared)
    with pytest.raises(InvalidRequest):
        read_input(body, kind.replace("header=", "header=9"), [tensor("IN", "FP32", 3)])
