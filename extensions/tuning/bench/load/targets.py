"""What a load is sent to: the bytes of each request, and how an answer is read.

A target is plain data, so that generator processes get it as it is. There are three protocols:
Headrace's jobs API with a submit that waits, TorchServe's predictions, and Triton's HTTP.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

import msgspec

from extensions.tuning.bench.measurement import Protocol
from headrace.errors import InvalidRequest
from headrace.jobs.values.media_types import BINARY_TYPE, image_type, type_by_name
from headrace.schema.jobs import Timings

#: The most inputs that a target keeps in memory.
INPUTS_MAX: Final = 1000
#: How long a submit waits; longer jobs are asked for again. The server's default limit.
WAIT_S: Final = 60
#: Seconds that the server keeps the result of a job of ours, so that a load does not fill Redis.
RESULT_TTL_S: Final = 60
#: The stages of a job, as its `timings` name them; `other` is the way to the server and back.
STAGES: Final = ("queued", "hold", "device_wait", "preprocess", "inference", "postprocess", "other")

_JSON: Final = "application/json"


class Input(NamedTuple):
    """One input: its bytes and their media type."""

    body: bytes
    content_type: str


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A model on a server, and the requests for it.

    Attributes:
        url: its address without a path, and without secrets.
        version: the version; "" for the server's choice.
        requests: the bytes of each request; a load sends them in turn.
        input: what is sent, in words.
        headers: lines for requests that ask for a job again; they end with CRLF.
        ca_file: trusted certificates for https; "" for the system's.
    """

    protocol: Protocol
    url: str
    model: str
    version: str
    requests: list[bytes]
    input: str
    headers: bytes = b""
    ca_file: str = ""

    @property
    def address(self) -> tuple[str, int, bool]:
        """Return host, port and whether it is https."""
        parts = urlsplit(self.url)
        secure = parts.scheme == "https"
        return parts.hostname or "", parts.port or (443 if secure else 80), secure


def read_inputs(path: Path, content_type: str = "") -> tuple[list[Input], str]:
    """Return the inputs in a file or in a folder, and what they are in words.

    Of a folder these are the first INPUTS_MAX files by name, without hidden ones.

    Raises:
        InvalidRequest: there is no such file, the folder has none, or one cannot be read.
    """
    try:
        found = (
            sorted(one for one in path.rglob("*") if one.is_file() and one.name[:1] != ".")
            if path.is_dir()
            else [path]
        )
        inputs = [_read(one, content_type) for one in found[:INPUTS_MAX]]
    except OSError as error:
        raise InvalidRequest(
            f"{error.filename or path}: cannot be read: {error.strerror}", hint="check --input"
        ) from error
    if not inputs:
        raise InvalidRequest(f"{path}: the folder has no files", hint="check --input")
    if not path.is_dir():
        return inputs, f"{path.name}, {len(inputs[0].body):,} bytes"
    mean = sum(len(one.body) for one in inputs) / len(inputs)
    count = f"{len(inputs):,}" + (f" of {len(found):,}" if len(found) > len(inputs) else "")
    return inputs, f"{count} files of {path.name}, {mean:,.0f} bytes on average"


def _read(file: Path, content_type: str) -> Input:
    body = file.read_bytes()
    return Input(body, content_type or type_by_name(file.name) or image_type(body) or BINARY_TYPE)


