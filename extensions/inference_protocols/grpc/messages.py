"""The messages of infer as requests of v2, and outputs as messages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from api.grpc.protos import Protos
from extensions.inference_protocols.jobs.over_http import parsed
from extensions.inference_protocols.tensors.datatypes import BYTES, SIZES, Raw, raw_of_message
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


def _parameters(message: Any) -> dict[str, Value]:
    if not message.parameters:
        return {}
    kinds = {n: value.WhichOneof("parameter_choice") for n, value in message.parameters.items()}
    return {n: getattr(message.parameters[n], kind) for n, kind in kinds.items() if kind}


async def request_of(message: Any) -> InferRequest:
    """Return a message as a request; raise InvalidRequest if it cannot be read."""
    # Raw values are not looked at.
    size = 0 if message.raw_input_contents else message.ByteSize()
    return await parsed(size, _read, message)


def _read(message: Any) -> InferRequest:
    raw, inputs = message.raw_input_contents, []
    if raw and len(raw) != len(message.inputs):
        raise InvalidRequest(
            f"raw_input_contents has {len(raw)} values for the {len(message.inputs)} inputs of "
            f"model '{message.model_name[:256]}'. Send one for each, or none"
        )
    for place, sent in enumerate(message.inputs):
        if SHARED in sent.parameters:
            raise no_shared_memory()
        data = _raw(sent, raw[place] if raw else None, message.model_name[:256])
        inputs.append(Tensor(sent.name, sent.datatype, list(sent.shape), data))
    outputs = (wanted_output(output.name, _parameters(output)) for output in message.outputs)
    wanted = [output._replace(binary=True) for output in outputs]
    return InferRequest(inputs, wanted, message.id, _parameters(message))


def _raw(sent: Any, raw: bytes | None, model: str) -> Raw:
    where = f"input '{sent.name}' for model '{model}'"
    if not sent.HasField("contents"):
        if raw is None and 0 not in sent.shape:
            raise InvalidRequest(f"unable to find data for {where} in request")
        return raw or b""
    if raw is not None:
        raise InvalidRequest(
            f"contents field must not be specified when using raw_input_contents for {where}"
        )
    field = _FIELDS.get(sent.datatype)
    if field is None:
        if sent.datatype in SIZES:
            raise InvalidRequest(f"{sent.datatype} has no contents. Send {where} as raw contents")
        return b""  # refused by the check of the request
    others = [kind.name for kind, _ in sent.contents.ListFields() if kind.name != field]
    if others:
        raise InvalidRequest(f"unexpected {others[0]} for {where}, which is {sent.datatype}")
    return raw_of_message(where, sent.datatype, list(getattr(sent.contents, field)))


def write_response(
    request: InferRequest, model: str, version: str, tensors: Sequence[Tensor]
) -> Any:
    """Return outputs as a message; its values are raw."""
    response = InferResponse(model_name=model, model_version=version, id=request.id)
    for name, datatype, shape, data in tensors:
        response.outputs.add(name=name, datatype=datatype, shape=shape)
        response.raw_output_contents.append(bytes(data))
    return response
