"""Checks of the workers and the API: alive, answering, with equal versions and clocks."""

from __future__ import annotations

import email.utils
import http.client
import json
import subprocess
import sys
import time
from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit

import msgspec

from headrace._version import __version__
from headrace.cli.doctor.check import CheckResult, CheckSkipped, fail, named, ok, skip, warn, worst
from headrace.cli.doctor.deployment import Deployment, error_line
from headrace.cli.doctor.redis_latency import clock_skew_s
from headrace.cli.shared.exit_codes import ExitCode
from headrace.config.paths import ENV_URL
from headrace.errors import ConfigError
from headrace.observability.versions import running_versions
from headrace.server import components
from headrace.server.ports import http_connection, http_url
from headrace.server.supervisor.proc import start_time_ticks

#: Maximum age of a worker's report; workers report every second.
SILENT_S: Final = 6.0
SKEW_S: Final = 2.0
#: From here, times that clients set by their own clock (eta, expires of Celery) are far off.
SKEW_BAD_S: Final = 30.0
PING_S: Final = 10
_API_TIMEOUT_S: Final = 5.0
_OFF: Final = "expires and eta of Celery clients, and times of webhooks, are wrong by as much"
_NTP: Final = "synchronise the clocks with chrony or systemd-timesyncd"


def workers(deployment: Deployment) -> CheckResult:
    """`workers`: there are workers, and each has reported recently."""
    if not deployment.workers:
        if deployment.anything_runs:
            return fail("none runs, so no job can run", "start one: headrace worker")
        return skip("nothing runs here yet", "start headrace up, or headrace worker")
    found = []
    for seen in deployment.workers:
        gone = seen.report is None
        if seen.report is not None and seen.here:
            gone = start_time_ticks(seen.report.pid) is None
        if gone:
            found.append(
                fail(
                    f"{seen.node} was killed, or no longer reports",
                    "start it again; its supervisor's log shows why it ended. If it still runs, it "
                    "hangs or cannot reach Redis. Other workers run its jobs once their leases "
                    "expire",
                )
            )
        elif seen.age_s > SILENT_S:
            found.append(
                warn(
                    f"{seen.node} has not reported for {seen.age_s:.0f} s",
                    "it hangs, or its host has no free CPU: see its log",
                )
            )
    nodes = sorted(seen.node for seen in deployment.workers)
    return worst(found, ok(f"{len(nodes)}: {named(nodes)}"))


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
    answered = _nodes_in(done.stdout)
    if answered is None and "No nodes replied" not in done.stderr:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise CheckSkipped(f"celery inspect ping failed: {lines[-1][:200]}")
    silent = [node for node in nodes if node not in (answered or set())]
    if silent:
        return fail(
            f"no answer to Celery's ping within {PING_S} s: {named(silent)}",
            "remote control does not reach them: see their logs, and restart them",
        )
    return ok(f"{len(nodes)} answer Celery's ping")


def _nodes_in(text: str) -> set[str] | None:
    start = text.find("{")
    if start < 0:
        return None
    try:
        return set(json.loads(text[start:]))
    except ValueError:
        return None


def worker_versions(deployment: Deployment) -> CheckResult:
    """`worker-versions`: all workers have the versions of this host."""
    reported = [
        (seen.node, report.versions) for seen, report in deployment.alive if report.versions
    ]
    if not reported:
        raise CheckSkipped("no worker reports its versions")
    ours, found = running_versions(), []
    for name in sorted({name for _, versions in reported for name in versions}):
        by_version: dict[str, list[str]] = {}
        for node, versions in reported:
            by_version.setdefault(versions.get(name, "none"), []).append(node)
        if len(by_version) > 1:
            each = [f"{version} on {named(nodes)}" for version, nodes in by_version.items()]
            found.append(
                warn(
                    f"workers differ in {name}: {', '.join(each)}",
                    "install the same version on all hosts",
                )
            )
        elif name in ours and name != "python" and set(by_version) != {ours[name]}:
            there = next(iter(by_version))
            kind = fail if name == "headrace" else warn
            found.append(
                kind(
                    f"workers run {name} {there}, this host has {ours[name]}",
                    "install the same version on all hosts",
                )
            )
    return worst(
        found, ok(f"all workers run Headrace {reported[0][1].get('headrace', '?')}, like this host")
    )


