"""Which workers of this host live, by what they report to Redis.

Health checks import this every few seconds, so it imports little.
"""

from __future__ import annotations

import socket
from collections.abc import Collection
from typing import Final

import msgspec

from headrace.observability.worker_report import UNLOADED_STATE, WorkerReport, read_report
from headrace.redis import keys
from headrace.redis.light_client import Asks
from headrace.server.gpus import Device
from headrace.server.supervisor import proc

#: How the Celery node name of a background worker begins.
BACKGROUND: Final = "background"


def node_name(device: Device) -> str:
    """Return the Celery node name of this host's worker for a device."""
    return f"{device.name}@{socket.gethostname()}"


def background_node_name() -> str:
    """Return the Celery node name of this host's background worker."""
    return f"{BACKGROUND}@{socket.gethostname()}"


def live_reports(client: Asks) -> dict[str, WorkerReport]:
    """Return the reports of this host's workers that have a process, by node."""
    suffix = f"@{socket.gethostname()}"
    reports = {}
    owners = client.execute_command("ZRANGE", keys.WORKERS, 0, -1)
    for owner in (raw.decode() for raw in owners):
        # An owner is a node with a suffix, so the reports of other hosts need not be read.
        if f"{suffix}-" not in owner:
            continue
        report = read_report(client.execute_command("HGETALL", keys.worker(owner)))
        # The report of a killed worker remains for some seconds.
        if report.node.endswith(suffix) and proc.start_time_ticks(report.pid) is not None:
            reports[report.node] = report
    return reports


def unready_models(reports: Collection[WorkerReport]) -> dict[str, str]:
    """Return the models of this host that have no loaded replica here, each with its state.

    A model that loads at its first job needs none, nor one whose replicas other hosts have.
    """
    states = [item for report in reports for item in report.models.items()]
    ready = {name for name, model in states if model.ready}
    return {
        name: model.state
        for name, model in states
        if name not in ready and model.replicas and model.state != UNLOADED_STATE
    }


class WorkerLiveness(msgspec.Struct, frozen=True):
    """The process of a live background worker."""

    node: str
    pid: int


def live_background_workers(client: Asks) -> list[WorkerLiveness]:
    """List the live background workers; one of this host must also have a process."""
    owners = client.execute_command("SMEMBERS", keys.BACKGROUND_WORKERS)
    if not owners:
        return []
    alive = (keys.background_alive(owner.decode()) for owner in owners)
    found = client.execute_command("MGET", *alive)
    workers = [msgspec.json.decode(raw, type=WorkerLiveness) for raw in found if raw is not None]
    here = f"@{socket.gethostname()}"
    return [
        worker
        for worker in workers
        if not worker.node.endswith(here) or proc.start_time_ticks(worker.pid) is not None
    ]
