"""A model as v2 and Triton describe it: its metadata and its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from api.services import Services
from extensions.inference_protocols.settings import NAME, ProtocolSettings
from extensions.inference_protocols.tensors.declarations import Declaration, declaration_of
from headrace import __version__
from headrace.config.inputs.tensors import DeclaredTensor
from headrace.config.model.catalog import ModelConfig
from headrace.errors import BrokerError

Document = dict[str, Any]
#: What clients know as the framework of a model.
_BACKEND: Final = "python"
_US_PER_MS: Final = 1000
#: What of the protocol's extensions is here.
_EXTENSIONS: Final = [
    "binary_tensor_data", "classification", "schedule_policy", "parameters", "statistics",
    "model_configuration", "model_repository",
]  # fmt: skip


def server_metadata(services: Services) -> Document:
    """Return name, version and extensions of the server."""
    name = services.settings.of(NAME, ProtocolSettings).server_name
    return {"name": name, "version": __version__, "extensions": _EXTENSIONS}


def metadata_of(services: Services, model: ModelConfig) -> Document:
    """Return the metadata of a model, or of the version that it is for."""
    declared = declaration_of(model)
    versions = [model.asked_version] if model.asked_version else None
    return {
        "name": model.name,
        "versions": versions or services.model_statuses.versions(model),
        "platform": _BACKEND,
        "inputs": _shapes(declared.inputs),
        "outputs": _shapes(declared.outputs),
    }


def _shapes(tensors: Sequence[DeclaredTensor]) -> list[Document]:
    return [{"name": one.name, "datatype": one.datatype, "shape": one.shape} for one in tensors]


async def config_of(services: Services, model: ModelConfig) -> Document:
    """Return the configuration of a model, as Triton's clients read it."""
    declared = declaration_of(model)
    config: Document = {
        "name": model.name,
        "platform": "",
        "backend": _BACKEND,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": declared.rows_max,
        "input": [
            {**one, "optional": tensor.optional}
            for one, tensor in zip(_dims(declared, declared.inputs), declared.inputs, strict=True)
        ],
        "output": _dims(declared, declared.outputs),
        "instance_group": [
            {
                "name": model.name,
                "kind": "KIND_CPU" if model.device == "cpu" else "KIND_AUTO",
                "count": max(1, model.replicas),
            }
        ],
        "model_transaction_policy": {"decoupled": await yields(services, model)},
        "parameters": {},
    }
    if declared.rows_max:
        config["dynamic_batching"] = {
            "preferred_batch_size": model.allowed_batch_sizes or [declared.rows_max],
            "max_queue_delay_microseconds": int(model.max_batch_delay_ms * _US_PER_MS),
        }
    return config


async def yields(services: Services, model: ModelConfig) -> bool:
    """Return whether the handler of a model yields, by the report of a worker."""
    try:
        status = (await services.model_statuses.statuses()).get(model.name)
    except BrokerError:
        return False
    return status is not None and any(one.state.yields for one in status.workers)


def _dims(declared: Declaration, tensors: Sequence[DeclaredTensor]) -> list[Document]:
    return [
        {
            "name": one.name,
            "data_type": "TYPE_STRING" if one.datatype == "BYTES" else f"TYPE_{one.datatype}",
            "dims": list(declared.dims_of(one)),
        }
        for one in tensors
    ]
