"""What is wrong with a running deployment, by what its processes report and Redis counts.

`headrace doctor` and the API (`GET /api/v1/findings`) judge with the same functions. Each yields
findings, or nothing if all is well.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.config.model.capacity import Host, needs_of, why_no_worker
from headrace.config.model.catalog import Catalog, ModelConfig
from headrace.errors import last_line
from headrace.observability.series import Bucket
from headrace.observability.worker_report import ModelState, WorkerReport
from headrace.queue.job_queue import Depth
from headrace.redis import keys
from headrace.schema.overview import Finding
from headrace.text import count, duration, named, size

#: Maximum age of a worker's report; workers report every second.
SILENT_S: Final = 6.0
SKEW_S: Final = 2.0
#: From here, times that clients set by their own clock (eta, expires of Celery) are far off.
SKEW_BAD_S: Final = 30.0
#: States in which a model has processes that serve.
READY_STATES: Final = ("ready", "draining")
OLD_S: Final = 300.0
#: Jobs of batch priority wait while online jobs take all capacity.
OLD_OFFLINE_S: Final = 86_400.0
NEARLY_FULL: Final = 0.9
TASKS_MANY: Final = 1000
#: Shares of Redis' maxmemory, and of its host's memory: a fork may copy the pages that are written
#: meanwhile.
MEMORY_FULL: Final = 0.85
OF_HOST: Final = 0.6
#: Shares of a disk that are free.
DISK_LOW: Final = 0.1
DISK_OUT: Final = 0.02
#: The failures of the last minutes count as a rise if they are as many jobs, as large a share of
#: those that ended, and as many times the share of the minutes before.
RISE_MINUTES: Final = 5
RISE_JOBS: Final = 10
RISE_SHARE: Final = 0.1
RISE_TIMES: Final = 3.0
FAIL: Final = "fail"
WARN: Final = "warn"

_OFF: Final = "expires and eta of Celery clients, and times of webhooks, are wrong by as much"
_NTP: Final = "synchronise the clocks with chrony or systemd-timesyncd"


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """One worker as recorded in Redis.

    Attributes:
        owner: its incarnation.
        report: its report; None if the report has expired.
        ahead_s: seconds by which its clock is ahead of Redis' clock, with an error of 1 s.
    """

    owner: str
    report: WorkerReport | None
    age_s: float
    ahead_s: float

    @property
    def node(self) -> str:
        """Return its Celery node name, else its incarnation."""
        return self.report.node if self.report is not None and self.report.node else self.owner

    @property
    def here(self) -> bool:
        """Return whether it runs on this host."""
        return self.node.endswith(f"@{socket.gethostname()}")


Alive = Sequence[tuple[WorkerSeen, WorkerReport]]


def alive(workers: Iterable[WorkerSeen]) -> Alive:
    """Return the workers whose report has not expired."""
    return [(seen, seen.report) for seen in workers if seen.report is not None]


def of_workers(
    workers: Sequence[WorkerSeen], *, needed: bool, dead: Collection[str] = ()
) -> Iterator[Finding]:
    """Find workers that are missing.

    Args:
        needed: something else runs, or a job waits.
        dead: owners whose process is known to be gone.
    """
    if not workers and needed:
        yield _found(
            FAIL, "no-worker", "workers", "no worker runs, so no job can run",
            "start one: headrace worker",
        )  # fmt: skip
    for seen in workers:
        if seen.report is None or seen.owner in dead:
            yield _found(
                FAIL, "worker-lost", "workers",
                f"{seen.node} was killed, or no longer reports",
                "start it again; its supervisor's log shows why it ended. If it still runs, it "
                "hangs or cannot reach Redis. Other workers run its jobs once their leases expire",
            )  # fmt: skip
        elif seen.age_s > SILENT_S:
            yield _found(
                WARN, "worker-silent", "workers",
                f"{seen.node} has not reported for {seen.age_s:.0f} s",
                "it hangs, or its host has no free CPU: see its log",
            )  # fmt: skip
        elif seen.report.drained:
            yield _found(
                WARN, "worker-drained", "workers",
                f"{seen.node} is drained: it claims no jobs",
                f"stop it, or let it claim again: headrace workers resume {seen.node}",
            )  # fmt: skip


def of_models(catalog: Catalog, workers: Alive) -> Iterator[Finding]:
    """Find models that no process, or too few, has loaded; nothing without a worker."""
    if not workers:
        return
    served, unloaded = set(), set()
    for seen, report in workers:
        unloaded |= {_model_of(label) for label in report.unloaded}
        for label, problem in report.unloaded.items():
            if problem:
                yield _found(
                    FAIL, "load-failed", "models",
                    f"{label} cannot be loaded on {seen.node}: {_reason(problem)}",
                    f"headrace models {_model_of(label)} shows the whole error; its jobs wait",
                    _model_of(label),
                )  # fmt: skip
        for name, state in report.models.items():
            served.add(name)
            yield from _of_state(name, state, f"{name} on {seen.node}")
    yield from _of_shared_replicas(workers)
    # A pipeline needs no worker; `of_background` covers it.
    yield from _of_unserved(catalog, set(catalog.models) - served - unloaded, workers)


def _of_state(name: str, state: ModelState, where: str) -> Iterator[Finding]:
    model = _model_of(name)
    # Between two tries it loads again, and still has the error of the last one.
    if state.state == "failed" or (state.state in ("loading", "warming") and state.error):
        yield _found(
            FAIL, "load-failed", "models", f"{where} could not be loaded: {_reason(state.error)}",
            f"headrace models {name} shows the traceback; it is retried every minute", model,
        )  # fmt: skip
    elif state.state == "restarting":
        yield _found(
            FAIL, "crash-loop", "models",
            f"{where}: its processes crash too often: {state.error[:160]}",
            "the worker's log shows why they crashed", model,
        )  # fmt: skip
    elif state.state in READY_STATES and state.ready < state.replicas:
        yield _found(
            WARN, "processes-missing", "models",
            f"{where} has {state.ready} of {state.replicas} processes",
            "the others may still be loading; if not, see the worker's log", model,
        )  # fmt: skip


def _of_unserved(catalog: Catalog, names: set[str], workers: Alive) -> Iterator[Finding]:
    """Find the registered models that no worker has."""
    missing = sorted(names)
    hosts = {seen.node: Host(report.labels, report.capacity) for seen, report in workers}
    for name in list(missing):
        if why := why_no_worker(needs_of(catalog.models[name]), hosts):
            missing.remove(name)
            yield _found(
                WARN, "model-unserved", "models",
                f"no worker serves {name}: {why.removeprefix('no worker fits: ')}",
                "start a worker that fits (HEADRACE_WORKER_LABELS, a GPU, more memory), or change "
                "`labels`, `device`, `device_ids` or `memory_mb` of the model", name,
            )  # fmt: skip
    if missing:
        yield _found(
            WARN, "model-unserved", "models", f"no worker serves {named(missing)}",
            "give the workers the same models file as the API, and restart them",
            missing[0] if len(missing) == 1 else None,
        )  # fmt: skip


def _of_shared_replicas(workers: Alive) -> Iterator[Finding]:
    """Find the models whose workers have other than the `total_replicas` that they share."""
    by_version: dict[tuple[str, str], list[ModelState]] = {}
    for _, report in workers:
        for name, state in report.models.items():
            if state.total_replicas is not None:
                by_version.setdefault((name, state.version), []).append(state)
    for (name, version), states in sorted(by_version.items()):
        has, total = sum(state.replicas for state in states), states[0].total_replicas
        if has != total:
            yield _found(
                WARN, "replicas-missing", "models",
                f"{name} {version} has {has} of {total} replicas in {len(states)} workers",
                "this passes within seconds, or lease_ttl after a host was lost; if not, see the "
                "logs of the workers", _model_of(name),
            )  # fmt: skip


def of_clocks(ahead_s: Mapping[str, float]) -> Iterator[Finding]:
    """Find clocks that differ from Redis' clock, by whose they are."""
    for name, offset_s in ahead_s.items():
        if abs(offset_s) >= SKEW_S:
            severity = FAIL if abs(offset_s) >= SKEW_BAD_S else WARN
            side = "ahead of" if offset_s > 0 else "behind"
            text = f"{name} is {abs(offset_s):.0f} s {side} Redis: {_OFF}"
            yield _found(severity, "clock-off", "clocks", text, _NTP)


