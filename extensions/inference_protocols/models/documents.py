"""A model as v2 and Triton describe it: its metadata, its configuration and its statistics.

The statistics are from the counters that /metrics shows too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from api.services import Services
from extensions.inference_protocols.models.repository import model_for, status_of
from extensions.inference_protocols.settings import NAME, ProtocolSettings
from extensions.inference_protocols.tensors.datatypes import BYTES
from extensions.inference_protocols.tensors.requests import Declaration, declaration_of
from headrace import __version__
from headrace.config.inputs.tensors import DeclaredTensor
from headrace.config.model.catalog import ModelConfig
from headrace.errors import InvalidRequest, ModelNotFound
from headrace.observability import worker_report as report
from headrace.redis import keys

Document = dict[str, Any]
#: What clients know as the framework of a model.
_BACKEND: Final = "python"
#: What of the protocol's extensions is here.
_EXTENSIONS: Final = [
    "binary_tensor_data", "classification", "schedule_policy", "parameters", "statistics",
    "model_configuration", "model_repository",
]  # fmt: skip
_HISTOGRAMS: Final = (
    report.BATCH_SIZE,
    report.QUEUE_S,
    report.HOLD_S,
    report.DEVICE_WAIT_S,
    report.JOB_S,
    *report.STAGES_S,
)
_COUNTERS: Final = (f"{report.ENDED}:succeeded", f"{report.ENDED}:failed", report.ROWS)
_FIELDS: Final = (*map(report.field_of, _HISTOGRAMS), *_COUNTERS)
_US_PER_MS: Final = 1000
_NS_PER_S: Final = 1_000_000_000


async def server_metadata(services: Services) -> Document:
    """Return name, version and extensions of the server."""
    name = services.settings.of(NAME, ProtocolSettings).server_name
    return {"name": name, "version": __version__, "extensions": _EXTENSIONS}


async def metadata_of(services: Services, name: str, version: str = "") -> Document:
    """Return the metadata of a model, or of a version of it; errors as for `model_for`."""
    model = await model_for(services, name, version)
    await services.model_statuses.refresh()
    declared = declaration_of(model)
    versions = [model.asked_version] if model.asked_version else None
    return {
        "name": model.name,
        "versions": versions or services.model_statuses.versions(model),
        "platform": _BACKEND,
        "inputs": list(map(_shape, declared.inputs)),
        "outputs": list(map(_shape, declared.outputs)),
    }


def _shape(tensor: DeclaredTensor) -> Document:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}


async def config_of(services: Services, name: str, version: str = "") -> Document:
    """Return the configuration of a model for Triton's clients; errors as for `model_for`."""
    model = await model_for(services, name, version)
    declared = declaration_of(model)
    device = "KIND_CPU" if model.device == "cpu" else "KIND_AUTO"
    config: Document = {
        "name": model.name,
        "platform": "",
        "backend": _BACKEND,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": declared.rows_max,
        "input": [
            {**_dims(declared, tensor), "optional": tensor.optional} for tensor in declared.inputs
        ],
        "output": [_dims(declared, tensor) for tensor in declared.outputs],
        "instance_group": [
            {"name": model.name, "kind": device, "count": max(1, model.replicas)},
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
    status = await status_of(services, model)
    return status is not None and any(worker.state.yields for worker in status.workers)


def _dims(declared: Declaration, tensor: DeclaredTensor) -> Document:
    datatype = "STRING" if tensor.datatype == BYTES else tensor.datatype
    dims = list(declared.dims_of(tensor))
    return {"name": tensor.name, "data_type": f"TYPE_{datatype}", "dims": dims}


async def statistics_of(services: Services, name: str = "", version: str = "") -> Document:
    """Return the statistics of a model, or of all; they are up to a second old.

    It raises InvalidRequest for an unknown model, and BrokerError without Redis.
    """
    models: Sequence[ModelConfig] = services.catalog.served
    if name:
        try:
            models = [await model_for(services, name, version)]
        except ModelNotFound:
            raise InvalidRequest(f"requested model '{name[:256]}' is not available") from None
    rows = await services.queue.read_all(
        [("HMGET", keys.stats(model.name), *_FIELDS) for model in models]
    )
    return {"model_stats": list(map(_statistics, models, rows))}


def _statistics(model: ModelConfig, row: Sequence[bytes | None]) -> Document:
    histograms = dict(zip(_HISTOGRAMS, map(_count_and_sum, row), strict=False))
    succeeded, failed, rows = (int(float(raw or 0)) for raw in row[-len(_COUNTERS) :])
    batches, jobs = map(int, histograms[report.BATCH_SIZE])
    waits = [histograms[name] for name in (report.QUEUE_S, report.HOLD_S, report.DEVICE_WAIT_S)]

    def compute(stage: str) -> dict[str, int]:
        # The time of a batch counts for each of its jobs, as with Triton.
        ran, seconds = histograms[stage]
        return _duration(jobs, seconds * jobs / ran if ran else 0.0)

    names = ("compute_input", "compute_infer", "compute_output")
    return {
        "name": model.name,
        "version": model.version,
        "last_inference": 0,
        "inference_count": rows or jobs,
        "execution_count": batches,
        "inference_stats": {
            "success": _duration(succeeded, histograms[report.JOB_S][1]),
            "fail": _duration(failed, 0.0),
            "queue": _duration(waits[0][0], sum(seconds for _, seconds in waits)),
            **dict(zip(names, map(compute, report.STAGES_S), strict=True)),
            "cache_hit": _duration(0, 0.0),
            "cache_miss": _duration(0, 0.0),
        },
        "batch_stats": [],
        "memory_usage": [],
        "response_stats": {},
    }


def _count_and_sum(raw: bytes | None) -> tuple[int, float]:
    """Return the count and the sum of a histogram, which end its field."""
    parts = raw.split() if raw else []
    return (int(parts[-2]), float(parts[-1])) if len(parts) > 1 else (0, 0.0)


def _duration(count: int, seconds: float) -> dict[str, int]:
    return {"count": count, "ns": int(seconds * _NS_PER_S)}
