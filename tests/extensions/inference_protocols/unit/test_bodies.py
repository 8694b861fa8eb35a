"""Bodies of v2: what is read from them, and what is refused with Triton's texts."""

from __future__ import annotations

import asyncio
import gzip
import json
import struct
import threading
from typing import Any, Final

import pytest

from extensions.inference_protocols.http.bodies import read_request, write_response
from extensions.inference_protocols.jobs.over_http import (
    LONG_BYTES,
    compressed,
    decompressed,
    parsed,
)
from extensions.inference_protocols.tensors.datatypes import elements, joined, json_of, raw_of
from extensions.inference_protocols.tensors.envelope import (
    Tensor,
    read_inputs,
    read_outputs,
    write_outputs,
)
from extensions.inference_protocols.tensors.requests import (
    Declaration,
    InferRequest,
    Unsupported,
    check,
    envelope_of,
)
from headrace.config.inputs.tensors import TENSORS_TYPE, DeclaredTensor, rows_of
from headrace.errors import InvalidRequest, PayloadTooLarge


def declared(*tensors: tuple[str, str, list[int]], rows_max: int = 8, **more: Any) -> Declaration:
    inputs = [DeclaredTensor(name=n, datatype=d, shape=s) for n, d, s in tensors]  # type: ignore[arg-type]
    return Declaration("simple", inputs, rows_max=rows_max, native=False, **more)


SIMPLE: Final = declared(("INPUT0", "INT32", [-1, 2]), ("INPUT1", "FP32", [-1, 2]), outputs=[])


def body(*rows: dict[str, Any], raw: bytes = b"", **more: Any) -> tuple[bytes, bytes]:
    text = json.dumps({"inputs": rows, **more}).encode()
    return text + raw, b"%d" % len(text) if raw else b""


def row(name: str, datatype: str, shape: list[int], **more: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, **more}


def size(count: int) -> dict[str, Any]:
    return {"parameters": {"binary_data_size": count}}


def test_json_and_binary_inputs_of_one_request_become_the_same_tensors() -> None:
    raw = struct.pack("<4i", 1, 2, 3, 4)
    given = body(
        row("INPUT1", "FP32", [2, 2], data=[[1, 2.5], [3, 4]]),
        row("INPUT0", "INT32", [2, 2], **size(16)),
        raw=raw, id="7",
    )  # fmt: skip
    request = read_request(*given, SIMPLE)
    assert check(request, SIMPLE) == 2
    found, content_type = envelope_of(request, 2)
    assert rows_of(content_type) == 2
    tensors, _ = read_inputs(found, content_type)
    assert [(one.name, bytes(one.data)) for one in tensors] == [
        ("INPUT1", struct.pack("<4f", 1, 2.5, 3, 4)),
        ("INPUT0", raw),
    ]


def test_a_binary_request_is_kept_as_it_came() -> None:
    raw = struct.pack("<2i", 1, 2) + struct.pack("<2f", 1, 2)
    given = body(
        row("INPUT0", "INT32", [1, 2], **size(8)), row("INPUT1", "FP32", [1, 2], **size(8)),
        raw=raw, outputs=[{"name": "OUT", "parameters": {"classification": 3}}],
    )  # fmt: skip
    request = read_request(*given, SIMPLE)
    found, content_type = envelope_of(request, check(request, SIMPLE))
    assert found is given[0]
    assert content_type == f"{TENSORS_TYPE};header={int(given[1])};rows=1"
    assert read_inputs(found, content_type)[1][0].classes == 3


