"""The state and the metadata of models, as TensorFlow Serving and KServe V1 show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from api.components.model_status import NO_WORKER, ModelStatus
from api.services import Services
from extensions.inference_protocols.models.repository import is_ready, model_for, status_of
from extensions.inference_protocols.tensorflow.requests import SIGNATURE, TYPES
from extensions.inference_protocols.tensors.requests import declaration_of
from headrace.config.inputs.tensors import ANY_SIZE, DeclaredTensor
from headrace.config.model.catalog import ModelConfig
from headrace.errors import ModelNotFound, last_line
from headrace.observability.worker_report import BEST_FIRST, UNLOADED_STATE

#: A model that is loaded at its first job is available. Any other state is LOADING.
_STATES: Final = {
    "ready": "AVAILABLE", UNLOADED_STATE: "AVAILABLE", "draining": "UNLOADING", "failed": "END",
    "stopped": "END", NO_WORKER: "START",
}  # fmt: skip


async def served(services: Services, name: str, version: str = "") -> ModelConfig:
    """Return a model, or a version of it; errors as for `model_for`."""
    try:
        return await model_for(services, name, version)
    except ModelNotFound:
        which = f"Specific({name}, {version})" if version else f"Latest({name})"
        raise ModelNotFound(f"Servable not found for request: {which[:256]}") from None


async def members(services: Services, model: ModelConfig | None) -> Mapping[str, Any]:
    """Return what these clients read at /v1/models/{model}, and, for None, at /v1/models.

    The version that a model is for is its first one.
    """
    if model is None:
        return {"models": [model.name for model in services.catalog.served]}
    status = await status_of(services, model)
    versions = services.model_statuses.versions(model)
    return {
        "name": model.name,
        "ready": is_ready(status, model),
        "model_version_status": [_row(model, version, status) for version in versions],
    }


def signatures_of(model: ModelConfig) -> dict[str, Any]:
    """Return the only signature of a model, as `SignatureDefMap` in JSON."""
    declared = declaration_of(model)
    signature = {
        "inputs": _tensors(declared.inputs, native=declared.native),
        "outputs": _tensors(declared.outputs, native=declared.native),
        "method_name": "tensorflow/serving/predict",
    }
    return {"signature_def": {SIGNATURE: signature}}


def _tensors(tensors: Sequence[DeclaredTensor], *, native: bool) -> dict[str, Any]:
    """Return tensors; a model without them takes and returns a value for each row."""
    signature = {}
    for tensor in tensors:
        dims = [
            {"size": str(size), "name": ""} for size in ([ANY_SIZE] if native else tensor.shape)
        ]
        signature[tensor.name] = {
            "dtype": f"DT_{TYPES.get(tensor.datatype, tensor.datatype).upper()}",
            "tensor_shape": {"dim": dims, "unknown_rank": False},
            "name": tensor.name,
        }
    return signature


def _row(model: ModelConfig, version: str, status: ModelStatus | None) -> dict[str, Any]:
    states = [worker.state for worker in (status.workers if status is not None else ())]
    own = [state for state in states if state.version in ("", version)]
    best = next((name for name in BEST_FIRST if name in {state.state for state in own}), "")
    shown = "END" if model.has_no_replicas else "UNKNOWN"
    if status is not None and shown != "END":
        shown = _STATES.get(best or status.state, "LOADING")
    errors = [state.error for state in own if shown == "END" and state.error]
    code, text = ("UNKNOWN", last_line(errors[0])) if errors else ("OK", "")
    error = {"error_code": code, "error_message": text}
    return {"version": version, "state": shown, "status": error}
