"""Checks of the workers and the API: alive, answering, with equal versions and clocks."""

from __future__ import annotations

import email.utils
import http.client
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit

from headrace._version import __version__
from headrace.cli.doctor.check import CheckResult, fail, ok, results_of, skip, warn
from headrace.cli.doctor.deployment import CheckSkipped, Deployment
from headrace.cli.shared.exit_codes import ExitCode
from headrace.cli.shared.output import error_line
from headrace.config.environment import ENV_URL
from headrace.errors import ConfigError
from headrace.observability.worker_report import (
    DeviceFigures,
    ModelState,
    WorkerReport,
    running_versions,
)
from headrace.queue import findings
from headrace.queue.findings import WorkerSeen
from headrace.redis.clock import US_PER_S
from headrace.redis.keys import VERSION_SEPARATOR
from headrace.server import components
from headrace.server.ports import http_get, http_url
from headrace.server.supervisor.proc import start_time_ticks
from headrace.text import count, named

PING_S: Final = 10
_API_TIMEOUT_S: Final = 5.0


def workers(deployment: Deployment) -> Iterator[CheckResult]:
    """`workers`: there are workers, and each has reported recently."""
    found, needed = deployment.workers, deployment.anything_runs
    dead = {
        seen.owner
        for seen, report in deployment.alive
        if seen.here and start_time_ticks(report.pid) is None
    }
    yield from results_of(findings.of_workers(found, needed=needed, dead=dead))
    if found:
        nodes = sorted(_with_labels(seen) for seen in found)
        yield ok(f"{len(nodes)}: {named(nodes)}")
    else:
        yield skip("nothing runs here yet", "start headrace up, or headrace worker")


def _with_labels(seen: WorkerSeen) -> str:
    labels = seen.report.labels if seen.report is not None else []
    return f"{seen.node} ({', '.join(labels)})" if labels else seen.node


def served_models(deployment: Deployment) -> Iterator[CheckResult]:
    """`models`: every model is loaded on all its processes."""
    if not deployment.alive:
        raise CheckSkipped("no worker runs")
    yield from results_of(findings.of_models(deployment.catalog, deployment.alive))
    served = {name for _, report in deployment.alive for name in report.models}
    unloaded = {
        label.partition(VERSION_SEPARATOR)[0]
        for _, report in deployment.alive
        for label in report.unloaded
    }
    more = f"; {len(unloaded - served)} load on demand" if unloaded - served else ""
    yield ok(f"{len(served)} served: {named(sorted(served))}{more}")


def model_versions(deployment: Deployment) -> Iterator[CheckResult]:
    """`model-versions`: all workers serve one version of each model, that of the models file."""
    declared = {model.name: model.version for model in deployment.catalog.models.values()}
    served: dict[str, dict[str, list[str]]] = {}
    for seen, report in deployment.alive:
        for name, state in report.models.items():
            if state.version:
                served.setdefault(name, {}).setdefault(state.version, []).append(seen.node)
    if not served:
        raise CheckSkipped("no worker reports the versions of its models")
    for name, nodes in sorted(served.items()):
        each = ", ".join(f"{version} ({named(hosts)})" for version, hosts in sorted(nodes.items()))
        if len(nodes) > 1:
            number = sum(map(len, nodes.values()))
            yield warn(
                f"{number} workers serve several versions of {name}: {each}",
                "a job that asks for no version runs on any of them: end the rolling change, or "
                "ask for a version with each job",
            )
        elif name in declared and declared[name] not in nodes:
            yield warn(
                f"{name} is version {declared[name]} in {deployment.catalog.path.name}, and the "
                f"workers serve {each}",
                "give API and workers the same models file, and restart them",
            )
    yield ok(f"one version of each of {len(served)} models")


