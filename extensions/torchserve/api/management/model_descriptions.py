"""Descriptions of models as TorchServe writes them, with the order of its keys.

What TorchServe's descriptions lack follows its keys, under names of ours.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from api.services import Services
from extensions.torchserve.config.manifest import read_manifest, read_settings
from extensions.torchserve.config.model_config import AT_START, RUNTIME, TOO_SMALL, URL
from extensions.torchserve.metrics.recorder import FIRST_WORKER
from headrace.config.model.catalog import ModelConfig
from headrace.config.settings import MIB
from headrace.observability.worker_report import (
    Figures,
    ModelState,
    ProcessState,
    WorkerReport,
)
from headrace.redis import keys
from headrace.redis.keys import VERSION_SEPARATOR
from headrace.registry.model import ModelVersion, RegisteredModel

_READY: Final = "ready"
_FAILED: Final = "failed"
#: TorchServe has no other state for a worker that is not ready.
_NOT_READY: Final = "UNLOADING"
_NO_GPU: Final = "N/A"
_CUDA: Final = "cuda"


class Serving(NamedTuple):
    """The model processes of one version in one worker.

    Attributes:
        figures: what the worker measures.
        memory_bytes: the memory of one process of the model there, on average.
    """

    state: ModelState
    figures: Figures
    memory_bytes: int


class Pending(NamedTuple):
    """The jobs of one version.

    Attributes:
        running: how many a worker has.
        oldest_age_s: how long the oldest has waited; None if none waits.
    """

    waiting: int
    running: int
    oldest_age_s: float | None


async def describe(
    services: Services, model: RegisteredModel, versions: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the descriptions of some versions of a model."""
    reports = await services.queue.worker_states()
    depths = await _pending(services, model)
    configs = services.catalog.versions.get(model.name, {})
    files = await asyncio.to_thread(_read_files, [configs.get(version) for version in versions])
    return [
        _description(model, version, configs.get(version), depths[version], reports.values(), facts)
        for version, facts in zip(versions, files, strict=True)
    ]


def serving_of(name: str, version: str, reports: Collection[WorkerReport]) -> list[Serving]:
    """Return the workers that serve a version."""
    found = []
    for report in reports:
        states = [
            state
            for label, state in sorted(report.models.items())
            if label.partition(VERSION_SEPARATOR)[0] == name
        ]
        processes = sum(len(state.pids) for state in states)
        memory_bytes = report.figures.models.get(name, 0) // max(1, processes)
        found += [
            Serving(state, report.figures, memory_bytes)
            for state in states
            if state.version == version
        ]
    return found


def details_of(one: ModelVersion) -> Mapping[str, Any]:
    """Return the `options` of a version, some members of which are for its description."""
    details = one.options.get("options")
    return details if isinstance(details, dict) else {}


def url_of(one: ModelVersion) -> str:
    """Return where a version comes from, as its registration has it."""
    return str(
        details_of(one).get(URL) or one.options.get("source") or one.options.get("handler") or ""
    )


def worker_range(options: Mapping[str, Any]) -> tuple[int, int]:
    """Return the least and the most workers that the options of a version give."""
    total, most = options.get("total_replicas"), options.get("max_replicas")
    if total is not None:
        return total, total
    replicas = options.get("replicas", 1)
    replicas = replicas if isinstance(replicas, int) else 1
    if most is None or not replicas:
        return replicas, replicas
    return options.get("min_replicas", 1), most


async def _pending(services: Services, model: RegisteredModel) -> dict[str, Pending]:
    versions = list(model.versions)
    queues = [keys.version_queue(model.name, version) for version in versions]
    whole, *own = await services.queue.depths([keys.queue_name(model.name), *queues])
    found = {
        version: Pending(depth.total, depth.in_flight, depth.oldest_age_s)
        for version, depth in zip(versions, own, strict=True)
    }
    # Jobs that ask for no version run on the default one. They count for the model only.
    waiting = whole.total - sum(depth.total for depth in own)
    running = whole.in_flight - sum(depth.in_flight for depth in own)
    default = found[model.default_version]
    ages = [age for age in (default.oldest_age_s, whole.oldest_age_s) if age is not None]
    found[model.default_version] = Pending(
        default.waiting + max(0, waiting),
        default.running + max(0, running),
        max(ages, default=None),
    )
    return found


