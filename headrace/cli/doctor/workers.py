"""The Celery workers and the API: do they live, answer, agree on versions and on the time?"""

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
from headrace.cli.doctor.deployment import Deployment, sentence
from headrace.cli.doctor.redis_latency import clock_skew_s
from headrace.cli.shared.exit_codes import ExitCode
from headrace.config.paths import ENV_URL
from headrace.errors import ConfigError
from headrace.observability.versions import running
from headrace.server import components
from headrace.server.ports import http_connection, http_url
from headrace.server.supervisor.proc import start_time_ticks

#: A worker tells of itself each second.
SILENT_S: Final = 6.0
SKEW_S: Final = 2.0
#: What a client names by its own clock (eta, and expires of stock Celery clients) is then far off.
SKEW_BAD_S: Final = 30.0
PING_S: Final = 10
_API_TIMEOUT_S: Final = 5.0
_OFF: Final = "expires and eta of Celery clients, and the times of webhooks, are off by so much"
_NTP: Final = "let chrony or systemd-timesyncd set the clocks"


def workers(site: Deployment) -> CheckResult:
    """`workers`: there are some, and each has told of itself just now."""
    if not site.workers:
        if site.anything_runs:
            return fail("none runs, so that no job is run", "start one: headrace worker")
        return skip("nothing runs here yet", "headrace up, or headrace worker")
    found = []
    for seen in site.workers:
        gone = seen.report is None
        if seen.report is not None and seen.here:
            gone = start_time_ticks(seen.report.pid) is None
        if gone:
            found.append(
                fail(
                    f"{seen.node} has ended without a word",
                    "start it again; the log of its supervisor says why it ended. If it runs, it "
                    "hangs or cannot reach Redis. What it held runs elsewhere once its leases are "
                    "over",
                )
            )
        elif seen.age_s > SILENT_S:
            found.append(
                warn(
                    f"{seen.node} said nothing for {seen.age_s:.0f} s",
                    "it hangs, or its host has no CPU left: see its log",
                )
            )
    nodes = sorted(seen.node for seen in site.workers)
    return worst(found, ok(f"{len(nodes)}: {named(nodes)}"))


