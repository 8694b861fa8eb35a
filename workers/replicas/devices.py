"""A model's device, its share of the cores, and its memory allocator. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.config.model.catalog import ModelConfig
from workers.replicas.cores import usable_cores

#: glibc returns large blocks with each free(), and the kernel zeroes their pages for the next
#: batch. That costs a quarter of a ResNet-18's time at batch 32. These settings keep them.
TUNABLES: Final = {
    "glibc.malloc.mmap_threshold": 4 * 1024**3,
    "glibc.malloc.trim_threshold": 8 * 1024**3,
}

#: How often a libgomp thread spins for the other threads before it sleeps. The default of 300,000
#: takes milliseconds. If another process needs a core, a thread that has lost its core keeps the
#: others spinning. That costs a fifth of the model's CPU.
SPINS: Final = "10000"


def device_of(model: ModelConfig, environ: Mapping[str, str]) -> str:
    """Return the torch device of a model in this worker.

    A worker has at most one GPU, which `CUDA_VISIBLE_DEVICES` sets. So "auto" is its first GPU, or
    the CPU if it has no GPU.
    """
    if model.device != "auto":
        return model.device
    return "cuda:0" if has_gpu(environ) else "cpu"


def has_gpu(environ: Mapping[str, str]) -> bool:
    """Return whether a worker has a GPU."""
    return environ.get("CUDA_VISIBLE_DEVICES", "") not in ("", "-1", "none", "NoDevFiles")


def threads_per_process(processes: int) -> int:
    """Return how many threads each of a worker's model processes may compute with."""
    return max(1, usable_cores() // max(1, processes))


def slots_of(device: str, replicas: int, processes: int) -> int:
    """Return how many batches may run at once on a device without `HEADRACE_DEVICE_SLOTS`.

    `replicas` is the most that one of its models has. `processes` are all model processes of the
    worker, which share its cores.
    """
    if device != "cpu":
        return replicas
    return max(replicas, usable_cores() // threads_per_process(processes))


def model_environ(environ: Mapping[str, str], processes: int) -> dict[str, str]:
    """Return the environment of a model process: the worker's, with its share of the cores.

    The user's OMP_NUM_THREADS counts instead of that share. MKL and OpenBLAS get the same number,
    because PyTorch takes the number of MKL for all of its threads. If the user sets OMP_WAIT_POLICY
    or GOMP_SPINCOUNT, that counts; else threads wait for `SPINS`.
    """
    threads = str(threads_of(environ) or threads_per_process(processes))
    shares = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
    if "OMP_WAIT_POLICY" not in environ:
        shares["GOMP_SPINCOUNT"] = SPINS
    return {**shares, **environ, "PYTHONUNBUFFERED": "1"}


def threads_of(environ: Mapping[str, str]) -> int:
    """Return with how many threads a model process of this environment computes; 0: not known."""
    given = environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isascii() and given.isdecimal() else 0


def tuned(environ: Mapping[str, str], device: str) -> dict[str, str]:
    """Return the environment with `TUNABLES` for the CPU; the user's own tunables count first."""
    given = environ.get("GLIBC_TUNABLES", "")
    if device != "cpu":
        return dict(environ)
    ours = [f"{name}={value}" for name, value in TUNABLES.items() if f"{name}=" not in given]
    return {**environ, "GLIBC_TUNABLES": ":".join(filter(None, (given, *ours)))}