def _read_files(
    configs: Sequence[ModelConfig | None],
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the manifest and the settings of each; {} for those without a folder here."""
    found = []
    for config in configs:
        folder = Path(config.folder) if config is not None and config.folder else None
        manifest = read_manifest(folder) if folder is not None else {}
        found.append((manifest, read_settings(folder, manifest) if folder is not None else {}))
    return found


def _description(
    model: RegisteredModel,
    version: str,
    config: ModelConfig | None,
    pending: Pending,
    reports: Collection[WorkerReport],
    files: tuple[dict[str, Any], dict[str, Any]],
) -> dict[str, Any]:
    """Return the description of one version; `files` are its manifest and its settings."""
    one = model.versions[version]
    options = config or ModelConfig(name=model.name)
    manifest, settings = files
    serving = serving_of(model.name, version, reports)
    least, most = worker_range(one.options)
    found: dict[str, Any] = {
        "modelName": model.name,
        "modelVersion": version,
        "modelUrl": url_of(one),
        "runtime": details_of(one).get(RUNTIME) or _text(manifest, "runtime", "python"),
        "minWorkers": least,
        "maxWorkers": most,
        **_limits(options, settings),
        **_devices(options, settings, serving),
        **_features(settings),
        # TorchServe has no answer by version.
        "loadedAtStartup": any(
            each.declared is not None or details_of(each).get(AT_START)
            for each in model.versions.values()
        ),
        "workers": _workers(serving, least, one.options.get("total_replicas")),
        "jobQueueStatus": {
            "remainingCapacity": max(0, options.max_queue_depth - pending.waiting),
            "pendingRequests": pending.waiting,
            "runningRequests": pending.running,
            "oldestRequestAgeSec": pending.oldest_age_s,
        },
    }
    if error := _load_error(model.name, version, serving, reports):
        found["loadError"] = error
    return found


def _limits(options: ModelConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "batchSize": options.max_batch_size,
        "maxBatchDelay": round(options.max_batch_delay_ms),
        "responseTimeout": round(options.timeout_s),
        "startupTimeout": round(options.load_timeout_s),
        **(options.options.get(TOO_SMALL) or {}),
        "maxRetryTimeoutInSec": _number(settings, "maxRetryTimeoutInSec", 300),
        "clientTimeoutInMills": _number(settings, "clientTimeoutInMills", 0),
    }


def _devices(
    options: ModelConfig, settings: Mapping[str, Any], serving: Sequence[Serving]
) -> dict[str, Any]:
    gpu = any(each.state.device.startswith(_CUDA) for each in serving)
    found: dict[str, Any] = {
        "parallelType": _text(settings, "parallelType", ""),
        "parallelLevel": _number(settings, "parallelLevel", 0),
        "deviceType": "gpu" if gpu else "cpu",
    }
    if options.device_ids:
        found["deviceIds"] = options.device_ids
    return found


def _features(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return which features of TorchServe an archive uses, and its limits for sequences."""
    idle_ms = _number(settings, "sequenceMaxIdleMSec", 0)
    # Without an idle time the limits have no effect.
    limits = settings if idle_ms else {}
    default = 1 if idle_ms else 0
    return {
        "continuousBatching": _flag(settings, "continuousBatching"),
        "useJobTicket": _flag(settings, "useJobTicket"),
        "useVenv": _flag(settings, "useVenv"),
        "stateful": _flag(settings, "sequenceBatching"),
        "sequenceMaxIdleMSec": idle_ms,
        "sequenceTimeoutMSec": _number(limits, "sequenceTimeoutMSec", 0),
        "maxNumSequence": _number(limits, "maxNumSequence", default),
        "maxSequenceJobQueueSize": _number(limits, "maxSequenceJobQueueSize", default),
    }


def _workers(serving: Sequence[Serving], least: int, total: int | None) -> list[dict[str, Any]]:
    """Return the model processes as TorchServe describes workers, in the order of their ids.

    As there, the list has the workers that there will be: those that have not started are in it,
    and those that are on their way out are not.

    Args:
        total: how many it has in all workers together; None if each worker has its own number.
    """
    found: dict[int, dict[str, Any]] = {}

    def add(number: int, process: ProcessState, each: Serving | None, device: str) -> None:
        number = _free_id(found, number)
        gpu = each is not None and device.startswith(_CUDA)
        found[number] = {
            "id": str(number),
            "startTime": _time(process.since_s),
            "status": "READY" if process.state == _READY else _NOT_READY,
            "memoryUsage": each.memory_bytes if each is not None else 0,
            "pid": process.pid,
            "gpu": gpu,
            "gpuUsage": _gpu_usage(each, process.pid) if each is not None and gpu else _NO_GPU,
            "state": process.state,
            "device": device,
            "node": each.state.node if each is not None else "",
        }

    for each in serving:
        state = each.state
        for process in state.processes or [ProcessState(pid, state.state) for pid in state.pids]:
            # In TorchServe an id is the number of a port; here it follows the pid.
            add(FIRST_WORKER + process.pid, process, each, state.device)
    failed = any(each.state.state == _FAILED for each in serving)
    while len(found) < least:
        absent = ProcessState(-1, _FAILED if failed else "loading", time.time())
        add(FIRST_WORKER, absent, None, serving[0].state.device if serving else "")
    if total is not None and len(found) > total:
        stay = sorted(found, key=lambda number: found[number]["state"] != _READY)[:total]
        found = {number: found[number] for number in stay}
    return [found[number] for number in sorted(found)]


def _free_id(taken: Collection[int], number: int) -> int:
    """Return the first free id from a number on: two hosts may have the same pid."""
    while number in taken:
        number += 1
    return number


def _gpu_usage(serving: Serving, pid: int) -> str:
    """Return the use of a GPU, as TorchServe writes what nvidia-smi prints."""
    number = serving.state.device.partition(":")[2] or "0"
    device = next((one for one in serving.figures.devices if one.id == number), None)
    if device is None:
        return _NO_GPU
    busy = round(100 * (device.busy_ratio or 0))
    used, total = device.memory_used_bytes or 0, device.memory_bytes or 0
    own = serving.figures.gpu_processes.get(pid, used)
    return (
        f"gpuId::{number} utilization.gpu [%]::{busy} % "
        f"utilization.memory [%]::{round(100 * used / total) if total else 0} % "
        f"memory.used [MiB]::{own // MIB} MiB"
    )


def _load_error(
    name: str, version: str, serving: Sequence[Serving], reports: Collection[WorkerReport]
) -> str:
    """Return the traceback of a failed load; "" without one."""
    label = f"{name}{VERSION_SEPARATOR}{version}"
    for report in reports:
        progress = report.registry
        if progress is not None and label in progress.failed:
            return progress.failed[label]
    return next((each.state.error for each in serving if each.state.error), "")


def _time(since_s: float) -> str:
    return datetime.fromtimestamp(since_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + (
        f"{int(since_s * 1000) % 1000:03}Z"
    )


def _text(values: Mapping[str, Any], key: str, default: str) -> str:
    value = values.get(key)
    return value if isinstance(value, str) else default


def _number(values: Mapping[str, Any], key: str, default: int) -> int:
    value = values.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _flag(values: Mapping[str, Any], key: str) -> bool:
    return values.get(key) is True
