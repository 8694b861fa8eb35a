"""Which device a model runs on, its share of the cores, its allocator. Never imports torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from headrace.config.model_catalog import ModelConfig

#: glibc gives large blocks back with each free(), and the kernel zeroes their pages anew for the
#: next batch: of a ResNet-18's time at batch 32 that is a quarter. With these it keeps them.
TUNABLES: Final = {
    "glibc.malloc.mmap_threshold": 4 * 1024**3,
    "glibc.malloc.trim_threshold": 8 * 1024**3,
}

#: How often a thread of libgomp looks whether its neighbours are done before it sleeps. Its own
#: 300,000 is milliseconds: where anything else wants a core (the next batch's decoding, Redis, the
#: API) one that lost its core for a moment keeps the others spinning, a fifth of the model's CPU.
SPINS: Final = "10000"


def device_of(model: ModelConfig, environ: Mapping[str, str]) -> str:
    """The torch device of a model in this worker.

    A worker sees one GPU at the most (`CUDA_VISIBLE_DEVICES` is set by whoever starts it), so that
    "auto" is the first that it sees, and the CPU where it sees none.
    """
    if model.device != "auto":
        return model.device
    visible = environ.get("CUDA_VISIBLE_DEVICES", "")
    return "cuda:0" if visible not in ("", "-1", "none", "NoDevFiles") else "cpu"


def threads_per_process(processes: int) -> int:
    """How many threads each of a worker's model processes may use for its arithmetic."""
    return max(1, _cores() // max(1, processes))


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def slots_of(device: str, replicas: int, processes: int) -> int:
    """How many batches may run at once on a device, where no setting says it.

    Args:
        device: a torch device.
        replicas: the most that any of its models has; so many of that one run at once anyway.
        processes: all model processes of the worker, which share its cores.
    """
    if device != "cpu":
        return replicas
    return max(replicas, _cores() // threads_per_process(processes))


def model_environ(environ: Mapping[str, str], processes: int) -> dict[str, str]:
    """The environment of a model process: the worker's, with its share of the cores.

    How its threads wait is what the user has said (OMP_WAIT_POLICY, GOMP_SPINCOUNT), else `SPINS`.
    """
    threads = str(threads_per_process(processes))
    shares = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
    if "OMP_WAIT_POLICY" not in environ:
        shares["GOMP_SPINCOUNT"] = SPINS
    return {**shares, **environ, "PYTHONUNBUFFERED": "1"}


def tuned(environ: Mapping[str, str], device: str) -> dict[str, str]:
    """The environment in which glibc keeps activations mapped; what the user has set there wins."""
    given = environ.get("GLIBC_TUNABLES", "")
    if device != "cpu":
        return dict(environ)
    ours = [f"{name}={value}" for name, value in TUNABLES.items() if f"{name}=" not in given]
    return {**environ, "GLIBC_TUNABLES": ":".join(filter(None, (given, *ours)))}
