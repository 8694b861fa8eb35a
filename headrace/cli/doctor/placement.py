"""The check of the placement: which worker has which devices, memory, cores and model processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from headrace.cli.doctor.check import CheckResult, ok, warn
from headrace.cli.doctor.deployment import CheckSkipped, Deployment
from headrace.cli.shared.output import count
from headrace.observability.worker_report import DeviceFigures, ModelState, WorkerReport

_MIB = 1024 * 1024


def placement(deployment: Deployment) -> Iterator[CheckResult]:
    """`placement`: no two model processes that are pinned to cores have the same ones."""
    if not deployment.alive:
        raise CheckSkipped("no worker runs")
    pinned: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for seen, report in deployment.alive:
        yield ok(f"{seen.node}: {'; '.join(_words(report))}")
        host = report.figures.host.name if report.figures.host else seen.node.partition("@")[2]
        if report.capacity.pin_cores == "cores":
            for name, state in report.models.items():
                for cpus in state.cpus:
                    pinned[host, cpus].append(f"{name} of {seen.node}")
    for (host, cpus), names in sorted(pinned.items()):
        if len(names) > 1:
            yield warn(
                f"CPUs {cpus} of {host} have {len(names)} pinned processes: {', '.join(names)}",
                "run fewer replicas; start all workers of a host with one `headrace worker "
                "--workers N`, or give each its own CPUs (taskset, --cpuset-cpus)",
            )


def _words(report: WorkerReport) -> Iterator[str]:
    capacity, host = report.capacity, report.figures.host
    facts = [capacity.device or "cpu"]
    if capacity.cores:
        facts.append(count(capacity.cores, "core"))
    if capacity.pin_cores != "off":
        facts.append(f"pin_cores {capacity.pin_cores}")
    if capacity.memory_mib:
        free = f", {host.memory_available_bytes // _MIB} free" if host else ""
        facts.append(f"{capacity.memory_mib} MiB of memory{free}")
    facts += map(_device, report.figures.devices)
    if capacity.mps:
        facts.append("MPS")
    facts += report.labels
    yield ", ".join(facts)
    for name, state in sorted(report.models.items()):
        yield f"{name}: {_model(state)}"


def _device(device: DeviceFigures) -> str:
    name = f"GPU {device.id if device.gpu is None else device.gpu}"
    if device.id.startswith("MIG-"):
        name += f" ({device.id})"
    if device.memory_bytes is None or device.memory_used_bytes is None:
        return name
    free = (device.memory_bytes - device.memory_used_bytes) // _MIB
    return f"{name} with {device.memory_bytes // _MIB} MiB, {free} free"


def _model(state: ModelState) -> str:
    text = count(state.replicas, "replica")
    if state.threads:
        text += f" of {count(state.threads, 'thread')}"
    if state.cpus:
        text += f" on CPUs {' and '.join(state.cpus)}"
    return text + (f", {state.memory_mib} MiB each" if state.memory_mib else "")
