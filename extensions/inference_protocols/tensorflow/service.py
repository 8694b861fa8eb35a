"""TensorFlow Serving's calls over gRPC, as its REST has them, and its messages as tensors."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from google.protobuf import json_format

from api.grpc.calls import Method
from api.grpc.server import Methods
from api.http.messages import Request
from api.services import Services
from extensions.inference_protocols.grpc.messages import PROTOS
from extensions.inference_protocols.jobs import inference
from extensions.inference_protocols.jobs.over_http import parsed
from extensions.inference_protocols.tensorflow import answers, calls, status
from extensions.inference_protocols.tensorflow.requests import SIGNATURE, TYPES, check_signature
from extensions.inference_protocols.tensors.datatypes import (
    BYTES,
    SHOWN_CHARS,
    SIZES,
    count_of,
    elements,
    joined,
    raw_of_message,
    values_of,
)
from extensions.inference_protocols.tensors.envelope import RequestedOutput, Tensor
from extensions.inference_protocols.tensors.requests import (
    BYTES_VALUES_MAX,
    INPUT,
    OUTPUT,
    Declaration,
    InferRequest,
    declaration_of,
    of_value,
)
from headrace.access.api_key import Scope
from headrace.config.model.catalog import ModelConfig
from headrace.errors import InvalidRequest, PayloadTooLarge

_PACKAGE: Final = "tensorflow.serving"
_Signatures: Final = PROTOS.message(f"{_PACKAGE}.SignatureDefMap")
_SIGNATURES: Final = "signature_def"
TensorProto: Final = PROTOS.message("tensorflow.TensorProto")
_TYPE: Final = PROTOS.pool.FindEnumTypeByName("tensorflow.DataType")
_NUMBERS: Final = {
    name: _TYPE.values_by_name[f"DT_{TYPES.get(name, name).upper()}"].number for name in SIZES
}
_DATATYPES: Final = {number: name for name, number in _NUMBERS.items()}
#: Where a message has values of a datatype that is not in `int_val`.
_FIELDS: Final = {
    "FP16": "half_val", "BF16": "half_val", "FP32": "float_val", "FP64": "double_val",
    "INT64": "int64_val", "UINT32": "uint32_val", "UINT64": "uint64_val", "BOOL": "bool_val",
    BYTES: "string_val",
}  # fmt: skip
#: `half_val` has the bits of its values.
_BITS: Final = {"FP16": "UINT16", "BF16": "UINT16"}


def _response(name: str, model: ModelConfig) -> Any:
    """Return a response with the model that it is of."""
    response = PROTOS.message(f"{_PACKAGE}.{name}Response")()
    spec = response.model_spec
    spec.name, spec.signature_name = model.name, SIGNATURE
    if version := _number(model.version):
        spec.version.value = version
    return response


def _number(version: str) -> int:
    """Return a version such as `1` or `1.0` as a number; 0 for any other."""
    whole = version.removesuffix(".0")
    return int(whole) if whole.isdecimal() and len(whole) < 19 else 0


async def _served(services: Services, spec: Any) -> ModelConfig:
    check_signature(spec.signature_name)
    if spec.version_label:
        raise calls.no_label(spec.version_label)
    version = str(spec.version.value) if spec.HasField("version") else ""
    return await status.served(services, spec.name, version)


async def _predict(services: Services, request: Request, message: Any, context: Any) -> Any:
    read = partial(_of_tensors, services.settings.body_limit_bytes)
    model, _, tensors = await _run(services, request, message, context, read)
    response = _response("Predict", model)
    for tensor in tensors:
        response.outputs[tensor.name].CopyFrom(_message(tensor))
    return response


def _of_tensors(limit_bytes: int, message: Any, declared: Declaration) -> list[InferRequest]:
    inputs = tensors_of(message.inputs, limit_bytes)
    if declared.native and [tensor[:2] for tensor in inputs] == [(INPUT.name, BYTES)]:
        values = elements(inputs[0].data)
        calls.check_count(INPUT.name, len(values))
        return list(map(of_value, values))
    return [InferRequest(inputs, [RequestedOutput(name) for name in message.output_filter])]


async def _run(
    services: Services,
    request: Request,
    message: Any,
    context: Any,
    read: Callable[[Any, Declaration], list[InferRequest]],
) -> tuple[ModelConfig, Declaration, Sequence[Tensor]]:
    """Run the jobs that `read` makes of a request, and return their outputs as those of one."""
    model = await _served(services, message.model_spec)
    declared = declaration_of(model)
    with inference.counting_refusals(services, model):
        asked = await parsed(message.ByteSize(), read, message, declared)
        jobs = calls.jobs_of(services, request, model, asked)
    await context.send_initial_metadata(((inference.JOB, calls.ids_of(jobs)),))
    if not declared.native:
        (outputs,) = await calls.results(services, request, jobs, inference.outputs_of)
        return model, declared, outputs
    results = await calls.results(services, request, jobs, inference.result_of)
    values = [value for value, _ in results]
    return model, declared, [Tensor(OUTPUT.name, BYTES, [len(values)], joined(values))]


async def _classify(services: Services, request: Request, message: Any, context: Any) -> Any:
    read = partial(_of_examples, calls.CLASSIFY)
    model, declared, tensors = await _run(services, request, message, context, read)
    response = _response("Classification", model)
    for row in _numbers(answers.classes(tensors, calls.labels_of(declared))):
        classes = response.result.classifications.add().classes
        for label, score in row:
            classes.add(label=label, score=score)
    return response


async def _regress(services: Services, request: Request, message: Any, context: Any) -> Any:
    read = partial(_of_examples, calls.REGRESS)
    model, _, tensors = await _run(services, request, message, context, read)
    response = _response("Regression", model)
    for value in _numbers(answers.regressions(tensors)):
        response.result.regressions.add(value=value)
    return response


def _numbers(answer: Any) -> Any:
    return json.loads(msgspec.json.encode(answer))


async def _metadata(services: Services, _: Request, message: Any, _context: Any) -> Any:
    if not message.metadata_field:
        raise InvalidRequest("GetModelMetadataRequest must specify at least one metadata_field")
    for name in message.metadata_field:
        if name != _SIGNATURES:
            raise InvalidRequest(f"Metadata field {name[:64]} is not supported")
    model = await _served(services, message.model_spec)
    response = _response("GetModelMetadata", model)
    signatures = json_format.ParseDict(status.signatures_of(model), _Signatures())
    response.metadata[_SIGNATURES].Pack(signatures)
    return response


async def _status(services: Services, _: Request, message: Any, _context: Any) -> Any:
    model = await _served(services, message.model_spec)
    rows = (await status.members(services, model))["model_version_status"]
    rows = rows[:1] if message.model_spec.HasField("version") else rows
    rows = [{**row, "version": _number(row["version"])} for row in rows]
    response = PROTOS.message(f"{_PACKAGE}.GetModelStatusResponse")()
    return json_format.ParseDict({"model_version_status": rows}, response)


def tensors_of(messages: Mapping[str, Any], limit_bytes: int) -> list[Tensor]:
    """Return messages as tensors, which together have at most `limit_bytes`.

    A message of a few bytes can have a shape of any size, as its last value fills what is left. It
    raises InvalidRequest for what cannot be read, and PayloadTooLarge above the limit.
    """
    tensors: list[Tensor] = []
    for name, message in messages.items():
        tensors.append(_tensor(name, message, limit_bytes))
        limit_bytes -= len(tensors[-1].data)
    return tensors


def _tensor(name: str, message: Any, limit_bytes: int) -> Tensor:
    about, datatype = f"input '{name[:SHOWN_CHARS]}'", _DATATYPES.get(message.dtype)
    if datatype is None:
        known = _TYPE.values_by_number.get(message.dtype)
        kind = known.name if known is not None else message.dtype
        raise InvalidRequest(f"{about} has the type {kind}, which no model here takes")
    shape = [dimension.size for dimension in message.tensor_shape.dim]
    count = count_of(name, datatype, shape)
    if message.tensor_content:
        if datatype == BYTES:
            raise InvalidRequest(f"{about} has tensor_content. Send it as string_val")
        return Tensor(name, datatype, shape, message.tensor_content)
    values = getattr(message, _FIELDS.get(datatype, "int_val"))
    missing = count - len(values)
    if missing < 0:
        raise InvalidRequest(f"{about} has {len(values)} values, its shape {count}")
    if datatype == BYTES and count > BYTES_VALUES_MAX:
        raise InvalidRequest(
            f"{about} has {count} values, and a tensor of BYTES at most {BYTES_VALUES_MAX}"
        )
    too_large = PayloadTooLarge(
        f"{about} makes the tensors of the request larger than body_limit_bytes",
        hint="Send a smaller shape, or raise body_limit_bytes (HEADRACE_BODY_LIMIT_BYTES).",
    )
    # Refused before anything of its size is made.
    if count * (SIZES[datatype] or 1) > limit_bytes:
        raise too_large
    kind = _BITS.get(datatype, datatype)
    sent = raw_of_message(about, kind, list(values))
    if not missing:
        return Tensor(name, datatype, shape, sent)
    # Without a value it is zero, or the length of no bytes.
    last = values[-1:]
    filler = raw_of_message(about, kind, last) if last else bytes(SIZES[datatype] or 4)
    if len(sent) + missing * len(filler) > limit_bytes:
        raise too_large
    return Tensor(name, datatype, shape, sent + filler * missing)


def _message(tensor: Tensor) -> Any:
    """Return a tensor as a message, with its values in the field of their type."""
    _, datatype, shape, raw = tensor
    message = TensorProto(dtype=_NUMBERS[datatype])
    for size in shape:
        message.tensor_shape.dim.add(size=size)
    kind = _BITS.get(datatype, datatype)
    values: list[Any] = elements(raw) if datatype == BYTES else values_of(kind, raw)
    getattr(message, _FIELDS.get(datatype, "int_val")).extend(values)
    return message


def _of_examples(verb: str, message: Any, declared: Declaration) -> list[InferRequest]:
    kind = message.input.WhichOneof("kind")
    document: dict[str, Any] = {}
    if kind is not None:
        given = getattr(message.input, kind)
        document["examples"] = list(map(_features, given.examples))
        if kind == "example_list_with_context":
            document["context"] = _features(given.context)
    return calls.requests_of(document, None, declared, verb)


def _features(example: Any) -> dict[str, list[Any]]:
    features = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        values = list(getattr(feature, kind).value) if kind else []
        if kind == "bytes_list":
            values = [{"b64": base64.b64encode(value).decode()} for value in values]
        features[name] = values
    return features


SERVICES: Final[Mapping[str, Methods]] = {
    f"{_PACKAGE}.PredictionService": {
        "Predict": Method(_predict, Scope.SUBMIT),
        "Classify": Method(_classify, Scope.SUBMIT),
        "Regress": Method(_regress, Scope.SUBMIT),
        "GetModelMetadata": Method(_metadata, Scope.READ),
    },
    f"{_PACKAGE}.ModelService": {"GetModelStatus": Method(_status, Scope.READ)},
}
