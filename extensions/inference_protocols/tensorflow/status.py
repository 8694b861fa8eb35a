"""The state and the metadata of models, as TensorFlow Serving and KServe V1 show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from api.components.model_status import NO_WORKER, ModelStatus
from api.http.messages import Reply, Request, json_reply
from api.services import Services
from extensions.inference_protocols.models.lookup import is_ready, is_unloaded
from extensions.inference_protocols.tensorflow.calls import served
from extensions.inference_protocols.tensorflow.requests import SIGNATURE, TYPES
from extensions.inference_protocols.tensors.declarations import declaration_of
from headrace.config.inputs.tensors import ANY_SIZE, DeclaredTensor
from headrace.config.model.catalog import ModelConfig
from headrace.errors import BrokerError, last_line
from headrace.observability.worker_report import BEST_FIRST, UNLOADED_STATE

#: A model that is loaded at its first job is available. Any other state is LOADING.
_STATES: Final = {
    "ready": "AVAILABLE", UNLOADED_STATE: "AVAILABLE", "draining": "UNLOADING", "failed": "END",
    "stopped": "END", NO_WORKER: "START",
}  # fmt: skip


async def members(services: Services, model: ModelConfig | None) -> Mapping[str, Any]:
    """Return what these clients read at /v1/models/{model}, and, for None, at /v1/models."""
    if model is None:
        return {"models": [one.name for one in services.catalog.served]}
    status = await _status(services, model)
    versions = services.model_statuses.versions(model)
    return {
        "name": model.name,
        "ready": is_ready(status, model),
        "model_version_status": [_row(model, version, status) for version in versions],
    }


async def state_of(services: Services, model: ModelConfig) -> dict[str, Any]:
    """Return the state of the version that a model is for."""
    return _row(model, model.version, await _status(services, model))


async def version_status(services: Services, _: Request, model: str, version: str) -> Reply:
    """Return the state of one version of a model."""
    row = await state_of(services, await served(services, model, version))
    return json_reply({"model_version_status": [row]})


async def metadata(services: Services, _: Request, model: str, version: str = "") -> Reply:
    """Return the tensors of a model as its only signature."""
    found = await served(services, model, version)
    spec = {"name": found.name, "signature_name": "", "version": found.version}
    return json_reply({"model_spec": spec, "metadata": {"signature_def": signatures_of(found)}})


def signatures_of(model: ModelConfig) -> dict[str, Any]:
    """Return the signatures of a model, as `SignatureDefMap` in JSON."""
    declared = declaration_of(model)
    signature = {
        "inputs": _tensors(declared.inputs, native=declared.native),
        "outputs": _tensors(declared.outputs, native=declared.native),
        "method_name": "tensorflow/serving/predict",
    }
    return {"signature_def": {SIGNATURE: signature}}


def _tensors(tensors: Sequence[DeclaredTensor], *, native: bool) -> dict[str, Any]:
    """Return tensors; a model without them takes and returns a value for each row."""
    found = {}
    for one in tensors:
        shape = [ANY_SIZE] if native else one.shape
        dims = [{"size": str(size), "name": ""} for size in shape]
        found[one.name] = {
            "dtype": f"DT_{TYPES.get(one.datatype, one.datatype).upper()}",
            "tensor_shape": {"dim": dims, "unknown_rank": False},
            "name": one.name,
        }
    return found


async def _status(services: Services, model: ModelConfig) -> ModelStatus | None:
    try:
        return (await services.model_statuses.statuses()).get(model.name)
    except BrokerError:
        return None


def _row(model: ModelConfig, version: str, status: ModelStatus | None) -> dict[str, Any]:
    states = [one.state for one in (status.workers if status is not None else ())]
    own = [one for one in states if one.version in ("", version)]
    best = next((name for name in BEST_FIRST if name in {one.state for one in own}), "")
    state = "END" if is_unloaded(model) else "UNKNOWN"
    if status is not None and state != "END":
        state = _STATES.get(best or status.state, "LOADING")
    errors = [one.error for one in own if state == "END" and one.error]
    code, text = ("UNKNOWN", last_line(errors[0])) if errors else ("OK", "")
    shown = {"error_code": code, "error_message": text}
    return {"version": version, "state": state, "status": shown}
