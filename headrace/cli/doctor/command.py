"""`headrace doctor`: the list of all checks, and the report as text or as JSON."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import typer

from headrace.cli.doctor import (
    configuration,
    host,
    queues,
    redis_server,
    workers,
)
from headrace.cli.doctor.check import (
    CONFIG,
    DEVICES,
    GROUPS,
    HOST,
    REDIS,
    WORK,
    WORKERS,
    Check,
    CheckRun,
    Verdict,
    run_checks,
)
from headrace.cli.doctor.deployment import Deployment
from headrace.cli.shared import output
from headrace.cli.shared.exit_codes import ExitCode
from headrace.text import count

#: The core's checks, in the order of the report.
CHECKS: Final = (
    Check("settings", CONFIG, configuration.settings),
    Check("env-file", CONFIG, configuration.env_file),
    Check("models-file", CONFIG, configuration.models_file),
    Check("handlers", CONFIG, configuration.handlers),
    Check("weights", CONFIG, configuration.weights),
    Check("exposure", CONFIG, configuration.exposure),
    Check("certificate", CONFIG, configuration.certificate),
    Check("redis", REDIS, redis_server.reach),
    Check("redis-version", REDIS, redis_server.version),
    Check("redis-mode", REDIS, redis_server.mode),
    Check("redis-rights", REDIS, redis_server.rights),
    Check("redis-scripts", REDIS, redis_server.scripting),
    Check("redis-tracking", REDIS, redis_server.tracking),
    Check("redis-persistence", REDIS, redis_server.persistence),
    Check("redis-writes", REDIS, redis_server.last_writes),
    Check("redis-eviction", REDIS, redis_server.eviction),
    Check("redis-memory", REDIS, redis_server.memory),
    Check("redis-replicas", REDIS, redis_server.replication),
    Check("redis-clients", REDIS, redis_server.connections),
    Check("redis-latency", REDIS, redis_server.latency),
    Check("redis-slow", REDIS, redis_server.slow_commands),
    Check("redis-fork", REDIS, redis_server.fork),
    Check("redis-keys", REDIS, redis_server.strays),
    Check("redis-disk", REDIS, redis_server.disk),
    Check("redis-host", REDIS, redis_server.host),
    Check("workers", WORKERS, workers.workers),
    Check("models", WORKERS, workers.served_models),
    Check("model-versions", WORKERS, workers.model_versions),
    Check("placement", WORKERS, workers.placement),
    Check("worker-versions", WORKERS, workers.worker_versions),
    Check("clocks", WORKERS, workers.clocks),
    Check("api", WORKERS, workers.api),
    Check("worker-answers", WORKERS, workers.answers, limit_s=60, background=True),
    Check("queues", WORK, queues.queues),
    Check("backlog", WORK, queues.backlog),
    Check("failures", WORK, queues.failures),
    Check("dead-letters", WORK, queues.dead_letters),
    Check("unknown-queues", WORK, queues.unknown_queues),
    Check("background", WORK, queues.background_tasks),
    Check("gpus", DEVICES, host.gpus, limit_s=30),
    Check("gpu-use", DEVICES, host.gpu_use, limit_s=30),
    Check("threads", DEVICES, host.threads),
    Check("torch", DEVICES, host.torch, limit_s=120, background=True),
    Check("payload-store", HOST, host.payload_store, limit_s=30),
    Check("state-dir", HOST, host.state_dir),
    Check("disks", HOST, host.disks),
    Check("open-files", HOST, host.open_files),
    Check("versions", HOST, host.versions),
    Check("extensions", HOST, configuration.extensions, limit_s=60, background=True),
)
_COLOURS: Final = {
    Verdict.OK: typer.colors.GREEN,
    Verdict.WARN: typer.colors.YELLOW,
    Verdict.FAIL: typer.colors.RED,
    Verdict.SKIP: typer.colors.BRIGHT_BLACK,
}
#: Maximum number of problems that are printed per check.
_PARTS_MAX: Final = 10


def all_checks() -> list[Check]:
    """Return all checks, in the order of the report. A test compares docs/doctor.md with them."""
    checks = [*CHECKS, *configuration.extension_checks()]
    groups = list(dict.fromkeys([*GROUPS, *(check.group for check in checks)]))
    return sorted(checks, key=lambda check: groups.index(check.group))


def examine(
    redis_url: str | None,
    models: Path | None,
    api_url: str | None,
    *,
    strict: bool,
    as_json: bool,
) -> ExitCode:
    """Run all checks, print the report and return the exit code."""
    deployment = Deployment(os.environ, redis_url, models, api_url)
    checks = all_checks()
    width = max(len(check.name) for check in checks)
    results: list[CheckRun] = []
    group = ""
    try:
        for run in run_checks(deployment, checks):
            results.append(run)
            if as_json:
                output.json_line(_json_object(run))
                continue
            heading = "Slow checks" if run.check.background else run.check.group
            if heading != group:
                output.line(f"{chr(10) if group else ''}{_styled(heading, bold=True)}", styled=True)
                group = heading
            for text in _lines(run, width):
                output.line(text, styled=True)
    finally:
        deployment.close()
    if not as_json:
        counts = Counter(run.result.verdict for run in results)
        parts = [f"{counts[verdict]} {verdict}" for verdict in reversed(Verdict) if counts[verdict]]
        output.line(f"\n{count(len(results), 'check')}: {', '.join(parts)}")
    return exit_code_of(results, strict=strict)


def exit_code_of(runs: Iterable[CheckRun], *, strict: bool) -> ExitCode:
    """Return the highest exit code of the failures; with `strict`, warnings are failures."""
    codes = [ExitCode.DONE]
    for run in runs:
        if run.result.verdict is Verdict.FAIL:
            codes.append(run.result.code)
        elif strict and run.result.verdict is Verdict.WARN:
            codes.append(ExitCode.FAILED)
    return max(codes)


def _json_object(run: CheckRun) -> dict[str, object]:
    result = run.result
    return {
        "check": run.check.name,
        "group": run.check.group,
        "verdict": str(result.verdict),
        "text": output.printable(result.sentence),
        "hint": result.hint or None,
        "took_ms": round(run.took_s * 1000, 1),
    }


def _lines(run: CheckRun, width: int) -> list[str]:
    result = run.result
    coloured = _styled(f"{result.verdict:<4}", fg=_COLOURS[result.verdict])
    head, below = f"  {coloured}  {run.check.name:<{width}}  ", " " * (width + 10)
    parts = result.parts or ((result.sentence, result.hint),)
    lines: list[str] = []
    shown = parts[:_PARTS_MAX]
    for n, (sentence, hint) in enumerate(shown, 1):
        lines.append((below if lines else head) + output.printable(" ".join(sentence.split())))
        # A hint that several problems share is printed once, after the last of them.
        hint_follows = n < len(shown) and shown[n][1] == hint
        if hint and not hint_follows and result.verdict is not Verdict.OK:
            lines.append(f"{below}-> {output.printable(hint)}")
    if len(parts) > _PARTS_MAX:
        lines.append(f"{below}and {len(parts) - _PARTS_MAX} more; --json has them")
    return lines


def _styled(text: str, **style: object) -> str:
    """Return text that is styled on a terminal and plain elsewhere."""
    return typer.style(text, **style) if output.coloured() else text  # type: ignore[arg-type]