def of_disks(workers: Alive) -> Iterator[Finding]:
    """Find disks of the workers' hosts that are nearly full."""
    reports = [report.figures.host for _, report in workers]
    for host in {one.name: one for one in reports if one is not None}.values():
        share = host.disk_available_bytes / host.disk_bytes if host.disk_bytes else 1.0
        if share < DISK_LOW:
            yield _found(
                FAIL if share < DISK_OUT else WARN, "disk-nearly-full", "disks",
                f"{size(host.disk_available_bytes)} of disk space are free on {host.name}",
                "free disk space: see docs/operations.md",
            )  # fmt: skip


def of_queues(
    models: Iterable[ModelConfig],
    workers: Alive,
    depths: Mapping[str, Depth],
    version_depths: Mapping[str, Mapping[str, Depth]],
    paused: Collection[str],
) -> Iterator[Finding]:
    """Find queues whose jobs no worker runs.

    Args:
        depths: by model.
        version_depths: of the queues of versions, by model and version.
        paused: queues, by name.
    """
    ready = {
        name
        for _, report in workers
        for name, state in report.models.items()
        if state.ready or state.state in READY_STATES
    }
    # `of_models` finds those that cannot be loaded.
    ready |= {_model_of(label) for _, report in workers for label in report.unloaded}
    for model in models:
        waiting = depths[model.name].total
        if waiting and model.queue in paused:
            yield _found(
                WARN, "paused", "queues",
                f"{model.name} is paused with {count(waiting, 'job')}",
                f"headrace queues resume {model.name}", model.name,
            )  # fmt: skip
        elif waiting and model.name not in ready:
            yield _found(
                FAIL, "no-ready-process", "queues",
                f"{model.name} has {count(waiting, 'job')} and no ready process",
                "see `models` and `workers`; a worker serves the models of its models file",
                model.name,
            )  # fmt: skip
        yield from _of_versions(model, workers, version_depths.get(model.name, {}))


