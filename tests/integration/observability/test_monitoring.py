"""Prometheus and Alertmanager, Debian's own, over a Headrace to which everything happens."""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from api.observability.metric_families import FAMILIES, SHADOW, Family
from benchmarks.pictures.dashboard import draw
from headrace.redis import keys
from tests.harness.http.plain_http import PLAIN
from tests.harness.monitoring.monitoring import (
    RUNBOOKS,
    Prometheus,
    Receiver,
    alertmanager,
    prometheus,
    receiver,
)
from tests.harness.processes.processes import suspend
from tests.harness.servers.redis_servers import redis_server
from tests.harness.servers.up import RunningUp, started
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Worker, celery_worker, write_models
from tests.unit.deploy.test_monitoring_files import ALERTS, PANELS

TRICKY = f"{HANDLERS / 'trouble/tricky.py'}:Tricky"
MODELS: dict[str, dict[str, Any]] = {
    "tricky": {
        "handler": TRICKY, "device": "cpu", "max_batch_size": 4, "max_retries": 1,
        "retry_backoff_s": 0.01, "retry_backoff_max_s": 0.01, "timeout_s": 60,
        "max_restarts_per_minute": 50,
    },
    "gated": {"handler": f"{HANDLERS / 'gated.py'}:Gated", "device": "cpu", "max_batch_size": 1},
    "small": {"handler": "echo", "device": "cpu", "max_queue_depth": 1, "max_jobs": 5},
    "broken": {"handler": TRICKY, "device": "cpu", "options": {"load": "fail"}},
    "words": {"handler": f"{HANDLERS / 'generation/generating.py'}:Words", "device": "cpu"},
}  # fmt: skip
#: Short leases, so that one that is lost is so soon; a job that dies alone once is dead.
SETTINGS = {"HEADRACE_LEASE_TTL_S": "3", "HEADRACE_MAX_DELIVERIES": "1"}
#: Prometheus drops a label without a value, so the workers have a label of their own.
WORKERS = {"CUDA_VISIBLE_DEVICES": "0,1", "HEADRACE_WORKER_LABELS": "zone=b"}
FINAL = ("succeeded", "failed", "expired", "cancelled")
RECYCLED = 'headrace_model_restarts_total{model="small",reason="recycled"}'
UNLOADED = 'headrace_model_load_failures_total{model="broken"}'
#: What a dashboard fills in.
VARIABLES = {"$model": ".*", "$__rate_interval": "1m", "$__range": "10m"}