def answers(deployment: Deployment) -> CheckResult:
    """`worker-answers`: each worker answers Celery's ping."""
    nodes = sorted(seen.node for seen, report in deployment.alive if report.models)
    if not nodes:
        raise CheckSkipped("no worker runs")
    if find_spec("celery") is None:
        raise CheckSkipped("Celery is not installed here")
    command = [
        sys.executable, "-m", "celery", "-A", "workers.celery_app", "inspect", "ping",
        "--timeout", str(PING_S), "--destination", ",".join(nodes), "--json",
    ]  # fmt: skip
    done = subprocess.run(
        command,
        env=components.environment(
            deployment.settings, deployment.redis_url, deployment.environ
        ),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    try:
        answered = json.loads(done.stdout[done.stdout.index("{") :])
    except ValueError:  # no JSON at all, or none that can be read
        answered = {}
        if "No nodes replied" not in done.stderr:
            lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
            raise CheckSkipped(f"celery inspect ping failed: {lines[-1][:200]}") from None
    silent = [node for node in nodes if node not in answered]
    if silent:
        return fail(
            f"no answer to Celery's ping within {PING_S} s: {named(silent)}",
            "remote control does not reach them: see their logs, and restart them",
        )
    return ok(f"{len(nodes)} answer Celery's ping")


def worker_versions(deployment: Deployment) -> Iterator[CheckResult]:
    """`worker-versions`: all workers have the versions of this host."""
    reported = [
        (seen.node, report.versions) for seen, report in deployment.alive if report.versions
    ]
    if not reported:
        raise CheckSkipped("no worker reports its versions")
    ours, hint = running_versions(), "install the same version on all hosts"
    for name in sorted({name for _, versions in reported for name in versions}):
        by_version: dict[str, list[str]] = {}
        for node, versions in reported:
            by_version.setdefault(versions.get(name, "none"), []).append(node)
        if len(by_version) > 1:
            each = [f"{version} on {named(nodes)}" for version, nodes in by_version.items()]
            yield warn(f"workers differ in {name}: {', '.join(each)}", hint)
        elif name in ours and name != "python" and set(by_version) != {ours[name]}:
            there = next(iter(by_version))
            kind = fail if name == "headrace" else warn
            yield kind(f"workers run {name} {there}, this host has {ours[name]}", hint)
    yield ok(f"all workers run Headrace {reported[0][1].get('headrace', '?')}, like this host")


def clocks(deployment: Deployment) -> Iterator[CheckResult]:
    """`clocks`: the clocks of this host, the workers and the API agree with Redis' clock."""
    offsets = {"this host": clock_skew_s(deployment)}
    offsets |= {seen.node: seen.ahead_s for seen, _ in deployment.alive}
    with suppress(CheckSkipped, _ApiUnreachable, ConfigError):
        _, _, ahead_s = _get_api(deployment, "/live")
        if ahead_s is not None:
            offsets["the API"] = ahead_s + clock_skew_s(deployment)
    yield from results_of(findings.of_clocks(offsets))
    yield ok(f"{named(list(offsets))}: within {findings.SKEW_S:g} s of Redis")


def clock_skew_s(deployment: Deployment) -> float:
    """Return by how much this host's clock is ahead of Redis', to half a round trip."""
    before_s = time.time()
    seconds, micros = deployment.redis.time()
    middle_s = (before_s + time.time()) / 2
    return float(middle_s - (seconds + micros / US_PER_S))


def api(deployment: Deployment) -> CheckResult:
    """`api`: the API serves, and has the version of this host."""
    where = _api_url(deployment)
    try:
        status, body, _ = _get_api(deployment, "/ready")
        if status != 200:
            return fail(f"{where}/ready answers {status}: {_detail(body)}", "see the API's log")
        _, described, _ = _get_api(deployment, "/openapi.json")
    except _ApiUnreachable as error:
        hint = "start it: headrace api; or correct --api or HEADRACE_URL"
        return fail(str(error), hint, ExitCode.UNREACHABLE)
    try:
        version = str(json.loads(described)["info"]["version"])
    except (ValueError, LookupError, TypeError):
        return ok(f"{where} is ready")
    if version != __version__:
        text = f"{where} is Headrace {version}, this host has {__version__}"
        return warn(text, "install the same version")
    return ok(f"{where} is ready, Headrace {version}")


def _detail(body: bytes) -> str:
    try:
        problem = json.loads(body)
        return str(problem.get("detail") or problem.get("title", ""))
    except (ValueError, AttributeError):
        return body[:100].decode("utf-8", "replace")


def _api_url(deployment: Deployment) -> str:
    named_url = deployment.api_url or deployment.environ.get(ENV_URL)
    if named_url:
        return named_url.rstrip("/")
    settings = deployment.settings
    return http_url(settings.host, settings.port, tls=settings.tls)


def _get_api(deployment: Deployment, path: str) -> tuple[int, bytes, float | None]:
    """Return status, body, and the seconds by which its clock is ahead of ours (within 1 s).

    Raises:
        CheckSkipped: no API is given, and none runs here.
        _ApiUnreachable: the given API does not answer.
        ConfigError: its address is invalid.
    """
    url = _api_url(deployment)
    address = urlsplit(url)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise ConfigError(f"{url} is not the address of an API", hint="write http://host:8080")
    tls = address.scheme == "https"
    port = address.port or (443 if tls else 80)
    try:
        status, body, headers = http_get(
            address.hostname, port, address.path + path, timeout_s=_API_TIMEOUT_S, tls=tls
        )
    except (OSError, http.client.HTTPException) as error:
        if deployment.api_url is None and not deployment.environ.get(ENV_URL):
            raise CheckSkipped(f"no API listens at {url}; set it with --api URL") from None
        raise _ApiUnreachable(f"{url}: {error_line(error)}") from None
    if (date := headers.get("Date")) is None:
        return status, body, None
    ahead_s = email.utils.parsedate_to_datetime(date).timestamp() + 0.5 - time.time()
    return status, body, ahead_s


class _ApiUnreachable(Exception):
    """The given API does not answer."""


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
