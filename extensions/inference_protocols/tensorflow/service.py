"""TensorFlow Serving's calls over gRPC: thin forms of its REST."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from google.protobuf import json_format

from api.grpc.calls import Method
from api.grpc.server import Methods
from api.http.messages import Request
from api.services import Services
from extensions.inference_protocols.grpc.messages import PROTOS, parsed_message
from extensions.inference_protocols.jobs.inference import (
    JOB,
    job_request,
    outputs_of,
    result_of,
)
from extensions.inference_protocols.jobs.over_http import call_of
from extensions.inference_protocols.tensorflow import answers, calls
from extensions.inference_protocols.tensorflow.messages import (
    document_of_examples,
    message_of,
    tensors_of,
)
from extensions.inference_protocols.tensorflow.requests import SIGNATURE, check_signature
from extensions.inference_protocols.tensorflow.status import members, signatures_of, state_of
from extensions.inference_protocols.tensors.datatypes import BYTES, elements, joined
from extensions.inference_protocols.tensors.declarations import (
    INPUT,
    OUTPUT,
    Declaration,
    declaration_of,
)
from extensions.inference_protocols.tensors.envelope import RequestedOutput, Tensor
from extensions.inference_protocols.tensors.requests import InferRequest, of_value
from headrace.access.api_key import Scope
from headrace.config.model.catalog import ModelConfig
from headrace.errors import HeadraceError, InvalidRequest
from headrace.jobs.job import Job

_PACKAGE: Final = "tensorflow.serving"
_Signatures: Final = PROTOS.message(f"{_PACKAGE}.SignatureDefMap")
_SIGNATURES: Final = "signature_def"


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
    return await calls.served(services, spec.name, version)


async def _predict(services: Services, request: Request, message: Any, context: Any) -> Any:
    model = await _served(services, message.model_spec)
    declared, limit_bytes = declaration_of(model), services.settings.body_limit_bytes

    def read() -> list[InferRequest]:
        inputs = tensors_of(message.inputs, limit_bytes)
        if declared.native and [one[:2] for one in inputs] == [(INPUT.name, BYTES)]:
            values = elements(inputs[0].data)
            calls.check_count(INPUT.name, len(values))
            return [of_value(one, INPUT.name) for one in values]
        return [InferRequest(inputs, [RequestedOutput(name) for name in message.output_filter])]

    response = _response("Predict", model)
    for one in await _outputs(services, request, context, model, message, read):
        response.outputs[one.name].CopyFrom(message_of(one))
    return response


async def _outputs(
    services: Services,
    request: Request,
    context: Any,
    model: ModelConfig,
    message: Any,
    read: Callable[[], list[InferRequest]],
) -> Sequence[Tensor]:
    """Run the jobs of a request, and return their outputs as those of one."""
    try:
        jobs = [
            job_request(services, call_of(request, at), model, one)
            for at, one in enumerate(await parsed_message(read, message))
        ]
    except HeadraceError as error:
        services.counters.refused(model.name, error.code)
        raise
    await context.send_initial_metadata(((JOB, calls.ids_of(jobs)),))
    if not declaration_of(model).native:
        return (await calls.results(services, request, jobs, outputs_of))[0]
    values = await calls.results(services, request, jobs, _native_value)
    return [Tensor(OUTPUT.name, BYTES, [len(values)], joined(values))]


async def _native_value(services: Services, job: Job) -> bytes:
    return (await result_of(services, job))[0]


async def _of_examples(
    services: Services, request: Request, message: Any, context: Any, verb: str
) -> tuple[ModelConfig, Declaration, Sequence[Tensor]]:
    model = await _served(services, message.model_spec)
    declared = declaration_of(model)

    def read() -> list[InferRequest]:
        return calls.requests_of(document_of_examples(message.input), None, declared, verb)

    return model, declared, await _outputs(services, request, context, model, message, read)


async def _classify(services: Services, request: Request, message: Any, context: Any) -> Any:
    found = await _of_examples(services, request, message, context, calls.CLASSIFY)
    model, declared, tensors = found
    response = _response("Classification", model)
    for row in json.loads(answers.classes(tensors, calls.labels_of(declared))):
        classes = response.result.classifications.add().classes
        for label, score in row:
            classes.add(label=label, score=score)
    return response


async def _regress(services: Services, request: Request, message: Any, context: Any) -> Any:
    model, _, tensors = await _of_examples(services, request, message, context, calls.REGRESS)
    response = _response("Regression", model)
    for value in json.loads(answers.regressions(tensors)):
        response.result.regressions.add(value=value)
    return response


async def _metadata(services: Services, _: Request, message: Any, _context: Any) -> Any:
    if not message.metadata_field:
        raise InvalidRequest("GetModelMetadataRequest must specify at least one metadata_field")
    for name in message.metadata_field:
        if name != _SIGNATURES:
            raise InvalidRequest(f"Metadata field {name[:64]} is not supported")
    model = await _served(services, message.model_spec)
    response = _response("GetModelMetadata", model)
    signatures = json_format.ParseDict(signatures_of(model), _Signatures())
    response.metadata[_SIGNATURES].Pack(signatures)
    return response


async def _status(services: Services, _: Request, message: Any, _context: Any) -> Any:
    model = await _served(services, message.model_spec)
    if message.model_spec.HasField("version"):
        rows: list[Mapping[str, Any]] = [await state_of(services, model)]
    else:
        rows = (await members(services, model))["model_version_status"]
    found = [{**row, "version": _number(row["version"])} for row in rows]
    response = PROTOS.message(f"{_PACKAGE}.GetModelStatusResponse")()
    return json_format.ParseDict({"model_version_status": found}, response)


SERVICES: Final[Mapping[str, Methods]] = {
    f"{_PACKAGE}.PredictionService": {
        "Predict": Method(_predict, Scope.SUBMIT),
        "Classify": Method(_classify, Scope.SUBMIT),
        "Regress": Method(_regress, Scope.SUBMIT),
        "GetModelMetadata": Method(_metadata, Scope.READ),
    },
    f"{_PACKAGE}.ModelService": {"GetModelStatus": Method(_status, Scope.READ)},
}