@dataclass
class Site:
    """All that runs."""

    folder: Path
    prometheus: Prometheus
    receiver: Receiver
    http: httpx2.Client
    worker: Worker
    doomed: Worker
    redis: Any

    def submit(self, model: str, value: object, **query: object) -> str:
        """Submit a job; its id, or nothing where it is refused."""
        asked = {name: str(given) for name, given in query.items()}
        response = self.http.post(f"/api/v1/models/{model}/jobs", json=value, params=asked)
        return str(response.json().get("id", ""))

    def ends(self, *ids: str) -> list[str]:
        """Wait until jobs have ended; how."""

        def statuses() -> list[str]:
            return [str(self.http.get(f"/api/v1/jobs/{i}").json()["status"]) for i in ids]

        wait_until(lambda: set(statuses()) <= set(FINAL), f"{len(ids)} jobs end", 120)
        return statuses()

    @contextmanager
    def paused(self, model: str) -> Iterator[None]:
        """Nothing is claimed of a model."""
        queue = keys.queue_name(model)
        self.redis.sadd(keys.PAUSED, queue)
        yield
        self.redis.srem(keys.PAUSED, queue)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two workers, two API processes, Prometheus, Alertmanager and who hears it."""
    folder = tmp_path_factory.mktemp("monitoring")
    path = write_models(folder, **MODELS)
    with ExitStack() as stack:
        server = stack.enter_context(redis_server())
        api = RunningUp(folder, HEADRACE_REDIS_URL=server.url, **SETTINGS)
        api.arguments = [
            "api", "--port", str(api.port), "--processes", "2", "--models", str(path),
        ]  # fmt: skip
        stack.enter_context(started(api))
        worker, doomed = (
            stack.enter_context(
                celery_worker(
                    server.url, path, folder, node=f"gpu{n}@test",
                    app="tests.harness.workers.gpu_app",
                    environ={**SETTINGS, **WORKERS},
                )
            )
            for n in range(2)
        )  # fmt: skip
        api.wait_for("2 API processes on")
        for one in (worker, doomed):
            one.wait_ready("tricky", "small", "gated", "words", timeout_s=120)
        # Not before: a model that is not loaded yet has no replica, and that is an alert.
        told = stack.enter_context(receiver())
        manager = stack.enter_context(alertmanager(folder / "alertmanager", told.port))
        watching = stack.enter_context(
            prometheus(folder / "prometheus", f"127.0.0.1:{api.port}", manager)
        )
        http = stack.enter_context(
            httpx2.Client(base_url=f"http://127.0.0.1:{api.port}", timeout=60, verify=PLAIN)
        )
        client = stack.enter_context(server.client())
        yield Site(folder, watching, told, http, worker, doomed, client)


@pytest.fixture(scope="module")
def ended(site: Site) -> Counter[tuple[str, str]]:
    """How jobs have ended, by model, after all that could happen to them."""
    # A counter that Prometheus has not seen before has no rate.
    wait_until(lambda: site.prometheus.value("headrace_workers") == 2, "Prometheus scrapes", 90)
    counted = Counter[tuple[str, str]]()
    counted["gated", lose_a_worker(site)] += 1
    plain = [site.submit("tricky", n, priority=n % 10) for n in range(20)]
    assert set(site.ends(*plain)) == {"succeeded"}
    bad = [site.submit("tricky", {"do": do}) for do in ("raise", "transient", "transient")]
    # Each alone, as nobody's neighbour is to be lost: first with its batch, then by itself.
    for _ in range(2):
        bad.append(site.submit("tricky", {"do": "segfault"}))
        site.ends(bad[-1])
    assert set(site.ends(*bad)) == {"failed"}
    with site.paused("tricky"):
        late = site.submit("tricky", 1, expires=0.05)
        unwanted = site.submit("tricky", 1)
        assert site.http.delete(f"/api/v1/jobs/{unwanted}").status_code == 200
        # Within the pause, as a worker that is quick enough would still run it.
        assert site.ends(late, unwanted) == ["expired", "cancelled"]
    with site.paused("small"):
        small = [site.submit("small", n) for n in range(2)]
    assert small.pop() == "", "the queue was full"
    # More than its process may run.
    for n in range(6):
        assert site.ends(small[-1]) == ["succeeded"]
        small.append(site.submit("small", n))
    assert set(site.ends(*small)) == {"succeeded"}
    generated = [site.submit("words", {"words": 3}) for _ in range(5)]
    assert set(site.ends(*generated)) == {"succeeded"}
    counted["words", "succeeded"] = len(generated)
    counted["tricky", "succeeded"] = len(plain)
    counted["tricky", "failed"] = len(bad)
    counted["tricky", "expired"] = counted["tricky", "cancelled"] = 1
    counted["small", "succeeded"] = len(small)
    wait_until(
        lambda: (
            site.prometheus.value("sum(headrace_jobs_ended_total)") == counted.total()
            and site.prometheus.value('sum(headrace_batches_total{model="small"})') == len(small)
            # The process that is scraped has it of the other one, a second later.
            and site.prometheus.value("sum(headrace_jobs_rejected_total)") == 1
            # The next process must load before the old one is recycled. A model that cannot be
            # loaded is tried again from time to time.
            and site.prometheus.value(RECYCLED) >= 1
            and site.prometheus.value(UNLOADED) >= 2
            and site.prometheus.value("headrace_generation_tokens_total") == 3 * len(generated)
        ),
        "Prometheus has seen it all",
        60,
    )
    return counted


def lose_a_worker(site: Site) -> str:
    """Kill a worker, as with its host, while it has a job; how that ends."""
    gate = site.folder / "gate"
    suspend(site.worker.pid)
    try:
        job_id = site.submit("gated", {"until": str(gate)})
        lease = keys.lease(keys.queue_name("gated"))
        wait_until(lambda: site.redis.zscore(lease, job_id), "the other worker has it", 60)
        site.doomed.kill()
    finally:
        site.worker.send(signal.SIGCONT)
    renewed = 'headrace_lease_renewals_total{model="gated"}'
    wait_until(lambda: site.prometheus.value(renewed) > 0, "its second lease is renewed", 60)
    gate.touch()
    return site.ends(job_id)[0]


def filled_in(expr: str) -> str:
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    return expr


def test_jobs_are_counted_once_whichever_part_ended_them(
    site: Site, ended: Counter[tuple[str, str]]
) -> None:
    found = site.prometheus.query("headrace_jobs_ended_total > 0")
    counted = {
        (one["metric"]["model"], one["metric"]["status"]): float(one["value"][1]) for one in found
    }
    assert counted == ended
    value = site.prometheus.value
    tricky = '{model="tricky"}'
    assert value(f"headrace_jobs_admitted_total{tricky}") == sum(
        count for (model, _), count in ended.items() if model == "tricky"
    )
    # Each transient once, and then its tries are used up; those that killed their process as well.
    assert value(f"headrace_jobs_retried_total{tricky}") == 2
    assert value(f"headrace_jobs_dead_total{tricky}") == 4
    assert value(f"headrace_dead_letters{tricky}") == 4
    assert value('headrace_model_restarts_total{model="tricky",reason="lost"}') == 4
    assert value('headrace_lease_losses_total{model="gated"}') == 1
    assert value('headrace_jobs_rejected_total{model="small",reason="queue-full"}') == 1
    assert value('headrace_job_seconds_count{model="small"}') == ended["small", "succeeded"]
    assert value('headrace_model_load_seconds_count{model="gated"}') == 2


def test_every_metric_has_series(site: Site, ended: Counter[tuple[str, str]]) -> None:
    del ended

    def there(family: Family) -> bool:
        name = f"{family.shown}_count" if family.kind in ("histogram", "summary") else family.shown
        found = site.prometheus.query(name)
        labels = set(family.labels) | {"__name__", "instance", "job"}
        if any(set(one["metric"]) != labels for one in found):
            raise ValueError(found)
        return bool(found)

    # No model has a shadow version here. A worker that stood still shows no host for a moment.
    for family in (one for one in FAMILIES if one is not SHADOW):
        wait_until(partial(there, family), f"{family.shown} has series")


def test_every_panel_returns_series(site: Site, ended: Counter[tuple[str, str]]) -> None:
    del ended
    for panel in PANELS:
        for target in panel["targets"]:
            query = partial(site.prometheus.query, filled_in(target["expr"]))
            wait_until(query, f"{panel['title']} has series: {target['expr']}")


def test_the_dashboard_can_be_drawn(site: Site, ended: Counter[tuple[str, str]]) -> None:
    del ended
    now = time.time()
    figure = draw(site.prometheus, now - 10, now)
    assert len(figure.axes) == len(PANELS)
    assert all(axes.lines or axes.tables or axes.texts for axes in figure.axes)
    figure.savefig(site.folder / "dashboard.png")
    # What is no number has no place in a picture.
    assert site.prometheus.value("headrace_host_disk_bytes") > 0


def test_every_rule_is_evaluated_over_series(site: Site, ended: Counter[tuple[str, str]]) -> None:
    del ended
    # Without its bound each is a number for each model, host or API.
    for rule in ALERTS:
        bare = re.sub(r" (==|>|<) [\d.]+$", "", rule["expr"], flags=re.MULTILINE)
        assert bare != rule["expr"]
        assert site.prometheus.query(bare), rule["alert"]
    (group,) = site.prometheus.get("rules")["groups"]
    assert {rule["name"] for rule in group["rules"]} == {rule["alert"] for rule in ALERTS}
    assert {(rule["health"], rule.get("lastError")) for rule in group["rules"]} == {("ok", None)}


def test_alerts_reach_their_receivers(site: Site, ended: Counter[tuple[str, str]]) -> None:
    del ended
    tickets = {"HeadraceDeadLettersArriving", "HeadraceLeaseLosses", "HeadraceModelProcessesLost"}
    pages = {"HeadraceNoReadyReplica", "HeadraceErrorRatio"}
    told = site.receiver
    wait_until(lambda: tickets <= told.names("/ticket"), "tickets are told", 90)
    wait_until(lambda: pages <= told.names("/page"), "pages are told", 90)
    assert not told.names("/ticket") & pages
    assert not told.names("/page") & tickets
    missing = [alert for _, alert in told.heard if "headrace_" in str(alert["annotations"])]
    assert not missing
    for _, alert in told.heard:
        anchor = alert["labels"]["alertname"].lower()
        assert alert["annotations"]["runbook_url"] == f"{RUNBOOKS}#{anchor}"
        assert "runbooks" not in alert["labels"]
    broken = {
        alert["labels"]["model"]
        for _, alert in told.heard
        if alert["labels"]["alertname"] == "HeadraceNoReadyReplica"
    }
    # A process of `tricky` that was lost may be away for longer than these rules' patience of 1 s.
    assert {"broken"} <= broken <= {"broken", "tricky"}
