"""The workers of this host: whether they are idle, and their end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import redis
import redis.exceptions

from headrace.access.audit import Note, noted
from headrace.errors import HeadraceError
from headrace.observability.worker_report import WorkerReport
from headrace.queue.job_queue import Depth, read_depths
from headrace.redis import keys
from headrace.redis.connection import connect
from headrace.redis.script_client import call_script
from headrace.redis.scripts import queues as queue_scripts
from headrace.server.health.liveness import live_reports
from headrace.server.supervisor import proc

#: Seconds between two looks at Redis.
_LOOK_S: Final = 1.0
#: Workers report each second. What an older report does not have yet may be a job.
_REPORT_MAX_S: Final = 2.5
#: Longer than the report of a job that was claimed just after a look may take.
IDLE_MIN_S: Final = 2 * _REPORT_MAX_S
_TIMEOUT_S: Final = 2.0
_POLL_S: Final = 0.1


def drain(client: redis.Redis, *, wait: bool) -> list[str]:
    """Stop the `headrace worker` of this host, which finishes what runs; return its workers.

    Args:
        wait: return when it has ended.

    Raises:
        HeadraceError: no worker runs here, or another command runs the workers.
    """
    reports = live_reports(client)
    if not reports:
        raise HeadraceError(f"no worker of this host was seen in the last {keys.WORKER_TTL_S} s")
    supervisors = {proc.parent_of(report.pid) for report in reports.values()} - {None}
    started = {}
    for pid in sorted(filter(None, supervisors)):
        command = proc.command_of(pid)
        if "worker" not in command or not any(Path(part).name == "headrace" for part in command):
            raise HeadraceError(
                f"the process {pid} that runs workers here is not `headrace worker`: "
                f"{' '.join(command[:4]) or 'its command is unknown'}",
                hint="stop that program, or pause queues: headrace queues pause MODEL",
            )
        started[pid] = proc.start_time_ticks(pid)
    execute: Any = client.execute_command
    for node in sorted(reports):
        execute(*noted(Note("headrace drain", "drain_worker", node, "its process ends")))
    for pid in started:
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            continue
        except PermissionError as error:
            hint = "run this as the user of the workers"
            raise HeadraceError(f"the process {pid} is of another user", hint=hint) from error
    while wait and any(proc.start_time_ticks(pid) == ticks for pid, ticks in started.items()):
        time.sleep(_POLL_S)
    return sorted(reports)


@dataclass(slots=True)
class IdleWatch:
    """Whether the workers of this host have had nothing to do for so long.

    They have something to do while they hold a job, or a job waits that they could claim. An outage
    of Redis is no idleness.

    Args:
        nodes: the workers; until each has reported, none is idle.
        idle_s: at least IDLE_MIN_S.
    """

    url: str
    nodes: Collection[str]
    idle_s: float
    _busy_at: float = field(default_factory=time.monotonic)
    _looked_at: float = 0.0

    def __call__(self) -> bool:
        """Look again, if it is time; return whether they have been idle for long enough."""
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            if self._busy():
                self._busy_at = time.monotonic()
        return now - self._busy_at >= self.idle_s

    def _busy(self) -> bool:
        try:
            with connect(
                self.url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
            ) as client:
                reports = live_reports(client)
                if not reports.keys() >= set(self.nodes):
                    return True
                if any(_holds_jobs(report) for report in reports.values()):
                    return True
                return any(map(_has_work, _depths(client, reports.values())))
        except (redis.exceptions.RedisError, HeadraceError, OSError):
            return True


def _holds_jobs(report: WorkerReport) -> bool:
    """Return whether a worker holds jobs, or may."""
    is_old = time.time() - report.clock_s > _REPORT_MAX_S
    return is_old or any(model.held for model in report.models.values())


def _depths(client: redis.Redis, reports: Collection[WorkerReport]) -> list[Depth]:
    """Return the depths of the queues from which these workers may claim now."""
    names = {name for report in reports for name in (*report.models, *report.unloaded)}
    # A version that is not loaded may get jobs that name none.
    names |= {name.partition(keys.VERSION_SEPARATOR)[0] for r in reports for name in r.unloaded}
    queues = {keys.queue_name(name) for name in names}
    members: Any = client.smembers(keys.PAUSED)
    open_queues = sorted(queues - {raw.decode() for raw in members})
    return read_depths(open_queues, call_script(client, queue_scripts.depth(open_queues)))


def _has_work(depth: Depth) -> bool:
    return sum(depth.waiting.values()) + depth.due > 0
