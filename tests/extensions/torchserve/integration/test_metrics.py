"""TorchServe's metrics, from a handler and from requests to `/metrics` and to the log files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from extensions.torchserve.config.metrics_config import DEFAULT
from extensions.torchserve.config.settings import TorchServeConfig, write_config
from headrace.server.ports import free_port
from tests.extensions.torchserve.harness.archives import write_archive
from tests.harness.servers.api_server import ApiServer, api_server, catalog
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.servers.up import headrace, running_up
from tests.harness.servers.up import write_models as write_models_of_up
from tests.harness.wait import wait_until
from tests.harness.workers.worker import celery_worker, write_models

HANDLER = """
from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes


class Measuring:
    def initialize(self, context):
        self.sizes = context.metrics.add_metric_to_cache(
            "Sizes", "MB", ["ModelName"], MetricTypes.HISTOGRAM
        )
        context.metrics.add_counter("Loads", 1)

    def handle(self, data, context):
        kind = Dimension("Kind", 'a"b\\\\c, d')
        context.metrics.add_counter("Seen", len(data), dimensions=[kind])
        context.metrics.add_time("HandlerTime", 1.25)
        for size in (0.3, 30):
            self.sizes.add_or_update(size, [context.model_name])
        return ["fine" for _ in data]
"""
JOBS = "/api/v1/models/measured/jobs"
JOBS_OF_VERSION = "/api/v1/models/measured/versions/1.0/jobs"


def write(folder: Path, mode: Literal["log", "prometheus", "legacy"]) -> Path:
    path = folder / "torchserve.properties"
    config = TorchServeConfig(
        metrics_mode=mode, model_metrics_auto_detect=True, metric_time_interval=1,
        log_location=folder / "logs", metrics_location=folder / "metrics",
        disable_token_authorization=True,
    )  # fmt: skip
    write_config(path, config)
    return path


def archive(folder: Path) -> dict[str, str]:
    """A model that reports a metric of each type."""
    return {"source": str(write_archive(folder / "m", "handler.py", {"handler.py": HANDLER}))}


@contextmanager
def serving(
    redis: RedisServer, folder: Path, mode: Literal["log", "prometheus", "legacy"]
) -> Iterator[ApiServer]:
    """An API and a worker that serve a model that reports metrics."""
    config = write(folder, mode)
    models = write_models(folder, measured=archive(folder))
    environ = {"HEADRACE_TORCHSERVE": str(config)}
    with (
        celery_worker(redis.url, models, folder, environ=environ) as worker,
        api_server(redis.url, catalog(measured={}), torchserve=config) as api,
    ):
        worker.wait_ready("measured")
        yield api


def run(api: ApiServer, path: str, count: int) -> None:
    for _ in range(count):
        response = api.http.post(path, json=1, headers={"Prefer": "wait=60"})
        assert response.status_code == 200, response.text


def scrape(api: ApiServer, path: str = "/metrics") -> str:
    response = api.http.get(path)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return response.text


def only(pattern: str, text: str) -> str:
    """The only match of a pattern: TorchServe's own tests demand exactly one."""
    (found,) = re.findall(pattern, text)
    return str(found)


