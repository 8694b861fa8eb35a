"""Checks of GPUs, the driver and torch. Torch runs in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from headrace.cli.doctor.check import CheckResult, fail, ok, skip, warn
from headrace.cli.doctor.deployment import CheckSkipped, Deployment, read_once
from headrace.server.gpus import parse_listing, visible_gpus
from headrace.text import count, named

_SMI_S: Final = 20
_TORCH_S: Final = 120
#: Files that exist if there is a card, even if its driver does not answer.
CARDS: Final = ("/proc/driver/nvidia/version", "/dev/nvidiactl")
HOT_CELSIUS: Final = 90.0
MEMORY_FULL: Final = 0.97
_TORCH_PROGRAM: Final = """
import json, sys, torch
cuda = torch.cuda
facts = {"version": torch.__version__, "cuda": torch.version.cuda or torch.version.hip,
        "count": 0, "names": [], "problem": "", "threads": torch.get_num_threads()}
try:
    cuda.init()
    facts["count"] = cuda.device_count()
    facts["names"] = [cuda.get_device_name(i) for i in range(facts["count"])]
    torch.ones(8, device="cuda").sum().item()
except Exception as error:
    facts["problem"] = str(error).strip().splitlines()[0]
sys.stdout.write(json.dumps(facts))
"""


@read_once
def _listed(deployment: Deployment) -> tuple[list[str], str]:
    """Return the GPUs that the driver lists, and the error if it does not answer."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"], env=dict(deployment.environ), capture_output=True, text=True,
            timeout=_SMI_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return [], f"nvidia-smi did not answer within {_SMI_S} s"
    except OSError as error:
        present = any(Path(card).exists() for card in CARDS)
        return [], f"nvidia-smi cannot be run: {error.strerror}" if present else ""
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines()
        return [], lines[0] if lines else f"nvidia-smi: status {done.returncode}"
    return parse_listing(done.stdout), ""


def gpus(deployment: Deployment) -> CheckResult:
    """`gpus`: the driver answers."""
    found, problem = _listed(deployment)
    if problem:
        return fail(
            f"the NVIDIA driver does not answer: {problem}",
            "reboot after a driver update; start a container with --gpus all",
        )
    shown = visible_gpus(deployment.environ, found)
    if not found:
        return ok("none on this host: workers here use the CPU")
    if not shown:
        return warn(
            f"CUDA_VISIBLE_DEVICES hides all {len(found)} GPUs", "unset it, or list GPUs in it"
        )
    return ok(f"{len(shown)} of {len(found)} GPUs are visible")


def torch(deployment: Deployment) -> CheckResult:
    """`torch`: torch is built for the devices of this host and can use them."""
    if find_spec("torch") is None:
        raise CheckSkipped("torch is not installed here")
    done = subprocess.run(
        [sys.executable, "-P", "-c", _TORCH_PROGRAM], env=dict(deployment.environ),
        capture_output=True, text=True, timeout=_TORCH_S, check=False,
    )  # fmt: skip
    try:
        facts: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        return fail(f"torch cannot be imported: {lines[-1][:200]}", "reinstall it")
    found, _ = _listed(deployment)
    text = f"torch {facts['version']}"
    if not visible_gpus(deployment.environ, found):
        return ok(f"{text}, on the CPU with {facts['threads']} threads")
    if not facts["cuda"]:
        return fail(
            f"{text} is built for the CPU, but this host has {count(len(found), 'GPU')}",
            "install the CUDA build (docs/compose.md)",
        )
    if facts["problem"]:
        return fail(
            f"{text} for CUDA {facts['cuda']} cannot use the GPU: {facts['problem'][:160]}",
            "the driver must support this CUDA version: compare nvidia-smi",
        )
    return ok(f"{text} for CUDA {facts['cuda']}: {named(facts['names'])}")


def gpu_use(deployment: Deployment) -> Iterator[CheckResult]:
    """`gpu-use`: a worker uses each GPU of this host, and no GPU is too hot or full."""
    found, _ = _listed(deployment)
    found = visible_gpus(deployment.environ, found)
    if not found:
        raise CheckSkipped("no GPU on this host")
    here = [report for seen, report in deployment.alive if seen.here]
    if not here:
        raise CheckSkipped("no worker runs on this host")
    devices = {d.uuid: d for report in here for d in report.figures.devices}
    if idle := [uuid for uuid in found if uuid not in devices]:
        yield warn(
            f"no worker here serves {named(idle)}",
            "headrace worker starts one per GPU; a model with device: cpu uses none",
        )
    for device in devices.values():
        if device.temperature_celsius is not None and device.temperature_celsius >= HOT_CELSIUS:
            text = f"GPU {device.id} is at {device.temperature_celsius:.0f} °C"
            yield warn(text, "improve its cooling")
        used, most = device.memory_used_bytes, device.memory_bytes
        if used is not None and most and used > MEMORY_FULL * most:
            yield warn(
                f"GPU {device.id} has used {used / most:.0%} of its memory",
                "use fewer replicas, smaller batches, or another GPU",
            )
    yield ok(f"{count(len(found), 'GPU')}, each served")


def threads(deployment: Deployment) -> CheckResult:
    """`threads`: the threads of all model processes fit the host's cores."""
    threads_each = deployment.environ.get("OMP_NUM_THREADS", "")
    if not threads_each:
        return ok("each model process uses its share of the cores")
    here = [report for seen, report in deployment.alive_if_known if seen.here]
    processes = sum(state.replicas for report in here for state in report.models.values())
    cores = next((r.figures.host.cpus for r in here if r.figures.host is not None), 0)
    if not threads_each.isdecimal() or not cores or not processes:
        return skip(f"OMP_NUM_THREADS is {threads_each}, but no worker runs on this host")
    wanted = int(threads_each) * processes
    if wanted > 2 * cores:
        return warn(
            f"OMP_NUM_THREADS={threads_each} with {processes} model processes makes {wanted} "
            f"threads on {cores} cores",
            "unset it for the workers: each process then uses its share of the cores",
        )
    return ok(f"{wanted} threads on {cores} cores")