def answers(site: Deployment) -> CheckResult:
    """`worker-answers`: each answers Celery's ping."""
    nodes = sorted(seen.node for seen, report in site.alive if report.models)
    if not nodes:
        raise CheckSkipped("no worker runs")
    if find_spec("celery") is None:
        raise CheckSkipped("Celery is not installed here, so that nobody can ask")
    command = [
        sys.executable, "-m", "celery", "-A", "workers.celery_app", "inspect", "ping",
        "--timeout", str(PING_S), "--destination", ",".join(nodes), "--json",
    ]  # fmt: skip
    asked = subprocess.run(
        command, env=components.environment(site.settings, site.redis_url, site.environ),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    answered = _nodes_in(asked.stdout)
    if answered is None and "No nodes replied" not in asked.stderr:
        lines = asked.stderr.strip().splitlines() or [f"status {asked.returncode}"]
        raise CheckSkipped(f"celery inspect ping failed: {lines[-1][:200]}")
    silent = [node for node in nodes if node not in (answered or set())]
    if silent:
        return fail(
            f"no answer to Celery's ping within {PING_S} s: {named(silent)}",
            "they cannot be asked or revoked anything: see their logs, and restart them",
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


def worker_versions(site: Deployment) -> CheckResult:
    """`worker-versions`: all workers run what runs here."""
    said = [(seen.node, report.versions) for seen, report in site.alive if report.versions]
    if not said:
        raise CheckSkipped("no worker says its versions")
    ours, found = running(), []
    for name in sorted({name for _, versions in said for name in versions}):
        by_version: dict[str, list[str]] = {}
        for node, versions in said:
            by_version.setdefault(versions.get(name, "none"), []).append(node)
        if len(by_version) > 1:
            each = [f"{version} on {named(nodes)}" for version, nodes in by_version.items()]
            found.append(
                warn(f"workers differ in {name}: {', '.join(each)}", "install the same on all")
            )
        elif name in ours and name != "python" and set(by_version) != {ours[name]}:
            there = next(iter(by_version))
            kind = fail if name == "headrace" else warn
            found.append(
                kind(f"workers run {name} {there}, here is {ours[name]}", "install the same on all")
            )
    return worst(found, ok(f"all workers run Headrace {said[0][1].get('headrace', '?')}, as here"))


def clocks(site: Deployment) -> CheckResult:
    """`clocks`: this host, the workers and the API agree with Redis on the time."""
    offsets = {"this host": clock_skew_s(site)}
    offsets |= {seen.node: seen.ahead_s for seen, _ in site.alive}
    api = _api_clock_s(site)
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


def api(site: Deployment) -> CheckResult:
    """`api`: it serves, and is of our version."""
    status, body, _ = _asked_api(site, "/ready")
    where = _api_url(site)
    if status != 200:
        said = _detail(body)
        return fail(f"{where}/ready answers {status}: {said}", "its log says more")
    _, described, _ = _asked_api(site, "/openapi.json")
    try:
        version = str(json.loads(described)["info"]["version"])
    except (ValueError, LookupError, TypeError):
        return ok(f"{where} is ready")
    if version != __version__:
        return warn(f"{where} is Headrace {version}, here is {__version__}", "install the same")
    return ok(f"{where} is ready, Headrace {version}")


def _detail(body: bytes) -> str:
    try:
        problem = msgspec.json.decode(body, type=_Ready)
    except msgspec.MsgspecError:
        return body[:100].decode("utf-8", "replace")
    return problem.detail or problem.title


def _api_url(site: Deployment) -> str:
    named_url = site.asked.api_url or site.environ.get(ENV_URL)
    if named_url:
        return named_url.rstrip("/")
    settings = site.settings
    return http_url(settings.host, settings.port, tls=settings.tls)


def _asked_api(site: Deployment, path: str) -> tuple[int, bytes, float | None]:
    """Status, body, and by how much its clock is ahead of ours, to a second.

    Raises:
        NotLooked: none was named, and none runs here.
        ConfigError: the one that was named does not answer.
    """
    url = _api_url(site)
    address = urlsplit(url)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise ConfigError(f"{url} is no address of an API", hint="write http://host:8080")
    tls = address.scheme == "https"
    port = address.port or (443 if tls else 80)
    connection = http_connection(address.hostname, port, timeout_s=_API_TIMEOUT_S, tls=tls)
    try:
        connection.request("GET", address.path + path)
        answer = connection.getresponse()
        body, date = answer.read(), answer.headers.get("Date")
    except (OSError, http.client.HTTPException) as error:
        if site.asked.api_url is None and not site.environ.get(ENV_URL):
            raise CheckSkipped(f"none listens at {url}; name it: --api URL") from None
        raise _NoApi(f"{url}: {sentence(error)}") from None
    finally:
        connection.close()
    if date is None:
        return answer.status, body, None
    ahead_s = email.utils.parsedate_to_datetime(date).timestamp() + 0.5 - time.time()
    return answer.status, body, ahead_s


class _NoApi(Exception):
    """One was named, and does not answer."""


def api_or_why(site: Deployment) -> CheckResult:
    """`api`, with an API that was named and does not answer."""
    try:
        return api(site)
    except _NoApi as error:
        return fail(
            str(error), "start it: headrace api, or correct --api or HEADRACE_URL",
            ExitCode.UNREACHABLE,
        )  # fmt: skip


def _api_clock_s(site: Deployment) -> float | None:
    try:
        _, _, ahead_s = _asked_api(site, "/live")
    except (CheckSkipped, _NoApi, ConfigError):
        return None
    return None if ahead_s is None else ahead_s + clock_skew_s(site)
