"""Which device a model runs on, and its share of the cores. Never imports torch."""

from __future__ import annotations

import os
from collections.abc import Mapping

from headrace.catalog import ModelConfig


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
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, cores // max(1, processes))


def model_environ(environ: Mapping[str, str], processes: int) -> dict[str, str]:
    """The environment of a model process: the worker's, with its share of the cores."""
    threads = str(threads_per_process(processes))
    shares = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
    return {**shares, **environ, "PYTHONUNBUFFERED": "1"}
