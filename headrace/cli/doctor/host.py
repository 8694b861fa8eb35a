"""Checks of this host: GPUs and torch, the payload store, disks, limits and installed packages.

Torch runs in a separate process.
"""

from __future__ import annotations

import json
import os
import re
import resource
import secrets
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from packaging.requirements import InvalidRequirement, Requirement

from headrace._version import __version__
from headrace.cli.doctor.check import CheckResult, fail, ok, results_of, skip, warn
from headrace.cli.doctor.deployment import CheckSkipped, Deployment, read_once
from headrace.cli.shared.output import error_line
from headrace.errors import HeadraceError
from headrace.payloads.index import PayloadIndex
from headrace.payloads.s3_client import Bucket, s3_client
from headrace.queue import findings
from headrace.redis import keys
from headrace.server.gpus import parse_listing, visible_gpus
from headrace.text import count, named, size

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
#: Share of a limit from which memory is nearly full.
FULL: Final = 0.85
OLDEST_PYTHON: Final = (3, 11)
#: An API process needs a socket per connection, a worker several per model process.
OPEN_FILES: Final = 1024
FILES_FULL: Final = 0.8


def payload_store(deployment: Deployment) -> CheckResult:
    """`payload-store`: large inputs and results can be stored."""
    chosen = deployment.settings.payload_store
    if chosen == "file":
        return _folder_store(deployment)
    if chosen == "s3":
        return _s3_store(deployment)
    used = int(deployment.redis.hget(keys.PAYLOAD_SIZES, "") or 0)
    limit = PayloadIndex(deployment.redis, deployment.settings.max_payload_memory_bytes).max_bytes()
    text = f"in Redis: {size(used)} of {size(limit)}"
    if used > FULL * limit:
        return warn(text, "long inputs are refused with 507 at the bound: use payload_store file")
    return ok(text)