NO_INTEGER: Final = "attempt to access JSON non-signed-integer as signed-integer"
GOOD: Final = (
    row("INPUT0", "INT32", [1, 2], data=[1, 2]),
    row("INPUT1", "FP32", [1, 2], data=[1, 2]),
)


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (row("INPUT0", "FP32", [1, 2], data=[1, 2]), "[request id: <id_unknown>] inference input "
         "'INPUT0' data-type is 'FP32', but model 'simple' expects 'INT32'"),
        (row("INPUTX", "INT32", [1, 2], data=[1, 2]),
         "unexpected inference input 'INPUTX' for model 'simple'"),
        (row("INPUT0", "INT32", [1, 2], data=[1]),
         "Unable to parse 'data': Shape does not match true shape of 'data' field"),
        (row("INPUT0", "INT32", [1, 2], data=[1, [2]]), NO_INTEGER),
        (row("INPUT0", "INT32", [1, 2], data=[1, 2.5]), NO_INTEGER),
        (row("INPUT0", "INT32", [1, 2], data=[True, 1]),
         NO_INTEGER),
        (row("INPUT0", "INT32", [1, 2], data=[1, 2**31]),
         NO_INTEGER),
        (row("INPUT0", "INT32", [1, -2], data=[1, 2]), "Unable to parse 'shape': attempt to access "
         "JSON non-unsigned-integer as unsigned-integer"),
        (row("INPUT0", "INT32", [2**62, 4], data=[1]),
         "causes total element count to exceed maximum size of"),
        (row("INPUT0", "INT32", [2**61, 2], data=[1]), "byte size overflow for input 'INPUT0'"),
        (row("INPUT0", "INT32", [1, 3], data=[1, 2, 3]), "[request id: <id_unknown>] unexpected "
         "shape for input 'INPUT0' for model 'simple'. Expected [-1,2], got [1,3]."),
        (row("INPUT0", "INT32", [2, 2], data=[1, 2, 3, 4]), "input 'INPUT1' batch size does not "
         "match other inputs for 'simple'"),
        (row("INPUT1", "FP32", [1, 2], data=[1, 2]), "input 'INPUT1' already exists in request"),
        (row("INPUT0", "INT32", [1, 2]), "Input must set only one of the following fields"),
        (row("INPUT0", "FP16", [1, 2], data=[1, 2]),
         "sending FP16 data via JSON is not supported. Please use the binary data format"),
        (row("INPUT0", "INT32", [1, 2], data=json.loads("[" * 150 + "]" * 150)),
         "JSON nesting depth exceeds maximum allowed limit (100)"),
    ],
)  # fmt: skip
def test_a_wrong_input_is_refused(first: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check(read_request(*body(first, GOOD[1]), SIMPLE), SIMPLE)
    assert message in refused.value.message


def test_names_of_missing_inputs_are_told() -> None:
    with pytest.raises(InvalidRequest) as refused:
        check(read_request(*body(), SIMPLE), SIMPLE)
    assert refused.value.message == (
        "[request id: <id_unknown>] expected 2 inputs but got 0 inputs for model 'simple'. Got "
        "input(s) [], but missing required input(s) ['INPUT0','INPUT1']. Please provide all "
        "required input(s)."
    )


def test_a_request_has_at_most_as_many_rows_as_a_batch() -> None:
    nine = [
        row("INPUT0", "INT32", [9, 2], data=[0] * 18), row("INPUT1", "FP32", [9, 2], data=[0] * 18)
    ]  # fmt: skip
    with pytest.raises(InvalidRequest, match="batch-size must be <= 8 for 'simple'"):
        check(read_request(*body(*nine), SIMPLE), SIMPLE)


@pytest.mark.parametrize("header", [b"99999999999", b"-1", b"1e3", b"9" * 30, b""])
def test_lengths_that_lead_nowhere_are_refused(header: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read_request(b'{"inputs": []}xx', header, SIMPLE)


@pytest.mark.parametrize("count", [7, 9, -1, True, "8", 2**70])
def test_sizes_that_do_not_fit_are_refused(count: Any) -> None:
    only = declared(("INPUT0", "INT32", [-1, 2]), outputs=[])
    given = body(row("INPUT0", "INT32", [1, 2], **size(count)), raw=b"8 bytes!")
    with pytest.raises(InvalidRequest):
        check(read_request(*given, only), only)


@pytest.mark.parametrize("name", ["\\ud800", "\\u0041"])
def test_half_of_a_surrogate_pair_is_refused(name: str) -> None:
    text = b'{"inputs":[{"name":"%s","datatype":"FP32","shape":[1],"data":[NaN]}]}'
    with pytest.raises(InvalidRequest) as refused:
        read_request(text % name.encode(), b"", SIMPLE)
    assert refused.value.message.isascii()


def test_nan_and_infinity_are_read_and_written_as_python_writes_them() -> None:
    only = declared(("INPUT0", "FP32", [-1, 3]), outputs=[])
    text = (
        b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,3],"data":[NaN,-Infinity,1]}]}'
    )
    request = read_request(text, b"", only)
    assert bytes(json_of("FP32", request.inputs[0].data)) == b"[NaN, -Infinity, 1.0]"