def _of_versions(
    model: ModelConfig, workers: Alive, depths: Mapping[str, Depth]
) -> Iterator[Finding]:
    """Find the versions that jobs wait for and no worker serves."""
    serving = {
        report.models[model.name].version for _, report in workers if model.name in report.models
    }
    unloaded = {label for _, report in workers for label in report.unloaded}
    for version, depth in depths.items():
        label = f"{model.name}{keys.VERSION_SEPARATOR}{version}"
        if depth.total and version not in serving and label not in unloaded:
            yield _found(
                FAIL, "version-unserved", "queues",
                f"{count(depth.total, 'job')} waiting for version {version} of {model.name}, "
                "which no worker serves",
                f"start a worker whose models file has it, or headrace queues purge {label}",
                model.name,
            )  # fmt: skip


def of_backlog(models: Iterable[ModelConfig], depths: Mapping[str, Depth]) -> Iterator[Finding]:
    """Find queues that are nearly full, and jobs that wait for long."""
    for model in models:
        depth = depths[model.name]
        if depth.total >= NEARLY_FULL * model.max_queue_depth:
            yield _found(
                WARN, "queue-full", "backlog",
                f"{model.name} has {depth.total:,} jobs of {model.max_queue_depth:,}",
                "a full queue refuses jobs with 429: add workers, or raise max_queue_depth",
                model.name,
            )  # fmt: skip
        most_tokens = model.max_queued_tokens
        if most_tokens is not None and depth.tokens >= NEARLY_FULL * most_tokens:
            yield _found(
                WARN, "tokens-full", "backlog",
                f"{model.name} has {depth.tokens:,} tokens of {most_tokens:,}",
                "a full queue refuses jobs with 429: add workers, or raise max_queued_tokens",
                model.name,
            )  # fmt: skip
        for step, age_s in depth.oldest_ages_s.items():
            if age_s > (OLD_OFFLINE_S if step == keys.OFFLINE_STEP else OLD_S):
                yield _found(
                    WARN, "old-jobs", "backlog",
                    f"the oldest job of {model.name} (priority {step}) "
                    f"has waited for {duration(age_s)}",
                    "add workers, or see docs/operations.md (HeadraceOldestJobTooOld)",
                    model.name,
                )  # fmt: skip


def of_dead_letters(depths: Mapping[str, Depth]) -> Iterator[Finding]:
    """Find dead letters."""
    for model, depth in depths.items():
        if depth.dead:
            yield _found(
                WARN, "dead-letters", "dead-letters",
                f"{model} has {count(depth.dead, 'dead letter')}",
                f"headrace dead list {model} shows why; then headrace dead requeue or purge",
                model,
            )  # fmt: skip


