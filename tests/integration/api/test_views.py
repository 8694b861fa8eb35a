"""Models, queues, health, metrics, and what stands at no path."""

from __future__ import annotations

import time
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from api.http.problems import PROBLEMS
from api.openapi import document
from headrace import __version__
from headrace.errors import BY_CODE, ClientError
from headrace.observability.worker_report import ModelStats
from headrace.redis import keys
from tests.harness.fakes.worker import Answer, claim, publish_state, publish_stats, settle
from tests.harness.servers.api_server import ApiServer
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until

TRACEBACK = 'Traceback (most recent call last):\n  File "x.py"\nValueError: no weights'


def test_models_without_workers(api: ApiServer) -> None:
    models = api.http.get("/api/v1/models").json()["models"]
    assert [model["name"] for model in models] == ["echo", "tiny"]
    assert {model["state"] for model in models} == {"no-worker"}
    model = api.http.get("/api/v1/models/tiny").json()
    assert (model["version"], model["queue"]) == ("2.1", "headrace.tiny")
    assert (model["max_queue_depth"], model["workers"], model["error"]) == (100, [], None)
    assert "options" not in model
    assert "weights" not in model


def test_a_model_over_its_workers(api: ApiServer, redis_db: RedisServer) -> None:
    with redis_db.client() as client:
        publish_state(client, "w1", "echo", "failed", ready=0, error=TRACEBACK)
        model = api.http.get("/api/v1/models/echo").json()
        assert (model["state"], model["ready_replicas"]) == ("failed", 0)
        assert model["error"] == TRACEBACK
        publish_state(client, "w2", "echo", "ready")
        publish_state(client, "w3", "other", "ready")
        # A worker that is gone: its name is listed, its hash has run out.
        client.zadd(keys.WORKERS, {"w4": time.time()})
        # Another version's words are passed over.
        client.hset(keys.worker("w2"), "tiny", b"[]")
        model = api.http.get("/api/v1/models/echo").json()
        assert (model["state"], model["ready_replicas"]) == ("ready", 1)
        assert [worker["worker"] for worker in model["workers"]] == ["w1", "w2"]
        assert model["workers"][0]["error"] == TRACEBACK
        assert model["workers"][1]["node"] == "w2@test"
        assert model["workers"][1]["model_pids"] == [4711]
        assert api.http.get("/api/v1/models/tiny").json()["state"] == "no-worker"


def test_a_model_that_is_not_registered(api: ApiServer) -> None:
    response = api.http.get("/api/v1/models/ecko")
    assert (response.status_code, response.json()["type"]) == (404, "/problems/model-not-found")
    assert "did you mean echo?" in response.json()["detail"]


def test_the_demand_for_a_model(api: ApiServer, redis_db: RedisServer) -> None:
    def demand() -> Any:
        return api.http.get("/api/v1/models/echo/demand").json()

    def samples() -> dict[str, float]:
        families = text_string_to_metric_families(api.http.get("/metrics").text)
        return {
            sample.name: sample.value
            for family in families
            for sample in family.samples
            if "_demand_" in sample.name and sample.labels["model"] == "echo"
        }

    wait_until(lambda: not demand()["ready_replicas"], "workers of other tests are gone")
    assert demand() == {
        "model": "echo", "demand": 0, "queued": 0, "due": 0, "in_flight": 0, "seconds": 0.0,
        "oldest_age_s": None, "ready_replicas": 0, "paused": False,
    }  # fmt: skip
    assert samples() == {"headrace_demand_jobs": 0, "headrace_demand_seconds": 0}
    ids = [
        api.http.post(f"/api/v1/models/echo/jobs?{query}", json=1).json()["id"]
        for query in ("priority=0", "priority=9", "countdown=50", "countdown=0.1")
    ]
    wait_until(lambda: demand()["due"] == 1, "a delayed job is due, and no worker moves it")
    assert demand()["seconds"] is None, "no batch has run"
    with redis_db.client() as client:
        held = claim(client, "echo", 1)
        publish_state(client, "w1", "echo", "ready")
        stats = ModelStats()
        stats.observe_batch(4, [0.1] * 4, [(4, 0, 0)], [1.0] * 4, (0.5, 1.0, 0.5))
        publish_stats(client, echo=stats)
        wait_until(lambda: demand()["ready_replicas"] == 1, "the worker is seen")
        now = demand()
        assert 0 < now.pop("oldest_age_s") < 3600
        assert now == {
            "model": "echo", "demand": 3, "queued": 1, "due": 1, "in_flight": 1, "seconds": 1.5,
            "ready_replicas": 1, "paused": False,
        }  # fmt: skip
        assert samples() == {"headrace_demand_jobs": 3, "headrace_demand_seconds": 1.5}
        # The jobs of a worker that has died want another worker.
        client.zadd(keys.lease(keys.queue_name("echo")), {message.id: 1 for message, _ in held})
        assert demand()["demand"] == 3
        # More workers could not claim what waits in a paused queue.
        api.http.post("/api/v1/queues/headrace.echo/pause")
        paused = demand()
        assert (paused["paused"], paused["demand"], paused["queued"]) == (True, 1, 1)
        assert samples() == {"headrace_demand_jobs": 1, "headrace_demand_seconds": 0.5}
        api.http.post("/api/v1/queues/headrace.echo/resume")
        settle(client, "echo", held + claim(client, "echo"), [Answer()] * 2)
    for job_id in ids[2:]:
        api.http.delete(f"/api/v1/jobs/{job_id}")
    assert demand()["demand"] == 0
    assert api.http.get("/api/v1/models/ecko/demand").status_code == 404


