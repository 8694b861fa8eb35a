"""GPUs, the driver, and the torch that is to use them. Torch is asked in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from headrace.cli.doctor.check import CheckResult, CheckSkipped, fail, named, ok, skip, warn, worst
from headrace.cli.doctor.deployment import Deployment
from headrace.cli.shared.output import count
from headrace.server.gpus import parse_listing, visible_gpus

_SMI_S: Final = 20
_TORCH_S: Final = 120
#: Where a card and its driver show themselves, though no driver may answer.
CARDS: Final = ("/proc/driver/nvidia/version", "/dev/nvidiactl")
HOT_CELSIUS: Final = 90.0
MEMORY_FULL: Final = 0.97
_ASK_TORCH: Final = """
import json, sys, torch
cuda = torch.cuda
said = {"version": torch.__version__, "cuda": torch.version.cuda or torch.version.hip,
        "count": 0, "names": [], "problem": "", "threads": torch.get_num_threads()}
try:
    cuda.init()
    said["count"] = cuda.device_count()
    said["names"] = [cuda.get_device_name(i) for i in range(said["count"])]
    torch.ones(8, device="cuda").sum().item()
except Exception as error:
    said["problem"] = str(error).strip().splitlines()[0]
sys.stdout.write(json.dumps(said))
"""


def _listed(site: Deployment) -> tuple[list[str], str]:
    """The GPUs that the driver shows, and what it says where it does not answer."""

    def ask() -> tuple[list[str], str]:
        try:
            asked = subprocess.run(
                ["nvidia-smi", "-L"], env=dict(site.environ), capture_output=True, text=True,
                timeout=_SMI_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return [], f"nvidia-smi did not answer in {_SMI_S} s"
        except OSError as error:
            present = any(Path(card).exists() for card in CARDS)
            return [], f"nvidia-smi cannot be run: {error.strerror}" if present else ""
        if asked.returncode != 0:
            lines = (asked.stdout + asked.stderr).strip().splitlines()
            return [], lines[0] if lines else f"nvidia-smi: status {asked.returncode}"
        return parse_listing(asked.stdout), ""

    return site.once("gpus", ask)


def gpus(site: Deployment) -> CheckResult:
    """`gpus`: the driver answers."""
    found, problem = _listed(site)
    if problem:
        return fail(
            f"the NVIDIA driver does not answer: {problem}",
            "reboot after an update of the driver; in a container, give it the GPUs (--gpus all)",
        )
    shown = visible_gpus(site.environ, found)
    if not found:
        return ok("none on this host: workers here use the CPU")
    if not shown:
        return warn(
            f"{len(found)} GPUs, and CUDA_VISIBLE_DEVICES hides them all", "unset it, or name some"
        )
    return ok(f"{len(shown)} of {len(found)} GPUs to be used")


def torch(site: Deployment) -> CheckResult:
    """`torch`: it is built for the devices that are here, and can use them."""
    if find_spec("torch") is None:
        raise CheckSkipped("torch is not installed here")
    asked = subprocess.run(
        [sys.executable, "-P", "-c", _ASK_TORCH], env=dict(site.environ), capture_output=True,
        text=True, timeout=_TORCH_S, check=False,
    )  # fmt: skip
    try:
        said: dict[str, Any] = json.loads(asked.stdout)
    except ValueError:
        lines = asked.stderr.strip().splitlines() or [f"status {asked.returncode}"]
        return fail(f"torch cannot be imported: {lines[-1][:200]}", "install it again")
    found, _ = _listed(site)
    text = f"torch {said['version']}"
    if not visible_gpus(site.environ, found):
        return ok(f"{text}, on the CPU with {said['threads']} threads")
    if not said["cuda"]:
        return fail(
            f"{text} is built for the CPU, and this host has {count(len(found), 'GPU')}",
            "install the build for CUDA (docs/compose.md)",
        )
    if said["problem"]:
        return fail(
            f"{text} for CUDA {said['cuda']} cannot use the GPU: {said['problem'][:160]}",
            "the driver must be as new as its CUDA: compare nvidia-smi",
        )
    return ok(f"{text} for CUDA {said['cuda']}: {named(said['names'])}")


def gpu_use(site: Deployment) -> CheckResult:
    """`gpu-use`: each GPU of this host serves, and none is too hot or too full."""
    found, _ = _listed(site)
    found = visible_gpus(site.environ, found)
    if not found:
        raise CheckSkipped("no GPU on this host")
    here = [(seen, report) for seen, report in site.alive if seen.here]
    if not here:
        raise CheckSkipped("no worker runs on this host")
    devices = {d.uuid: d for _, report in here for d in report.figures.devices}
    idle = [uuid for uuid in found if uuid not in devices]
    problems = []
    if idle:
        problems.append(
            warn(
                f"no worker here serves {named(idle)}",
                "headrace worker starts one per GPU; a model with device: cpu uses none",
            )
        )
    for device in devices.values():
        if device.temperature_celsius is not None and device.temperature_celsius >= HOT_CELSIUS:
            problems.append(
                warn(f"GPU {device.id} has {device.temperature_celsius:.0f} °C", "cool it")
            )
        used, most = device.memory_used_bytes, device.memory_bytes
        if used is not None and most and used > MEMORY_FULL * most:
            problems.append(
                warn(
                    f"GPU {device.id} has used {used / most:.0%} of its memory",
                    "fewer replicas, smaller batches, or models on another GPU",
                )
            )
    return worst(problems, ok(f"{count(len(found), 'GPU')}, each served"))


def threads(site: Deployment) -> CheckResult:
    """`threads`: the arithmetic of all model processes together fits the host's cores."""
    told = site.environ.get("OMP_NUM_THREADS", "")
    if not told:
        return ok("each model process gets its share of the cores")
    here = [report for seen, report in site.alive if seen.here] if _has_redis(site) else []
    processes = sum(state.replicas for report in here for state in report.models.values())
    cores = next((r.figures.host.cpus for r in here if r.figures.host is not None), 0)
    if not told.isdecimal() or not cores or not processes:
        return skip(f"OMP_NUM_THREADS is {told}, and no worker runs on this host")
    wanted = int(told) * processes
    if wanted > 2 * cores:
        return warn(
            f"OMP_NUM_THREADS={told} and {processes} model processes make {wanted} threads on "
            f"{cores} cores",
            "unset it where workers start: each process then gets its share",
        )
    return ok(f"{wanted} threads on {cores} cores")


def _has_redis(site: Deployment) -> bool:
    try:
        return site.redis is not None
    except CheckSkipped:
        return False