def _folder_store(deployment: Deployment) -> CheckResult:
    folder = deployment.settings.payload_dir
    if folder is None:
        return fail("payload_store is file, but payload_dir is not set", "set payload_dir")
    hint = "use a folder that the API and every worker can write to as the same user"
    if not folder.is_dir():
        return fail(f"payload_dir {folder} does not exist", hint)
    probe = folder / f".doctor-{secrets.token_hex(6)}"
    try:
        with open(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
        probe.unlink()
    except OSError as error:
        return fail(f"payload_dir {folder} cannot be written: {error.strerror}", hint)
    if folder.stat().st_mode & stat.S_IWOTH:
        return warn(f"payload_dir {folder} is writable for all users", f"chmod 700 {folder}")
    return free_space(folder, "payloads")


def _s3_store(deployment: Deployment) -> CheckResult:
    settings = deployment.settings
    if settings.payload_bucket is None:
        return fail("payload_store is s3, but payload_bucket is not set", "set payload_bucket")
    client = s3_client(settings.payload_endpoint_url, 1, tries=1)
    name = f"{settings.payload_prefix}doctor-{secrets.token_hex(6)}"
    bucket = Bucket(settings.payload_bucket, client)
    try:
        bucket.write(name, b"x")
        bucket.delete(name)
    except HeadraceError as error:
        cause = f" ({error_line(error.__cause__)})" if error.__cause__ is not None else ""
        return fail(
            f"bucket {settings.payload_bucket} cannot be written: {error.message}{cause}",
            "correct payload_bucket, payload_endpoint_url, or boto's credentials",
        )
    return ok(f"bucket {settings.payload_bucket} can be written")


def state_dir(deployment: Deployment) -> CheckResult:
    """`state-dir`: `headrace up` can store its data, and other users cannot read it."""
    folder = deployment.state_dir
    if not folder.exists():
        raise CheckSkipped(f"{folder} does not exist; `headrace up` creates it")
    hint = "use another folder with --state-dir, or make the user of `headrace up` its owner"
    if not folder.is_dir():
        return fail(f"{folder} is not a folder", hint)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return fail(f"{folder} is not writable for this user", hint)
    if folder.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return warn(f"{folder} is open to other users; it contains Redis' password",
                    f"chmod 700 {folder}")  # fmt: skip
    return ok(f"{folder}")


def disks(deployment: Deployment) -> Iterator[CheckResult]:
    """`disks`: the disks of this host and of the workers' hosts have free space."""
    yield free_space(deployment.state_dir, "the state directory")
    yield from results_of(findings.of_disks(deployment.alive_if_known))


def free_space(folder: Path, what: str) -> CheckResult:
    """Check the free space of a file system, by a folder in it or its nearest existing parent."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    usage = shutil.disk_usage(existing)
    share = usage.free / usage.total if usage.total else 0.0
    text = f"{size(usage.free)} of {size(usage.total)} free in {folder} for {what}"
    hint = "free disk space, or use a larger disk"
    if share < findings.DISK_OUT:
        return fail(text, hint)
    if share < findings.DISK_LOW:
        return warn(text, hint)
    return ok(text)


def versions(deployment: Deployment) -> CheckResult:
    """`versions`: Headrace supports this Python and the installed packages."""
    python = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST_PYTHON:
        return fail(f"Python {python}", "Headrace needs Python >= 3.11")
    try:
        wanted = requires("headrace") or []
    except PackageNotFoundError:
        return ok(f"Headrace {__version__} from its source, Python {python}")
    unsupported = [problem for text in wanted if (problem := _mismatch(text))]
    if unsupported:
        return warn(
            f"packages that Headrace {__version__} does not support: {named(unsupported)}",
            "pip install --upgrade 'headrace[...]' with the extras of this host",
        )
    return ok(f"Headrace {__version__}, Python {python}, supported packages")


def _mismatch(text: str) -> str:
    """Return what is wrong with an installed package; a package that is not installed is fine."""
    try:
        wanted = Requirement(text)
        installed = version(wanted.name)
    except (InvalidRequirement, PackageNotFoundError):
        return ""
    if wanted.specifier.contains(installed, prereleases=True):
        return ""
    return f"{wanted.name} {installed}, requires {wanted.specifier}"


def open_files(deployment: Deployment) -> Iterator[CheckResult]:
    """`open-files`: the processes of this host can open enough files and connections."""
    limit_here, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    hint = "raise it before they start: ulimit -n 65536, or LimitNOFILE= in systemd"
    if limit_here != resource.RLIM_INFINITY and limit_here < OPEN_FILES:
        yield warn(f"ulimit -n is {limit_here} here", hint)
    for seen, report in deployment.alive_if_known:
        opened, limit = _files_of(report.pid) if seen.here else (0, 0)
        if limit and opened > FILES_FULL * limit:
            yield warn(f"{seen.node} has {opened} of {limit} files open", hint)
        elif limit and limit < OPEN_FILES:
            yield warn(f"{seen.node} can open only {limit} files", hint)
    yield ok(f"ulimit -n is {limit_here}")


def _files_of(pid: int) -> tuple[int, int]:
    """Return the number of open files of a process and its limit; 0 without permission."""
    try:
        limits = Path(f"/proc/{pid}/limits").read_text()
        opened = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return 0, 0
    match = re.search(r"^Max open files\s+(\d+)", limits, re.MULTILINE)
    return opened, int(match[1]) if match else 0


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
    uuids, problem = _listed(deployment)
    if problem:
        return fail(
            f"the NVIDIA driver does not answer: {problem}",
            "reboot after a driver update; start a container with --gpus all",
        )
    visible = visible_gpus(deployment.environ, uuids)
    if not uuids:
        return ok("none on this host: workers here use the CPU")
    if not visible:
        return warn(
            f"CUDA_VISIBLE_DEVICES hides all {len(uuids)} GPUs", "unset it, or list GPUs in it"
        )
    return ok(f"{len(visible)} of {len(uuids)} GPUs are visible")


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
    uuids, _ = _listed(deployment)
    text = f"torch {facts['version']}"
    if not visible_gpus(deployment.environ, uuids):
        return ok(f"{text}, on the CPU with {facts['threads']} threads")
    if not facts["cuda"]:
        return fail(
            f"{text} is built for the CPU, but this host has {count(len(uuids), 'GPU')}",
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
    uuids, _ = _listed(deployment)
    uuids = visible_gpus(deployment.environ, uuids)
    if not uuids:
        raise CheckSkipped("no GPU on this host")
    here = [report for seen, report in deployment.alive if seen.here]
    if not here:
        raise CheckSkipped("no worker runs on this host")
    devices = {d.uuid: d for report in here for d in report.figures.devices}
    if idle := [uuid for uuid in uuids if uuid not in devices]:
        yield warn(
            f"no worker here serves {named(idle)}",
            "headrace worker starts one per GPU; a model with device: cpu uses none",
        )
    for device in devices.values():
        if device.temperature_celsius is not None and device.temperature_celsius >= HOT_CELSIUS:
            text = f"GPU {device.id} is at {device.temperature_celsius:.0f} °C"
            yield warn(text, "improve its cooling")
        used, total = device.memory_used_bytes, device.memory_bytes
        if used is not None and total and used > MEMORY_FULL * total:
            yield warn(
                f"GPU {device.id} has used {used / total:.0%} of its memory",
                "use fewer replicas, smaller batches, or another GPU",
            )
    yield ok(f"{count(len(uuids), 'GPU')}, each served")


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
