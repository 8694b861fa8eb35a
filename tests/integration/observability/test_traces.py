"""One trace, from the client through the API and the worker to the handler."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from headrace.client import Client
from tests.harness.clients.celery_client import GET_TIMEOUT_S, stock_client
from tests.harness.clients.commands import headrace_here
from tests.harness.monitoring.otlp import Collector, Span, collector
from tests.harness.servers.redis_servers import redis_server
from tests.harness.servers.up import (
    RunningUp,
    clean_environment,
    running_up,
    write_models,
)
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
PARENT = f"00-{TRACE_ID}-{PARENT_ID}-01"
SUBMIT = "submit headrace.plain"
#: The first words of the names of a job's spans, but for those of its request and its handler.
SPANS = {
    "submit", "wait", "process", "batch", "preprocess", "inference", "postprocess", "settle",
}  # fmt: skip


@dataclass
class Site:
    """A deployment that sends its spans to a collector, or nowhere."""

    up: RunningUp
    spans: Collector
    redis_url: str = ""
    last: dict[str, Any] = field(default_factory=dict)

    def submit(self, model: str, value: Any = 1, **headers: str) -> str:
        status, job = self.up.request(
            "POST", f"/api/v1/models/{model}/jobs?wait=60", json.dumps(value).encode(),
            **{"content-type": "application/json", **headers},
        )  # fmt: skip
        assert status == 200, job
        self.last = job
        return str(job["id"])

    def of_job(self, job_id: str) -> dict[str, Span]:
        """The spans of the trace in which a job was submitted, by name, once all are there."""
        found: dict[str, Span] = {}

        def complete() -> bool:
            jobs = [
                s for s in self.spans.spans if s.attributes.get("messaging.message.id") == job_id
            ]
            traces = {span.trace_id for span in jobs}
            found.update({s.name: s for s in list(self.spans.spans) if s.trace_id in traces})
            # Each process sends its own, and what a pool has prepared comes from one more.
            kinds = {name.partition(" ")[0] for name in found}
            return kinds >= SPANS and any(s.kind == 2 for s in found.values())

        wait_until(complete, "the spans have come", 60)
        return found


def models(folder: Any) -> Any:
    handler = HANDLERS / "tracing.py"
    return write_models(
        folder,
        {
            "plain": {"handler": f"{handler}:Tracing", "max_batch_size": 8, "max_retries": 0},
            "threads": {"handler": f"{handler}:InThreads", "max_batch_size": 8},
            "pooled": {"handler": f"{handler}:InThreads", "preprocess_threads": 2},
            "beside": {"handler": f"{handler}:InThreads", "preprocess_processes": 1},
        },
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("traces")
    with (
        collector() as spans,
        redis_server() as server,
        running_up(
            folder,
            models=models(folder),
            REDIS_URL=server.url,
            OTEL_EXPORTER_OTLP_ENDPOINT=spans.url,
            OTEL_BSP_SCHEDULE_DELAY="100",
            HEADRACE_LOG_FORMAT="json",
            HEADRACE_ACCESS_LOG="true",
        ) as up,
    ):
        yield Site(up, spans, server.url)


@pytest.fixture(scope="module")
def dark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("dark")
    with running_up(
        folder, models=models(folder), HEADRACE_ACCESS_LOG="true",
        HEADRACE_LOG_FORMAT="json", HEADRACE_LOG_LEVEL="debug",
    ) as up:  # fmt: skip
        yield Site(up, Collector(0))


def test_one_trace_with_the_right_parents(site: Site) -> None:
    job_id = site.submit("plain", traceparent=PARENT, tracestate="congo=t61")
    spans = site.of_job(job_id)
    server = spans["POST /api/v1/models/{model}/jobs"]
    assert {span.trace_id for span in spans.values()} == {TRACE_ID}
    parents = {
        server.name: PARENT_ID,
        SUBMIT: server.span_id,
        "wait headrace.plain": spans[SUBMIT].span_id,
        "process headrace.plain": spans[SUBMIT].span_id,
        "batch plain": spans["process headrace.plain"].span_id,
        "preprocess": spans["batch plain"].span_id,
        "inference": spans["batch plain"].span_id,
        "own": spans["inference"].span_id,
        "postprocess": spans["batch plain"].span_id,
        "settle": spans["process headrace.plain"].span_id,
    }
    assert {name: span.parent_id for name, span in spans.items()} == parents
    services = {span.service for span in spans.values()}
    assert services == {"headrace-api", "headrace-worker", "headrace-model"}
    assert [spans[name].kind for name in (server.name, SUBMIT, "process headrace.plain")] == [
        2,
        4,
        5,
    ]
    assert spans["batch plain"].links == [spans["process headrace.plain"].span_id]
    assert server.attributes["http.response.status_code"] == 200
    assert server.attributes["http.route"] == "/api/v1/models/{model}/jobs"
    assert spans[SUBMIT].attributes["messaging.destination.name"] == "headrace.plain"
    waited = spans["wait headrace.plain"]
    assert waited.end_ns <= spans["process headrace.plain"].end_ns
    assert {name for name in waited.attributes if name.endswith("_ms")} == {
        "headrace.queued_ms", "headrace.hold_ms", "headrace.device_wait_ms",
    }  # fmt: skip
    assert not any(span.failed for span in spans.values())


def test_without_a_trace_one_begins(site: Site) -> None:
    spans = site.of_job(site.submit("plain", traceparent="00-nonsense"))
    assert spans["POST /api/v1/models/{model}/jobs"].parent_id == ""
    assert spans["preprocess"].parent_id == spans["batch plain"].span_id


@pytest.mark.parametrize("model", ["threads", "pooled", "beside"])
def test_verbs_elsewhere_are_in_the_trace_too(site: Site, model: str) -> None:
    spans = site.of_job(site.submit(model))
    for verb in ("preprocess", "inference", "postprocess"):
        assert spans[verb].parent_id == spans[f"batch {model}"].span_id
    assert site.last["result"]["traceparent"][3:35] == spans["settle"].trace_id


def test_a_failed_job_has_its_code_and_nothing_of_its_input(site: Site) -> None:
    _, job = site.up.request(
        "POST", "/api/v1/models/plain/jobs?wait=60", b'"raise"',
        **{"content-type": "application/json"},
    )  # fmt: skip
    spans = wait_until(
        lambda: site.spans.named("process headrace.plain", messaging_message_id=job["id"]),
        "its span has come",
    )
    assert (spans[0].failed, spans[0].attributes["error.type"]) == (True, "handler-error")
    verbs = wait_until(
        lambda: site.spans.named("inference", error_type="ValueError"), "so has this"
    )
    assert verbs[0].failed
    assert not any("MARKER" in span.text for span in site.spans.spans)


def test_a_batch_links_to_all_its_jobs(site: Site) -> None:
    lines = b"\n".join(json.dumps({"model": "plain", "input": n}).encode() for n in range(6))
    request = {
        "content-type": "application/x-ndjson",
        "traceparent": f"00-{'c' * 32}-{'d' * 16}-01",
    }
    with pytest.raises(json.JSONDecodeError):  # its answer has a line a job
        site.up.request("POST", "/api/v1/jobs/bulk", lines + b"\n", **request)

    def jobs() -> list[Span]:
        return [s for s in site.spans.named("process headrace.plain") if s.trace_id == "c" * 32]

    wait_until(lambda: len(jobs()) == 6, "all have run", 60)
    wait_until(
        lambda: (
            {id_ for s in site.spans.named("batch plain") for id_ in s.links}
            >= {job.span_id for job in jobs()}
        ),
        "the batches have come",
    )

    def submits() -> list[Span]:
        return [s for s in site.spans.named("submit") if s.trace_id == "c" * 32]

    [sent] = wait_until(submits, "the submit's has come")
    assert {job.parent_id for job in jobs()} == {sent.span_id}


def test_stock_celery_clients_and_the_sdk_pass_their_trace_on(site: Site) -> None:
    with stock_client(site.redis_url) as celery:
        sent = celery.send_task(
            "headrace.predict", kwargs={"model": "plain", "input": 1}, queue="headrace.plain",
            headers={"traceparent": f"00-{'e' * 32}-{'f' * 16}-01"},
        )  # fmt: skip
        assert sent.get(timeout=GET_TIMEOUT_S)["traceparent"] == f"00-{'e' * 32}-{'f' * 16}-01"
    provider = TracerProvider(shutdown_on_exit=False)
    with (
        Client(f"http://127.0.0.1:{site.up.port}") as client,
        provider.get_tracer("test").start_as_current_span("here") as here,
    ):
        job = client.submit("plain", 1)
        mapped = list(client.map("plain", [1, 2]))
    place = here.get_span_context()
    spans = site.of_job(job.id)
    assert spans["POST /api/v1/jobs"].parent_id == f"{place.span_id:016x}"
    assert all(f"{place.trace_id:032x}" in one.value["traceparent"] for one in mapped)


def test_a_job_has_the_id_of_its_trace(site: Site) -> None:
    job_id = site.submit("plain", traceparent=PARENT)
    assert site.last["trace_id"] == TRACE_ID
    assert site.up.job(job_id)["trace_id"] == TRACE_ID
    # Without a trace of the client the API begins one.
    job_id = site.submit("plain")
    shown = site.up.job(job_id)["trace_id"]
    assert {span.trace_id for span in site.of_job(job_id).values()} == {shown}
    with stock_client(site.redis_url) as celery:
        sent = celery.send_task(
            "headrace.predict", kwargs={"model": "plain", "input": 1}, queue="headrace.plain",
            headers={"traceparent": PARENT},
        )  # fmt: skip
        sent.get(timeout=GET_TIMEOUT_S)
    assert site.up.job(sent.id)["trace_id"] == TRACE_ID
    url = f"http://127.0.0.1:{site.up.port}"
    with Client(url) as client:
        assert client.status(sent.id).trace_id == TRACE_ID
    shown = headrace_here("jobs", sent.id, "--url", url, cwd=site.up.folder).stdout
    assert TRACE_ID in shown


@pytest.mark.slow
def test_without_an_endpoint_too_a_job_has_the_id_of_its_trace(dark: Site) -> None:
    traced, plain = dark.submit("plain", traceparent=PARENT), dark.submit("plain")
    assert dark.up.job(traced)["trace_id"] == TRACE_ID
    assert dark.up.job(plain)["trace_id"] is None
    url = f"http://127.0.0.1:{dark.up.port}"
    lines = headrace_here(
        "jobs", traced, plain, "--url", url, cwd=dark.up.folder
    ).stdout.splitlines()
    assert "TRACE" in lines[0]
    assert [TRACE_ID in line for line in lines[1:]] == [True, False]
    alone = headrace_here("jobs", plain, "--url", url, cwd=dark.up.folder).stdout
    assert "TRACE" not in alone


def test_lines_of_the_log_name_the_trace(site: Site) -> None:
    job_id = site.submit("plain", traceparent=PARENT)

    def logged() -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in site.up.text().splitlines()]
        return [line for line in lines if line.get("job") == job_id and line["part"] == "api"]

    assert [line["trace_id"] for line in wait_until(logged, "it is logged")] == [TRACE_ID]


@pytest.mark.slow
def test_without_an_endpoint_a_trace_passes_and_nothing_is_loaded(dark: Site) -> None:
    for model in ("plain", "threads", "pooled", "beside"):
        dark.submit(model, traceparent=PARENT, tracestate="a=b")
        assert dark.last["result"] == {"traceparent": PARENT, "seen": [PARENT], "known": False}
        dark.submit(model, traceparent="00-nonsense")
        assert dark.last["result"] == {"traceparent": "", "seen": [], "known": False}


@pytest.mark.slow
def test_without_an_endpoint_too_lines_of_the_log_name_the_trace(dark: Site) -> None:
    job_id = dark.submit("plain", traceparent=PARENT)
    events = {"request", "batch dispatched", "batch ended"}

    def logged() -> dict[str, Any] | None:
        lines = [json.loads(line) for line in dark.up.text().splitlines() if job_id in line]
        found = {line["event"]: line.get("trace_id") for line in lines if line["event"] in events}
        return found if found.keys() == events else None

    assert wait_until(logged, "it is logged") == dict.fromkeys(events, TRACE_ID)


def test_without_the_extra_there_is_one_warning() -> None:
    program = (
        "import sys; sys.modules['opentelemetry.sdk'] = None\n"
        "import logging; logging.basicConfig()\n"
        "from headrace.observability.tracing import tracing\n"
        "print(tracing('api', {'OTEL_EXPORTER_OTLP_ENDPOINT': 'http://127.0.0.1:1'}))\n"
        "print(tracing('api', {}), tracing('api', {'OTEL_EXPORTER_OTLP_ENDPOINT': 'http://x',"
        " 'OTEL_SDK_DISABLED': 'true'}))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        env=clean_environment(),
    )  # fmt: skip
    assert ended.stdout.split() == ["None"] * 3
    assert ended.stderr.count("install headrace[otel]") == 1
