"""Requests, good and bad, for a Triton and for us; and where our answer is another one on purpose.

`recorded.json` has the answers of a real Triton 2.51 with `repository` and no other models:

    python -m tests.extensions.inference_protocols.compat.cases http://127.0.0.1:8000
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import httpx2

RECORDED: Final = Path(__file__).with_name("recorded.json")
LENGTH: Final = "inference-header-content-length"
_INFER: Final = "/v2/models/simple/infer"
_TEXT: Final = "/v2/models/text/infer"
_VALUES: Final = list(range(16))
_RAW: Final = struct.pack("<16i", *_VALUES)


class Case(NamedTuple):
    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = MappingProxyType({})


class Answer(NamedTuple):
    """What a client of the protocol sees: its JSON, and raw values as hexadecimal digits."""

    status: int
    document: Any
    raw: str = ""


def _row(name: str, datatype: str = "INT32", shape: Any = (1, 16), **more: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, **more}


def _json(document: Any, path: str = _INFER) -> Case:
    return Case("POST", path, json.dumps(document).encode())


def _with(**first: Any) -> Case:
    """A request whose first input is this one."""
    return _json({"inputs": [_row("INPUT0", **first), _TWO[1]]})


def _binary(
    *inputs: Any, raw: bytes = b"", length: Any = None, path: str = _INFER, **more: Any
) -> Case:
    text = json.dumps({"inputs": inputs, **more}).encode()
    return Case("POST", path, text + raw, {LENGTH: str(len(text) if length is None else length)})


def _sized(name: str, size: Any, **more: Any) -> dict[str, Any]:
    return _row(name, parameters={"binary_data_size": size}, **more)


_TWO: Final = [_row("INPUT0", data=_VALUES), _row("INPUT1", data=_VALUES)]
_BOTH: Final = [_sized("INPUT0", 64), _sized("INPUT1", 64)]


def _wants(*outputs: Any) -> Case:
    return _json({"inputs": _TWO, "outputs": outputs})


def _rows(*counts: int) -> Case:
    inputs = [
        _row(f"INPUT{n}", shape=[count, 16], data=_VALUES * count) for n, count in enumerate(counts)
    ]
    return _json({"inputs": inputs})


def _given(**parameters: Any) -> Case:
    return _json({"inputs": _TWO, "parameters": parameters})


def _text(value: Any) -> Case:
    return _json({"inputs": [_row("INPUT0", "BYTES", [1], data=[value])]}, _TEXT)


def _raw_text(raw: bytes) -> Case:
    return _binary(_sized("INPUT0", len(raw), datatype="BYTES", shape=[1]), raw=raw, path=_TEXT)


CASES: Final[dict[str, Case]] = {
    "lists": _json({"inputs": _TWO}),
    "an id": _json({"id": "7", "inputs": _TWO}),
    "an id that is a number": _json({"id": 7, "inputs": _TWO}),
    "one output": _wants({"name": "OUTPUT1"}),
    "an unknown output": _wants({"name": "NOPE"}),
    "an output twice": _wants({"name": "OUTPUT0"}, {"name": "OUTPUT0"}),
    "the best classes": _wants({"name": "OUTPUT0", "parameters": {"classification": 3}}),
    "one raw output": _wants(
        {"name": "OUTPUT0"}, {"name": "OUTPUT1", "parameters": {"binary_data": True}}
    ),
    "raw values": _binary(*_BOTH, raw=_RAW * 2, parameters={"binary_data_output": True}),
    "raw values and lists": _binary(_BOTH[0], _TWO[1], raw=_RAW),
    "too few bytes": _binary(*_BOTH, raw=_RAW),
    "too many bytes": _binary(*_BOTH, raw=_RAW * 3),
    "a wrong number of bytes": _binary(_sized("INPUT0", 60), _BOTH[1], raw=_RAW[:60] + _RAW),
    "a size that is text": _binary(_sized("INPUT0", "x"), _TWO[1], raw=_RAW),
    "a length of the header beyond the body": _binary(_BOTH[0], length=99999999999),
    "a negative length of the header": _binary(_BOTH[0], length=-1),
    "a raw request for two inputs": Case("POST", _INFER, _RAW, {LENGTH: "0"}),
    "nested lists": _with(data=[[one] for one in _VALUES]),
    "another datatype": _with(datatype="FP32", data=_VALUES),
    "an unknown datatype": _with(datatype="FOO", data=_VALUES),
    "an unknown input": _json({"inputs": [_TWO[0], _row("INPUTX", data=_VALUES)]}),
    "one input too many": _json({"inputs": [*_TWO, _row("INPUTX", data=_VALUES)]}),
    "a missing input": _json({"inputs": _TWO[:1]}),
    "no inputs": _json({"inputs": []}),
    "no member inputs": _json({}),
    "an input twice": _json({"inputs": [_TWO[0], _TWO[0]]}),
    "too few values": _with(data=_VALUES[:3]),
    "too many values": _with(data=_VALUES * 2),
    "fractions for integers": _with(data=[1.5] * 16),
    "text for integers": _with(data=["1"] * 16),
    "booleans for integers": _with(data=[True] * 16),
    "integers that are too large": _with(data=[2**40] * 16),
    "no data": _with(),
    "data that is null": _with(data=None),
    "another shape": _with(shape=[1, 8], data=_VALUES[:8]),
    "a negative size": _with(shape=[-1, 16], data=_VALUES),
    "a shape that is text": _with(shape="x", data=_VALUES),
    "three rows": _rows(3, 3),
    "more rows than a batch": _rows(9, 9),
    "no rows": _rows(0, 0),
    "different numbers of rows": _rows(1, 2),
    "JSON that is cut off": Case("POST", _INFER, b'{"inputs":['),
    "a body that is a list": Case("POST", _INFER, b"[]"),
    "priority and timeout": _given(priority=1, timeout=60_000_000),
    "a priority that is text": _given(priority="x"),
    "a negative timeout": _given(timeout=-1),
    "other parameters": _given(a=1, b="x", c=True),
    "a parameter that is an object": _given(a={"b": 1}),
    "a sequence": _given(sequence_id=5, sequence_start=True),
    "text": _text("hé"),
    "a number for text": _text(7),
    "a text as it is": Case("POST", _TEXT, b"words", {LENGTH: "0"}),
    "raw text": _raw_text(b"\1\0\0\0x"),
    "a text that is cut off": _raw_text(b"\x09\0\0\0x"),
    "two texts for one": _raw_text(b"\1\0\0\0x" * 2),
    "a coding that is unknown": Case("POST", _INFER, b"xx", {"content-encoding": "br"}),
    "GET of infer": Case("GET", _INFER),
    "an unknown model": _json({"inputs": _TWO}, "/v2/models/nope/infer"),
    "an unknown version": _json({"inputs": _TWO}, "/v2/models/simple/versions/7/infer"),
    "a version": _json({"inputs": _TWO}, "/v2/models/simple/versions/1/infer"),
    "metadata": Case("GET", "/v2/models/simple"),
    "metadata of a version": Case("GET", "/v2/models/simple/versions/1"),
    "metadata of an unknown model": Case("GET", "/v2/models/nope"),
    "metadata of an unknown version": Case("GET", "/v2/models/simple/versions/7"),
    "configuration of an unknown model": Case("GET", "/v2/models/nope/config"),
    "an unknown model is not ready": Case("GET", "/v2/models/nope/ready"),
    "statistics of an unknown model": Case("GET", "/v2/models/nope/stats"),
    "the repository": Case("POST", "/v2/repository/index"),
    "what is ready": Case("POST", "/v2/repository/index", b'{"ready":true}'),
    "a word for ready": Case("POST", "/v2/repository/index", b'{"ready":1}'),
    "regions of shared memory": Case("GET", "/v2/systemsharedmemory/status"),
    "regions of CUDA": Case("GET", "/v2/cudasharedmemory/status"),
}

#: Why our answer differs, where it does. That a client's mistake is 400 and not 500 is no case.
DIFFERENT: Final = {
    "no rows": "Triton refuses a request without rows; here it is answered with no rows",
    "integers that are too large": "Triton drops their upper bits; here they are refused",
    "an output twice": "newer versions refuse it, with this text",
    "one input too many": "Triton counts them before it looks at their names",
    "different numbers of rows": "which input Triton names depends on the order of its map",
    "a parameter that is an object": "the text of another parser",
    "JSON that is cut off": "the text of another parser",
    "a body that is a list": "the text of another parser",
    "a sequence": "sequences are not supported",
    "a word for ready": "newer versions have this text",
}


def ask(http: httpx2.Client, case: Case) -> Answer:
    """Send a request. Clients read nothing else of an answer than this."""
    headers = {"accept-encoding": "identity", **case.headers}
    answer = http.request(case.method, case.path, content=case.body, headers=headers)
    length = int(answer.headers.get(LENGTH, len(answer.content)))
    text, raw = answer.content[:length], answer.content[length:]
    return Answer(answer.status_code, json.loads(text) if text else None, raw.hex())


if __name__ == "__main__":
    with httpx2.Client(base_url=sys.argv[1], timeout=30) as found:
        answers = {name: list(ask(found, case)) for name, case in CASES.items()}
    RECORDED.write_text(json.dumps(answers, indent=1, ensure_ascii=False) + "\n")
