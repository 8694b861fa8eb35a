"""The workers: `GET /api/v1/workers`; drain one, and let it claim again."""

from __future__ import annotations

import time
from typing import Any, Final

from api.http.messages import Reply, Request, json_reply
from api.services import Services
from headrace.config.suggestions import did_you_mean
from headrace.errors import Conflict, WorkerNotFound
from headrace.observability.worker_report import ModelState, WorkerReport
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.schema.deployment import (
    Worker,
    WorkerDevice,
    WorkerHost,
    WorkerModel,
    WorkerProcess,
    Workers,
)
from headrace.schema.members import time_of

PATH: Final = "/api/v1/workers"


async def list_workers(services: Services, _: Request) -> Reply:
    """List the live workers with their devices, models and processes."""
    reports = await services.queue.worker_states()
    draining = await _draining(services, list(reports))
    workers = [_shown(name, report, name in draining) for name, report in reports.items()]
    workers.sort(key=lambda worker: (worker.node, worker.worker))
    return json_reply(Workers(workers))


async def drain_worker(services: Services, request: Request, worker: str) -> Reply:
    """Let a worker claim nothing more; it finishes what runs, and keeps running."""
    name, report = await _known(services, worker)
    if report.drained is None:
        raise Conflict(
            f"the worker {worker[:128]} cannot be drained: it is a background worker, or older",
            hint="Stop its process; it finishes what runs.",
        )
    now = int(time.time())
    await services.queue.call_once(("SET", keys.drain(name), now, "EX", keys.DRAIN_TTL_S))
    return await _changed(services, request, name, report)


async def resume_worker(services: Services, request: Request, worker: str) -> Reply:
    """Let a drained worker claim jobs again, within a second."""
    name, report = await _known(services, worker)
    await services.queue.call_once(("DEL", keys.drain(name)))
    return await _changed(services, request, name, report)


async def _changed(services: Services, request: Request, name: str, report: WorkerReport) -> Reply:
    request.noted = report.node
    drained = name in await _draining(services, [name])
    return json_reply(_shown(name, report, drained))


async def _known(services: Services, worker: str) -> tuple[str, WorkerReport]:
    """Return a worker by its name, or by that of its node if one worker alone has it."""
    reports = await services.queue.worker_states()
    found = [pair for pair in reports.items() if worker in (pair[0], pair[1].node)]
    if len(found) == 1:
        return found[0]
    nodes = [report.node for report in reports.values()]
    raise WorkerNotFound(
        f"two workers have the node name {worker[:128]!r}"
        if found
        else f"there is no live worker {worker[:128]!r}{did_you_mean(worker[:128], nodes)}",
        hint=f"GET {PATH} lists the names.",
    )


async def _draining(services: Services, names: list[str]) -> set[str]:
    found = await services.queue.read_all([("EXISTS", keys.drain(name)) for name in names])
    return {name for name, there in zip(names, found, strict=True) if there}


def _shown(name: str, report: WorkerReport, draining: bool) -> Worker:
    jobs = sum(state.held for state in report.models.values())
    state = "serving"
    if draining:
        # Only a worker that has seen the request claims nothing more.
        state = "drained" if report.drained and not jobs else "draining"
    figures = report.figures
    return Worker(
        worker=name,
        node=report.node,
        pid=report.pid,
        state=state,
        can_drain=report.drained is not None,
        started_at=_time(report.started_s),
        reported_at=_time(report.clock_s),
        version=report.versions.get("headrace", ""),
        labels=report.labels,
        jobs=jobs,
        unloaded=sorted(report.unloaded),
        host=None
        if figures.host is None
        else WorkerHost(
            name=figures.host.name,
            cpus=figures.host.cpus,
            cpu_ratio=figures.host.cpu_ratio,
            memory_bytes=figures.host.memory_bytes,
            memory_available_bytes=figures.host.memory_available_bytes,
            disk_bytes=figures.host.disk_bytes,
            disk_available_bytes=figures.host.disk_available_bytes,
        ),
        devices=[
            WorkerDevice(
                id=device.id,
                name=device.name,
                busy_ratio=device.busy_ratio,
                memory_used_bytes=device.memory_used_bytes,
                memory_bytes=device.memory_bytes,
                temperature_celsius=device.temperature_celsius,
                power_watts=device.power_watts,
            )
            for device in figures.devices
        ],
        models=[_model(label, model, report) for label, model in sorted(report.models.items())],
    )


def _model(label: str, state: ModelState, report: WorkerReport) -> WorkerModel:
    name = label.partition(keys.VERSION_SEPARATOR)[0]
    return WorkerModel(
        model=name,
        version=state.version,
        state=state.state,
        device=state.device,
        replicas=state.replicas,
        ready_replicas=state.ready,
        jobs=state.held,
        memory_bytes=report.figures.models.get(name, 0),
        restarts=state.lost,
        recycled=state.recycled,
        error=state.error or None,
        processes=[
            WorkerProcess(
                pid=process.pid,
                state=process.state,
                since=time_of(int(process.since_s * US_PER_S)),
                gpu_memory_bytes=report.figures.gpu_processes.get(process.pid),
            )
            for process in state.processes
        ],
    )


def _time(at_s: float) -> Any:
    return time_of(int(at_s * US_PER_S)) if at_s else None