def of_failures(minutes: Mapping[str, Sequence[Bucket]]) -> Iterator[Finding]:
    """Find models of which more jobs fail than before, by their last minutes."""
    for model, buckets in minutes.items():
        lately, before = buckets[-RISE_MINUTES:], buckets[:-RISE_MINUTES]
        failed, share = _failed(lately)
        if failed >= RISE_JOBS and share >= RISE_SHARE and share >= RISE_TIMES * _failed(before)[1]:
            yield _found(
                WARN, "failures-rise", "failures",
                f"{share:.0%} of the jobs of {model} failed in the last {RISE_MINUTES} minutes: "
                f"{failed:,}",
                f"headrace jobs --model {model} --group error shows why", model,
            )  # fmt: skip


def _failed(buckets: Sequence[Bucket]) -> tuple[int, float]:
    """Return how many jobs have failed, and their share."""
    failed = sum(bucket.failed or 0 for bucket in buckets)
    ended = failed + sum(bucket.succeeded or 0 for bucket in buckets)
    return failed, failed / ended if ended else 0.0


def of_background(
    background_workers: int, tasks: int, webhooks: int, *, pipelines: bool
) -> Iterator[Finding]:
    """Find background tasks and webhooks that no worker runs, or that are too many.

    Args:
        pipelines: some are served.
    """
    if not background_workers and (tasks or webhooks or pipelines):
        reason = f"{count(tasks, 'background task')} waiting" if tasks else ""
        reason = reason or (f"{count(webhooks, 'webhook')} waiting" if webhooks else "")
        yield _found(
            FAIL, "no-background-worker", "background",
            f"{reason or 'the models file has pipelines'}, but no background worker runs",
            "start one: headrace background",
        )  # fmt: skip
    elif webhooks > TASKS_MANY:
        yield _found(
            WARN, "webhooks-wait", "background", f"{webhooks:,} webhooks wait for a retry",
            "their receivers are down or slow: see the log of the background worker",
        )  # fmt: skip
    elif tasks > TASKS_MANY:
        yield _found(
            WARN, "tasks-wait", "background", f"{tasks:,} background tasks wait",
            "start more: headrace background, on any host",
        )  # fmt: skip


def of_redis(info: Mapping[str, Any]) -> Iterator[Finding]:
    """Find writes that failed, and a memory that is nearly full, by the server's INFO."""
    for field, what in (
        ("aof_last_write_status", "write to the append-only file"),
        ("aof_last_bgrewrite_status", "rewrite of the append-only file"),
        ("rdb_last_bgsave_status", "snapshot"),
    ):
        if str(info.get(field, "ok")) != "ok":
            yield _found(
                FAIL, "writes-fail", "redis-writes", f"the last {what} failed",
                "free disk space, or correct its permissions; its log shows the reason. "
                "It may refuse jobs until then",
            )  # fmt: skip
    yield from _of_memory(info)


def _of_memory(info: Mapping[str, Any]) -> Iterator[Finding]:
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    host = int(info.get("total_system_memory", 0))
    more = "raise maxmemory, shorten result_ttl, or store payloads elsewhere (payload_store)"
    if limit and used >= limit:
        yield _found(
            FAIL, "memory-full", "redis-memory",
            f"full: {size(used)} of maxmemory {size(limit)}; it takes no new jobs", more,
        )  # fmt: skip
    elif limit and used > MEMORY_FULL * limit:
        text = f"{size(used)} of maxmemory {size(limit)} are used"
        yield _found(WARN, "memory-nearly-full", "redis-memory", text, more)
    if host and max(limit, used) > host:
        yield _found(
            WARN, "memory-beyond-host", "redis-memory",
            f"maxmemory {size(limit)} is more than the host's {size(host)}",
            "lower maxmemory: the kernel would kill Redis before it is full",
        )  # fmt: skip
    elif host and used > OF_HOST * host:
        yield _found(
            WARN, "memory-nearly-full", "redis-memory",
            f"{size(used)} of the host's {size(host)} are used; a fork may need as much again",
            "use a larger host, or store payloads elsewhere (payload_store)",
        )  # fmt: skip


def _found(
    severity: str, code: str, check: str, text: str, hint: str, model: str | None = None
) -> Finding:
    return Finding(severity=severity, code=code, check=check, model=model, text=text, hint=hint)


def _model_of(label: str) -> str:
    """Return the model of a label `<model>@<version>`, or of a name without a version."""
    return label.partition(keys.VERSION_SEPARATOR)[0]


def _reason(error: str) -> str:
    return (last_line(error) or "unknown reason")[:160]