def test_a_handlers_metrics_and_those_of_the_server_are_on_the_page(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    with serving(redis_db, tmp_path, "prometheus") as api:
        run(api, JOBS, 3)
        run(api, JOBS_OF_VERSION, 1)
        assert api.http.get("/api/v1/jobs/unknown").status_code == 404
        # A worker reports soon after a batch, and what belongs to one job may come in two reports.
        reported = (
            r"Seen{.*} 4\.0\n",
            r'ts_inference_requests_total{.*="default".*} 3\.0\n',
            r'ts_inference_requests_total{.*="1\.0".*} 1\.0\n',
            r'ts_inference_latency_microseconds{.*="1\.0".*}',
        )

        def complete() -> bool:
            text = scrape(api)
            return all(re.search(pattern, text) for pattern in reported)

        wait_until(complete, "all of the jobs is reported")
        wait_until(lambda: "CPUUtilization{" in scrape(api), "the worker has measured its host")
        text = scrape(api)

        # The rest needs no worker, and another API process shows the same.
        config = tmp_path / "torchserve.properties"
        with api_server(redis_db.url, catalog(measured={}), torchserve=config) as other:
            again = scrape(other)
            filtered = scrape(other, "/metrics/deeper?name[]=Sizes_count&name%5B%5D=QueueTime")
            posted = other.http.post("/metrics")
    host = r'Hostname="[^"]+",'
    for spec in DEFAULT:
        only(rf"# TYPE {spec.name} {spec.type}\n", text)
        only(rf"# HELP {spec.name} Torchserve prometheus {spec.type} metric with unit: ", text)
    assert float(only(rf'Requests2XX{{Level="Host",{host}}} (\d+\.\d+)', text)) >= 4
    assert float(only(rf'Requests4XX{{Level="Host",{host}}} (\d+\.\d+)', text)) == 1
    only(rf'QueueTime{{Level="Host",{host}}} \d+\.\d+\n', text)
    only(rf'WorkerThreadTime{{Level="Host",{host}}} \d+\.\d+\n', text)
    only(
        rf'WorkerLoadTime{{WorkerName="W-9000-measured_1.0",Level="Host",{host}}} \d+\.\d+\n', text
    )
    only(rf'CPUUtilization{{Level="Host",{host}}} \d+\.\d+\n', text)
    for name in ("requests_total", "latency_microseconds"):
        pattern = rf'ts_inference_{name}{{model_name="measured",model_version="VERSION",hostname='
        only(pattern.replace("VERSION", "default"), text)
        only(pattern.replace("VERSION", "1.0"), text)
    requests = r'ts_inference_requests_total{[^}]*model_version="default",[^}]*} (\d+\.\d+)\n'
    assert only(requests, text) == "3.0"
    assert float(only(r'ts_queue_latency_[a-z]+{[^}]*"default",[^}]*} (\d+\.\d+)\n', text)) > 0

    model = rf'ModelName="measured",Level="Model",{host}'
    only(rf"PredictionTime{{{model}}} \d+\.\d+\n", text)
    assert only(rf"HandlerTime{{{model}}} (.+)\n", text) == "1.25"
    assert only(rf"Loads{{{model}}} (.+)\n", text) == "1.0"
    sizes = 'ModelName="measured",' + host
    assert only(r'Seen{Kind="a\\"b\\\\c, d",' + model + r"} (.+)\n", text) == "4.0"
    assert only(rf'Sizes_bucket{{{sizes}le="0.25",}} (.+)\n', text) == "0.0"
    assert only(rf'Sizes_bucket{{{sizes}le="0.5",}} (.+)\n', text) == "4.0"
    assert only(rf'Sizes_bucket{{{sizes}le="\+Inf",}} (.+)\n', text) == "8.0"
    assert only(rf"Sizes_sum{{{sizes}}} (.+)\n", text) == "121.2"
    for version in ("default", "1.0"):
        labels = rf'{{model_name="measured",model_version="{version}",}}'
        for name in ("ts_queue_depth", "ts_queue_oldest_age_seconds", "ts_requests_in_flight"):
            assert only(rf"{name}{labels} (.+)\n", text) == "0.0"

    def without_answers(page: str) -> set[str]:
        changing = ("Requests2XX", "CPU", "Memory", "Disk")
        return {line for line in page.splitlines() if not line.startswith(changing)}

    assert without_answers(again) == without_answers(text)
    samples = [line.partition("{")[0] for line in filtered.splitlines() if line[0] != "#"]
    assert samples == ["QueueTime", "Sizes_count"]
    assert filtered.count("# TYPE") == 2
    assert (posted.status_code, posted.text.count("# TYPE QueueTime ")) == (200, 1)


def test_what_waits_is_shown_per_version(redis_db: RedisServer, tmp_path: Path) -> None:
    config = write(tmp_path, "legacy")
    with api_server(redis_db.url, catalog(measured={}), torchserve=config) as api:
        for path in (JOBS, JOBS, JOBS_OF_VERSION):
            assert api.http.post(path, json=1).status_code == 202
        text = scrape(api)
        with redis_db.client() as client:
            client.flushdb()
    depth = r'ts_queue_depth{model_name="measured",model_version="VERSION",} (.+)\n'
    assert only(depth.replace("VERSION", "default"), text) == "2.0"
    assert only(depth.replace("VERSION", "1.0"), text) == "1.0"
    age = r'ts_queue_oldest_age_seconds{[^}]*"1.0",} (.+)\n'
    assert float(only(age, text)) > 0
    # The mode legacy shows three counters of TorchServe's set, and what Headrace adds.
    assert {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")} == {
        "ts_inference_requests_total", "ts_inference_latency_microseconds",
        "ts_queue_latency_microseconds", "ts_queue_depth", "ts_queue_oldest_age_seconds",
        "ts_requests_in_flight",
    }  # fmt: skip


def test_what_is_counted_in_an_outage_is_shown_after_it(tmp_path: Path) -> None:
    config = write(tmp_path, "prometheus")
    pattern = r'Requests4XX{Level="Host",Hostname="[^"]+",} (.+)\n'
    with (
        redis_server() as server,
        api_server(server.url, catalog(measured={}), torchserve=config) as api,
    ):
        api.http.get("/nowhere")
        assert float(only(pattern, scrape(api))) == 1
        server.stop(kill=False)
        api.http.get("/nowhere")
        refused = api.http.get("/metrics")
        assert refused.status_code == 503
        assert refused.json()["code"] == 503
        server.start()

        def counted() -> bool:
            response = api.http.get("/metrics")
            return response.status_code == 200 and float(only(pattern, response.text)) == 1

        wait_until(counted, "the request in the outage is counted; this Redis saves nothing")


def test_the_mode_log_has_an_empty_page(redis_db: RedisServer, tmp_path: Path) -> None:
    config = write(tmp_path, "log")
    with api_server(redis_db.url, catalog(measured={}), torchserve=config) as api:
        assert scrape(api) == ""
        assert scrape(api, "/metrics/deeper") == ""


def test_the_log_files_and_the_output_have_torchserves_lines(tmp_path: Path) -> None:
    config = write(tmp_path, "log")
    models = write_models_of_up(tmp_path, {"measured": archive(tmp_path)})
    with running_up(
        tmp_path, models=models, HEADRACE_TORCHSERVE=str(config), HEADRACE_LOG_FORMAT="torchserve"
    ) as up:
        up.result_of(up.submit("measured", 1))
        assert up.request("GET", "/ping?x=1")[0] in (200, 404)

        def reads(folder: str, name: str, pattern: str) -> None:
            file = tmp_path / folder / name
            found = re.compile(pattern)
            wait_until(lambda: found.search(file.read_text()), f"{name} has {pattern}")

        time = r"(?m)^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{3}"
        ids = r"requestID:[0-9a-f-]+,timestamp:\d+$"
        model = r"\|#ModelName:measured,Level:Model\|#hostname:[^,]+,"
        reads("metrics", "model_metrics.log", rf"{time} - PredictionTime.ms:\d+.\d+{model}{ids}")
        reads("metrics", "model_metrics.log", f"{time} - HandlerTime.ms:1.25{model}{ids}")
        for name in (
            "QueueTime.Milliseconds",
            "WorkerThreadTime.Milliseconds",
            "Requests2XX.Count",
        ):
            own = rf"{time} - {name}:\d+\.\d+\|#Level:Host\|#hostname:[^,]+,timestamp:\d+$"
            reads("metrics", "ts_metrics.log", own)
        reads("metrics", "ts_metrics.log", rf"{time} - CPUUtilization.Percent:\d+\.\d+\|")
        loaded = r"WorkerLoadTime.Milliseconds:\d+\.0\|#WorkerName:W-9000-measured_1.0,Level:Host\|"
        reads("metrics", "ts_metrics.log", f"{time} - {loaded}")
        reads(
            "logs", "access_log.log", rf'{time} - /127.0.0.1:\d+ "GET /ping\?x=1 HTTP/1.1" \d+ \d'
        )
        reads(
            "logs", "ts_log.log", rf"{time} \[INFO \] W-9000-measured_1.0 TS_METRICS - WorkerLoad"
        )
        lines = up.text().splitlines()
    assert [line for line in lines if not re.match(time, line)] == []
    # As TorchServe's benchmark suite reads the standard output.
    found = [line for line in lines if "HandlerTime" in line]
    assert [line.split("|", maxsplit=1)[0].split(":")[3] for line in found] == ["1.25"]
    assert not any(pipe in "\n".join(lines) for pipe in ("api |", "worker |"))


def test_a_wrong_metrics_yaml_stops_the_start(tmp_path: Path) -> None:
    file = tmp_path / "metrics.yaml"
    file.write_text("ts_metrics: 7")
    config = write(tmp_path, "log")
    with config.open("a") as properties:
        properties.write(f"\nmetrics_config={file}\n")
    models = write_models_of_up(tmp_path)
    ended = headrace(
        "up", "--no-flower", "--models", str(models), "--port", str(free_port()), cwd=tmp_path,
        HEADRACE_TORCHSERVE=str(config),
    )  # fmt: skip
    assert ended.returncode == 2
    assert "ts_metrics must be a mapping" in ended.stderr