@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        ("BOOL", [True, False]), ("UINT8", [0, 255]), ("INT8", [-128, 127]),
        ("UINT16", [0, 65535]), ("INT64", [-(2**63), 2**63 - 1]), ("UINT64", [2**64 - 1]),
        ("FP64", [0.1, -1e300]), ("FP32", [0.5]), ("BYTES", ["", "ä", "\0"]), ("INT32", []),
    ],
)  # fmt: skip
def test_json_values_come_back(datatype: str, values: list[Any]) -> None:
    assert json.loads(bytes(json_of(datatype, raw_of(datatype, values)))) == values


def test_a_raw_request_is_the_values_of_the_only_input() -> None:
    only = declared(("INPUT0", "FP32", [-1, 2, -1]), outputs=[])
    request = read_request(bytes(24), b"0", only)
    assert request.inputs[0].shape == [1, 2, 3]
    assert request.binary
    text = declared(("INPUT0", "BYTES", [-1, 1]), outputs=[])
    request = read_request(b"words", b"0", text)
    assert (request.inputs[0].shape, elements(request.inputs[0].data)) == ([1, 1], [b"words"])
    with pytest.raises(InvalidRequest, match="Raw request must only have 1 input"):
        read_request(bytes(24), b"0", SIMPLE)


def test_each_output_is_raw_or_a_list_as_the_client_wants() -> None:
    wanted = [
        {"name": "A", "parameters": {"binary_data": True}},
        {"name": "B", "parameters": {"binary_data": False}}, {"name": "C"},
    ]  # fmt: skip
    request = read_request(*body(*GOOD, outputs=wanted), SIMPLE)
    tensors = [Tensor(name, "UINT8", [2], b"\1\2") for name in "ABC"]
    text, length = write_response({"model_name": "simple"}, tensors, request)
    outputs = json.loads(text[:length])["outputs"]
    assert text[length:] == b"\1\2"
    assert [one.get("data") for one in outputs] == [None, [1, 2], [1, 2]]
    assert outputs[0]["parameters"] == {"binary_data_size": 2}
    assert read_outputs(*write_outputs(tensors))[2] == tensors[2]


def test_bytes_whose_lengths_lead_beyond_the_end_are_refused() -> None:
    text = declared(("T", "BYTES", [-1]), rows_max=0, outputs=[])
    for raw in (b"\5\0\0\0word", b"\1\0", joined([b"a", b"b"])):
        with pytest.raises(InvalidRequest, match="string"):
            check(InferRequest([Tensor("T", "BYTES", [1], raw)]), text)


@pytest.mark.parametrize("what", ["inputs", "outputs"])
def test_shared_memory_is_refused(what: str) -> None:
    body: dict[str, Any] = {
        "inputs": [{"name": "x", "datatype": "INT32", "shape": [1], "data": [1]}],
        "outputs": [{"name": "y"}],
    }
    body[what][0]["parameters"] = {"shared_memory_region": "a", "shared_memory_byte_size": 4}
    with pytest.raises(Unsupported, match="--allow-client-shm"):
        read_request(json.dumps(body).encode(), b"", declared(("x", "INT32", [1])))


@pytest.mark.parametrize(("size", "beside"), [(10, False), (LONG_BYTES, True)])
def test_a_long_body_is_read_beside_other_requests(size: int, beside: bool) -> None:
    def read(body: bytes) -> bool:
        return threading.current_thread() is not threading.main_thread()

    assert asyncio.run(parsed(size, read, bytes(size))) is beside


def test_compressed_bodies_are_bounded() -> None:
    packed = gzip.compress(bytes(10_000))
    assert decompressed(packed, "gzip", 10_000) == bytes(10_000)
    with pytest.raises(PayloadTooLarge):
        decompressed(packed, "gzip", 9_999)
    with pytest.raises(InvalidRequest, match="it is not complete"):
        decompressed(packed[:-8], "gzip", 10_000)
    with pytest.raises(InvalidRequest, match="Unsupported compression type"):
        decompressed(packed, "br", 10_000)
    assert decompressed(compressed(b"words", "deflate"), "deflate", 5) == b"words"
