"""The messages of infer as requests of v2, and outputs as messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from api.grpc.protos import Protos
from extensions.inference_protocols.jobs.over_http import LONG_BYTES, Parsed
from extensions.inference_protocols.tensors.datatypes import BYTES, SIZES, Raw, joined, raw_of
from extensions.inference_protocols.tensors.envelope import Tensor
from extensions.inference_protocols.tensors.requests import (
    SHARED,
    InferRequest,
    Value,
    no_shared_memory,
    wanted_output,
)
from headrace.errors import InvalidRequest

PROTOS: Final = Protos(Path(__file__).parent / "protos" / "inference.binpb")
PACKAGE: Final = "inference"
InferResponse: Final = PROTOS.message(f"{PACKAGE}.ModelInferResponse")
StreamResponse: Final = PROTOS.message(f"{PACKAGE}.ModelStreamInferResponse")

#: Where `contents` has the values of a datatype. FP16 and BF16 are raw only.
_FIELDS: Final = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents",
    "INT32": "int_contents", "INT64": "int64_contents", "UINT8": "uint_contents",
    "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", BYTES: "bytes_contents",
}  # fmt: skip


def parameters_of(message: Any) -> dict[str, Value]:
    """Return the parameters of a message; one without a value is left out."""
    if not message.parameters:
        return {}
    found = {}
    for name, parameter in message.parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        if kind is not None:
            found[name] = getattr(parameter, kind)
    return found


async def parsed_message(read: Callable[[], Parsed], message: Any) -> Parsed:
    """Return what `read` makes of a message; one with many values is read in a thread."""
    if message.ByteSize() < LONG_BYTES:
        return read()
    return await asyncio.to_thread(read)


async def request_of(message: Any) -> InferRequest:
    """Return the request of a message; errors as for `read_request`."""
    if message.raw_input_contents:
        return read_request(message)  # its values are not looked at
    return await parsed_message(partial(read_request, message), message)


def read_request(message: Any) -> InferRequest:
    """Return a message as a request.

    Raises:
        InvalidRequest: it cannot be read.
    """
    raw, inputs = message.raw_input_contents, []
    if raw and len(raw) != len(message.inputs):
        raise InvalidRequest(
            f"raw_input_contents has {len(raw)} values for the {len(message.inputs)} inputs of "
            f"model '{message.model_name[:256]}'. Send one for each, or none"
        )
    for place, one in enumerate(message.inputs):
        if SHARED in one.parameters:
            raise no_shared_memory()
        data = _raw(one, raw[place] if raw else None, message.model_name[:256])
        inputs.append(Tensor(one.name, one.datatype, list(one.shape), data))
    wanted = [
        wanted_output(one.name, parameters_of(one))._replace(binary=True) for one in message.outputs
    ]
    return InferRequest(inputs, wanted, message.id, parameters_of(message))


def _raw(one: Any, raw: bytes | None, model: str) -> Raw:
    where = f"input '{one.name}' for model '{model}'"
    if not one.HasField("contents"):
        if raw is None and 0 not in one.shape:
            raise InvalidRequest(f"unable to find data for {where} in request")
        return raw or b""
    if raw is not None:
        raise InvalidRequest(
            f"contents field must not be specified when using raw_input_contents for {where}"
        )
    field = _FIELDS.get(one.datatype)
    if field is None:
        if one.datatype in SIZES:
            raise InvalidRequest(f"{one.datatype} has no contents. Send {where} as raw contents")
        return b""  # refused by the check of the request
    others = [kind.name for kind, _ in one.contents.ListFields() if kind.name != field]
    if others:
        raise InvalidRequest(f"unexpected {others[0]} for {where}, which is {one.datatype}")
    values = list(getattr(one.contents, field))
    return joined(values) if one.datatype == BYTES else raw_of(one.datatype, values)


def write_response(
    request: InferRequest, model: str, version: str, tensors: Sequence[Tensor]
) -> Any:
    """Return outputs as a message; its values are raw."""
    response = InferResponse(model_name=model, model_version=version, id=request.id)
    for one in tensors:
        response.outputs.add(name=one.name, datatype=one.datatype, shape=one.shape)
        response.raw_output_contents.append(bytes(one.data))
    return response