def test_queues(api: ApiServer, redis_db: RedisServer) -> None:
    for query in ("priority=0", "priority=1", "priority=5", "priority=9", "countdown=50"):
        api.http.post(f"/api/v1/models/echo/jobs?{query}", json=1)
    with redis_db.client() as client:
        held = claim(client, "echo", 1)
        queues = api.http.get("/api/v1/queues").json()["queues"]
        echo, tiny = queues
        assert echo["oldest_age_s"] >= 0
        del echo["oldest_age_s"]
        assert echo == {
            "name": "headrace.echo", "model": "echo", "version": "1.0",
            "depth": {"0": 1, "3": 1, "6": 0, "9": 1}, "paused": False,
            "scheduled": 1, "in_flight": 1,
            "dead_letters": 0, "max_queue_depth": 10000, "versions": [],
            "tokens": None, "max_queued_tokens": None,
        }  # fmt: skip
        assert (tiny["name"], tiny["oldest_age_s"]) == ("headrace.tiny", None)
        rest = claim(client, "echo")
        settle(client, "echo", held + rest, [Answer()] * 4)
        client.delete("hr:delayed:headrace.echo", "hr:parked:headrace.echo")
        for name in client.scan_iter("hr:job:*"):
            client.delete(name)


def test_live_and_ready(api: ApiServer, redis_db: RedisServer) -> None:
    assert api.http.get("/live").json() == {"status": "live"}
    with redis_db.client() as client:
        publish_state(client, "w1", "echo", "failed", ready=0, error=TRACEBACK)
        response = api.http.get("/ready")
        assert response.status_code == 200
        assert response.json() == {
            "status": "ready",
            "broker": "ok",
            "models": {
                "echo": {"state": "failed", "ready_replicas": 0, "error": TRACEBACK},
                "tiny": {"state": "no-worker", "ready_replicas": 0},
            },
        }
        response = api.http.get("/ready?models=all")
        assert response.status_code == 503
        problem = response.json()
        assert problem["type"] == "/problems/models-not-ready"
        assert "echo, tiny" in problem["detail"]
        assert problem["models"]["echo"]["state"] == "failed"
        for model in ("echo", "tiny"):
            publish_state(client, "w1", model, "ready")
        assert api.http.get("/ready?models=all").status_code == 200
    for query in ("models=some", "model=all"):
        response = api.http.get(f"/ready?{query}")
        assert (response.status_code, response.json()["type"]) == (400, "/problems/invalid-request")


def test_metrics(api: ApiServer, redis_db: RedisServer) -> None:
    api.http.post("/api/v1/models/echo/jobs?priority=3", json=1)
    api.http.post("/api/v1/models/echo/jobs?priority=x", json=1)
    stats = ModelStats()
    waited, held, stages = [0.002, 0.02, 0.02, 700, 0.02], [(5, 0.01, 0.2)], (0.001, 0.003, 0.002)
    stats.observe_batch(5, waited, held, [1.0] * 5, stages, padding=3, starved_s=0.5)
    stats.left("deadline")
    with redis_db.client() as client:
        publish_state(client, "w1", "echo", "ready")
        publish_stats(client, echo=stats)
        for status, count in {"succeeded": 5, "failed": 1, "retried": 2}.items():
            client.hincrby(keys.stats("echo"), f"ended:{status}", count)
        text = api.http.get("/metrics").text
        samples = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        echo = ("model", "echo")
        assert samples["headrace_broker_up",] == 1
        third, first = (
            (echo, ("priority", priority), ("version", "1.0")) for priority in ("3", "0")
        )
        assert samples["headrace_queue_depth", *third] == 1
        assert samples["headrace_queue_depth", *first] == 0
        assert samples["headrace_queue_oldest_age_seconds", *third] > 0
        assert samples["headrace_queue_oldest_age_seconds", *first] == 0
        assert samples["headrace_jobs_in_flight", echo] == 0
        assert samples["headrace_jobs_admitted_total", echo] >= 1
        refused = ("headrace_jobs_rejected_total", echo, ("reason", "invalid-request"))
        assert samples[refused] >= 1
        assert samples["headrace_jobs_ended_total", echo, ("status", "succeeded")] == 5
        assert samples["headrace_jobs_ended_total", echo, ("status", "failed")] == 1
        assert ("headrace_jobs_ended_total", echo, ("status", "retried")) not in samples
        assert samples["headrace_jobs_retried_total", echo] == 2
        assert samples["headrace_batches_total", echo, ("reason", "deadline")] == 1
        assert samples["headrace_batch_padding_total", echo] == 3
        assert samples["headrace_device_starved_seconds_total", echo] == 0.5
        assert samples["headrace_batch_size_bucket", ("le", "4"), echo] == 0
        assert samples["headrace_batch_size_bucket", ("le", "8"), echo] == 1
        assert samples["headrace_batch_size_sum", echo] == 5
        assert samples["headrace_queue_seconds_bucket", ("le", "0.025"), echo] == 4
        assert samples["headrace_queue_seconds_bucket", ("le", "600"), echo] == 4
        assert samples["headrace_queue_seconds_bucket", ("le", "+Inf"), echo] == 5
        assert samples["headrace_queue_seconds_count", echo] == 5
        for stage, took_s in zip(("preprocess", "inference", "postprocess"), stages, strict=True):
            assert samples[f"headrace_{stage}_seconds_sum", echo] == pytest.approx(took_s)
        assert samples["headrace_hold_seconds_bucket", ("le", "0.01"), echo] == 5
        assert samples["headrace_device_wait_seconds_sum", echo] == 1.0
        assert samples["headrace_model_ready_replicas", echo] == 1
        claimed = claim(client, "echo")
        settle(client, "echo", claimed, [Answer()])