def clocks(deployment: Deployment) -> CheckResult:
    """`clocks`: the clocks of this host, the workers and the API agree with Redis' clock."""
    offsets = {"this host": clock_skew_s(deployment)}
    offsets |= {seen.node: seen.ahead_s for seen, _ in deployment.alive}
    api = _api_clock_s(deployment)
    if api is not None:
        offsets["the API"] = api
    found = []
    for name, offset_s in offsets.items():
        if abs(offset_s) < SKEW_S:
            continue
        text = f"{name} is {abs(offset_s):.0f} s {'ahead of' if offset_s > 0 else 'behind'} Redis"
        if abs(offset_s) >= SKEW_BAD_S:
            found.append(fail(f"{text}: {_OFF}", _NTP))
        else:
            found.append(warn(f"{text}: {_OFF}", _NTP))
    return worst(found, ok(f"{named(list(offsets))}: within {SKEW_S:g} s of Redis"))


class _Ready(msgspec.Struct):
    title: str = ""
    detail: str = ""


def api(deployment: Deployment) -> CheckResult:
    """`api`: the API serves, and has the version of this host."""
    try:
        return _api(deployment)
    except _ApiUnreachable as error:
        return fail(
            str(error), "start it: headrace api; or correct --api or HEADRACE_URL",
            ExitCode.UNREACHABLE,
        )  # fmt: skip


def _api(deployment: Deployment) -> CheckResult:
    status, body, _ = _get_api(deployment, "/ready")
    where = _api_url(deployment)
    if status != 200:
        return fail(f"{where}/ready answers {status}: {_detail(body)}", "see the API's log")
    _, described, _ = _get_api(deployment, "/openapi.json")
    try:
        version = str(json.loads(described)["info"]["version"])
    except (ValueError, LookupError, TypeError):
        return ok(f"{where} is ready")
    if version != __version__:
        return warn(
            f"{where} is Headrace {version}, this host has {__version__}",
            "install the same version",
        )
    return ok(f"{where} is ready, Headrace {version}")


def _detail(body: bytes) -> str:
    try:
        problem = msgspec.json.decode(body, type=_Ready)
    except msgspec.MsgspecError:
        return body[:100].decode("utf-8", "replace")
    return problem.detail or problem.title


def _api_url(deployment: Deployment) -> str:
    named_url = deployment.options.api_url or deployment.environ.get(ENV_URL)
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
    connection = http_connection(address.hostname, port, timeout_s=_API_TIMEOUT_S, tls=tls)
    try:
        connection.request("GET", address.path + path)
        answer = connection.getresponse()
        body, date = answer.read(), answer.headers.get("Date")
    except (OSError, http.client.HTTPException) as error:
        if deployment.options.api_url is None and not deployment.environ.get(ENV_URL):
            raise CheckSkipped(f"no API listens at {url}; set it with --api URL") from None
        raise _ApiUnreachable(f"{url}: {error_line(error)}") from None
    finally:
        connection.close()
    if date is None:
        return answer.status, body, None
    ahead_s = email.utils.parsedate_to_datetime(date).timestamp() + 0.5 - time.time()
    return answer.status, body, ahead_s


class _ApiUnreachable(Exception):
    """The given API does not answer."""


def _api_clock_s(deployment: Deployment) -> float | None:
    try:
        _, _, ahead_s = _get_api(deployment, "/live")
    except (CheckSkipped, _ApiUnreachable, ConfigError):
        return None
    return None if ahead_s is None else ahead_s + clock_skew_s(deployment)
