"""Decides what a worker can host, and with which cores and threads its model processes run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

import msgspec

from headrace.config.model.capacity import Capacity, misfits, needs_of
from headrace.config.model.catalog import ModelConfig
from headrace.config.settings import Settings
from headrace.observability.worker_report import DeviceFigures, Figures
from headrace.server.gpus import mps_runs
from workers.replicas.cores import CoreSets, core_sets_of, own_cores, why_not_pinned
from workers.replicas.devices import device_of, has_gpu, model_environ, threads_of
from workers.replicas.memory import MIB, available_mib, own_mib, total_mib

logger = logging.getLogger(__name__)


class Placement:
    """The placement of a worker.

    Args:
        models: those at the start, which decide the share of the cores of each process.
        devices: its GPUs, as the driver reports them at the start.

    Attributes:
        environ: the environment of its model processes.
        core_sets: the cores that they are pinned to.
        capacity: what the worker can host.
        figures: returns what the worker has measured last.
    """

    def __init__(
        self,
        models: Iterable[ModelConfig],
        settings: Settings,
        environ: Mapping[str, str],
        devices: Iterable[DeviceFigures] = (),
    ) -> None:
        self._given = environ
        self.labels = settings.worker_labels
        self.figures: Callable[[], Figures] = Figures
        cores = own_cores()
        self._cores = cores
        present = list(devices)
        self.capacity = Capacity(
            device=_device_kind(environ),
            gpus=[device.gpu for device in present if device.gpu is not None],
            memory_mib=int(total_mib()),
            gpu_memory_mib=min((device.memory_bytes or 0 for device in present), default=0) // MIB,
            cores=cores.count,
            pin_cores=settings.pin_cores,
            mps=bool(present) and mps_runs(environ),
        )
        resolved = [self.resolve(config) for config in models if not self.misfits(config)]
        processes = _processes(resolved, settings.max_loaded_models or 1)
        side_by_side = min(settings.device_slots or processes, processes)
        self.environ = model_environ(environ, side_by_side)
        threads = threads_of(self.environ)
        problem = why_not_pinned(cores, settings.pin_cores)
        pinning = "off" if problem else settings.pin_cores
        self.core_sets = CoreSets(core_sets_of(cores.cores, max(1, threads), pinning))
        if problem:
            logger.warning("model processes are not pinned: %s", problem)
        logger.info("%s; model processes: %d, threads of each: %d", cores, processes, threads)
        for config in resolved:
            if config.auto_replicas and config.total_replicas is None:
                fields = {"model": config.name}
                logger.info(
                    "replicas auto: %d, %s", config.replicas, self._why(config), extra=fields
                )
        if len(self.core_sets):
            logger.info("model processes are pinned: %s", self.core_sets)

    def resolve(self, config: ModelConfig) -> ModelConfig:
        """Return a model with a number for `replicas`, if they are `auto`."""
        if not config.auto_replicas or config.total_replicas is not None:
            return config
        on_cpu = device_of(config, self._given) == "cpu"
        replicas = max(1, self._cores.count // 2) if on_cpu else 1
        if config.max_replicas is not None:
            replicas = min(replicas, config.max_replicas)
        return msgspec.structs.replace(config, replicas=replicas)

    def misfits(self, config: ModelConfig) -> list[str]:
        """Return in words why this worker cannot host a model; empty if it can."""
        return misfits(needs_of(config), self.labels, self.capacity)

    def why_no_room(
        self, config: ModelConfig, device: str, load_mib: float, loading_mib: float
    ) -> str:
        """Return in words why there is no memory for another replica; "" if there is, or may be.

        Args:
            load_mib: what a replica took at the last load; 0 if it was not measured.
            loading_mib: what replicas on this device that load now will still take.
        """
        need = config.memory_mb or load_mib
        free = self._free_mib(device) if need else None
        if free is None or need <= free - loading_mib:
            return ""
        what = "memory" if device == "cpu" else "GPU memory"
        known = "memory_mb" if config.memory_mb else "measured at its last load"
        others = f", of which replicas that load take {loading_mib:.0f}" if loading_mib else ""
        return (
            f"no room for a replica: it needs {need:.0f} MiB of {what} ({known}), and {free:.0f} "
            f"MiB are free here{others}. Free some, run fewer replicas, or correct memory_mb"
        )

    def used_mib(self, device: str, pids: list[int]) -> float:
        """Return the memory of a replica's processes, on a GPU as last measured; 0 if unknown."""
        if device == "cpu":
            return own_mib(pids)
        known = self.figures().gpu_processes
        return sum(known.get(pid, 0) for pid in pids) / MIB

    def _free_mib(self, device: str) -> float | None:
        if device == "cpu":
            return available_mib()
        free = [
            gpu.memory_bytes - gpu.memory_used_bytes
            for gpu in self.figures().devices
            if gpu.memory_bytes is not None and gpu.memory_used_bytes is not None
        ]
        return min(free) / MIB if free else None

    def _why(self, config: ModelConfig) -> str:
        if device_of(config, self._given) != "cpu":
            return "as it runs on a GPU"
        count = self._cores.count
        return f"half of the {count} cores" if count > 1 else "as this worker has one core"


def _processes(models: Iterable[ModelConfig], most_on_demand: int) -> int:
    """Return how many model processes a worker runs at a time."""
    eager, others = 0, []
    for config in models:
        number = config.max_replicas or config.replicas
        if config.on_demand:
            others.append(number)
        else:
            eager += number
    return eager + sum(sorted(others, reverse=True)[:most_on_demand])


def _device_kind(environ: Mapping[str, str]) -> str:
    """Return cpu or cuda; "" for a worker that may use all GPUs, if there are any."""
    if "CUDA_VISIBLE_DEVICES" not in environ:
        return ""
    return "cuda" if has_gpu(environ) else "cpu"