def test_what_is_at_no_path(api: ApiServer) -> None:
    for path in (
        "/nope",
        "/api/v1",
        "/api/v1/jobs/a/b/c",
        "/api/v1/models/echo/",
        "/api/v2/jobs",
    ):
        response = api.http.get(path)
        assert (response.status_code, response.json()["type"]) == (404, "/problems/not-found")
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["instance"] == path
    for path in ("/predictions/echo", "/explanations/echo/1.0", "/invocations"):
        remedy = api.http.post(path, content=b"1").json()["remedy"]
        assert "POST /api/v1/models/{model}/jobs" in remedy
    assert api.http.get("/ping").json()["remedy"].startswith("Use GET /ready, ")
    # OpenAI's SDK asks for these too, if its address has no /v1.
    for path in ("/models", "/models/echo"):
        message = api.http.get(path).json()["error"]["message"]
        assert "In place of TorchServe's /models use GET /api/v1/models" in message
    for path in ("/live", "/metrics"):
        response = api.http.post(path)
        assert (response.status_code, response.headers["allow"]) == (405, "GET, HEAD")
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["type"] == "/problems/method-not-allowed"
        assert response.json()["detail"] == f"POST is not allowed on {path}"
    # Several routes on one path: all of their methods, whichever stands first.
    response = api.http.patch("/api/v1/models/echo/dead-letters/purge")
    assert (response.status_code, response.headers["allow"]) == (405, "GET, HEAD, DELETE, POST")


@pytest.mark.parametrize(
    "path", ["/live", "/ready", "/metrics", "/api/v1/models", "/api/v1/models/echo", "/nope"]
)
def test_what_can_be_got_has_a_head(api: ApiServer, path: str) -> None:
    got = api.http.get(path)
    head = api.http.head(path)
    assert (head.status_code, head.content) == (got.status_code, b"")
    assert head.headers["content-type"] == got.headers["content-type"]


def test_every_problem_type_is_explained_at_its_path(api: ApiServer) -> None:
    told = {code for code, cls in BY_CODE.items() if not issubclass(cls, ClientError)}
    assert told - {"error", "config-error"} == PROBLEMS.keys()
    for code, cls in PROBLEMS.items():
        explained = api.http.get(f"/problems/{code}").json()
        assert explained["type"] == f"/problems/{code}"
        assert explained["status"] == cls.status
        assert explained["cause"]
    assert api.http.get("/problems/nope").status_code == 404


def test_an_unexpected_error_outside_the_hot_routes(
    api: ApiServer, redis_db: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_queues: object) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(api.services.queue, "depths", broken)
    response = api.http.get("/api/v1/queues")
    assert response.status_code == 500
    assert response.json()["type"] == "/problems/internal-error"
    assert response.json()["id"]
    assert "secret" not in response.text
    monkeypatch.undo()
    assert api.http.get("/api/v1/queues").status_code == 200


def test_the_description_is_served_and_shown(api: ApiServer) -> None:
    assert api.http.get("/openapi.json").json() == document(__version__)
    page = api.http.get("/docs")
    assert (page.status_code, "openapi.json" in page.text) == (200, True)
    # What somebody's browser asks for who was told the address alone.
    root = api.http.get("/")
    assert (root.status_code, root.headers["location"]) == (307, "docs")


def test_the_documentation_lists_every_route_without_the_internet(api: ApiServer) -> None:
    page = api.http.get("/docs").text
    for path in api.http.get("/openapi.json").json()["paths"]:
        assert f"<code>{path}</code>" in page