def target_for(
    protocol: Protocol,
    url: str,
    model: str,
    inputs: Sequence[Input],
    *,
    version: str = "",
    parameters: Mapping[str, str] | None = None,
    api_key: str = "",
    ca_file: str = "",
    described: str = "",
    tensor: BytesTensor | None = None,
) -> Target:
    """Return a target.

    Args:
        tensor: of Triton: for inputs that are not JSON.

    Raises:
        InvalidRequest: the address is invalid, or an input cannot be sent with this protocol.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRequest(f"{url!r} is no address of a server", hint="use http://host:port")
    place = parts.netloc.rpartition("@")[2]
    common = f"Host: {place}\r\nUser-Agent: headrace-bench\r\n"
    if api_key:
        common += f"Authorization: Bearer {api_key}\r\n"
    path = parts.path.rstrip("/") + _path(protocol, model, version, parameters or {})
    return Target(
        protocol=protocol, url=f"{parts.scheme}://{place}{parts.path.rstrip('/')}", model=model,
        version=version, input=described, headers=common.encode(), ca_file=ca_file,
        requests=[_request(protocol, path, common, one, tensor) for one in inputs],
    )  # fmt: skip


def _path(protocol: Protocol, model: str, version: str, parameters: Mapping[str, str]) -> str:
    name, number = quote(model, safe=""), quote(version, safe="")
    query = dict(parameters)
    if protocol == "headrace":
        middle = f"/versions/{number}" if version else ""
        path = f"/api/v1/models/{name}{middle}/jobs"
        query = {"wait": str(WAIT_S), "result_ttl": str(RESULT_TTL_S), **query}
    elif protocol == "torchserve":
        path = f"/predictions/{name}" + (f"/{number}" if version else "")
    else:
        path = f"/v2/models/{name}" + (f"/versions/{number}" if version else "") + "/infer"
    text = "&".join(f"{quote(key)}={quote(value, safe='')}" for key, value in query.items())
    return f"{path}?{text}" if text else path


def _request(
    protocol: Protocol, path: str, common: str, one: Input, tensor: BytesTensor | None
) -> bytes:
    body, extra = one.body, f"Content-Type: {one.content_type}\r\n"
    if protocol == "triton" and one.content_type != _JSON:
        if tensor is None:
            raise InvalidRequest(
                f"Triton cannot be sent {one.content_type}: the model has no single BYTES input",
                hint="send a JSON file with an inference request",
            )
        size = len(body) + 4
        head = msgspec.json.encode(
            {
                "inputs": [
                    {
                        "name": tensor.name, "shape": [1] * tensor.rank, "datatype": "BYTES",
                        "parameters": {"binary_data_size": size},
                    }
                ]
            }
        )  # fmt: skip
        extra = f"Content-Type: {BINARY_TYPE}\r\nInference-Header-Content-Length: {len(head)}\r\n"
        body = head + struct.pack("<I", len(body)) + body
    start = f"POST {path} HTTP/1.1\r\n{common}{extra}Content-Length: {len(body)}\r\n\r\n"
    return start.encode() + body


class Answer(NamedTuple):
    """What an answer has.

    Attributes:
        error: "" for a result, else the status or the kind of error.
        stages: milliseconds by stage, in the order of STAGES without `other`, and the server's
            total; empty if the answer has none.
        batch_size: how many requests ran together; 0 if the answer does not have it.
        again: the path at which the job must be asked for, if it has not ended.
    """

    error: str = ""
    stages: tuple[float, ...] = ()
    batch_size: int = 0
    again: str = ""


class _Error(msgspec.Struct):
    type: str = "error"


class _Job(msgspec.Struct):
    id: str
    status: str
    timings: Timings | None = None
    batch_size: int | None = None
    error: _Error | None = None


class _Problem(msgspec.Struct):
    type: str = ""


_job: Final = msgspec.json.Decoder(_Job)
_problem: Final = msgspec.json.Decoder(_Problem)
_OK: Final = Answer()


def reader(protocol: Protocol) -> Callable[[int, bytes], Answer]:
    """Return the function that reads the status and the body of an answer."""
    return _read_job if protocol == "headrace" else _read_other


def _read_other(status: int, body: bytes) -> Answer:
    return _OK if 200 <= status < 300 else Answer(error=str(status))


def _read_job(status: int, body: bytes) -> Answer:
    if status not in (200, 202):
        return Answer(error=_problem_of(status, body))
    try:
        job = _job.decode(body)
    except msgspec.MsgspecError:
        return Answer(error="unreadable answer")
    if status == 202:
        return Answer(again=f"/api/v1/jobs/{job.id}?wait={WAIT_S}")
    if job.status != "succeeded":
        return Answer(error=job.error.type if job.error else job.status)
    if job.timings is None:
        return _OK
    stages = msgspec.structs.astuple(job.timings)
    return Answer(stages=stages, batch_size=job.batch_size or 0)


def _problem_of(status: int, body: bytes) -> str:
    try:
        code = _problem.decode(body).type.rpartition("/")[2]
    except msgspec.MsgspecError:
        return str(status)
    return f"{status} {code}".rstrip()


class BytesTensor(NamedTuple):
    """The input of a model that takes one value of BYTES."""

    name: str
    rank: int


def triton_tensor(metadata: Any) -> BytesTensor | None:
    """Return the only input of a model, if it takes BYTES."""
    inputs = metadata.get("inputs") if isinstance(metadata, dict) else None
    if isinstance(inputs, list) and len(inputs) == 1 and inputs[0].get("datatype") == "BYTES":
        return BytesTensor(str(inputs[0].get("name", "")), len(inputs[0].get("shape", "")))
    return None
