"""`docker compose up` without an .env: the default models, in the default images."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator

import pytest
import yaml

from tests.harness.deploy import engine
from tests.harness.deploy.caller import JOB_TIMEOUT_S
from tests.harness.deploy.engine import Project
from tests.harness.servers.up import ROOT
from tests.harness.wait import wait_until

MODELS = yaml.safe_load((ROOT / "configs/models.yaml").read_text())["models"]


@pytest.fixture(scope="module")
def plain(images: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    folder = tmp_path_factory.mktemp("default") / "project"
    with engine.project(folder, tag=images) as made:
        made.up()
        yield made


@pytest.mark.parametrize("model", MODELS)
def test_the_worker_runs_every_model_of_the_default_file(plain: Project, model: str) -> None:
    path = next((ROOT / "examples/digits").glob("7_*.png"))
    image = model == "image_classifier"
    body, kind = (path.read_bytes(), "image/png") if image else engine.example(MODELS[model])
    result = plain.caller.result(plain.caller.submit(model, body, kind))
    shown = MODELS[model].get("outputs", {}).get("example", 1)
    assert type(result) is type(shown)
    if isinstance(shown, dict):
        assert shown.keys() <= result.keys()


def test_the_api_needs_no_key_on_loopback_and_redis_has_no_password(plain: Project) -> None:
    status, found = plain.caller.request("GET", "/api/v1/models")
    assert status == 200
    assert set(MODELS) == {one["name"] for one in found["models"]}
    assert "PONG" in plain.execute("redis", "valkey-cli", "ping").stdout
    ports = plain.inspect("redis")["NetworkSettings"]["Ports"] or {}
    assert not any(ports.values()), "Redis is not published"


def test_a_batch_runs_by_the_runner(plain: Project) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/api/v1/models/echo/jobs", "body": {"x": 1}}
    boundary = "b" * 20
    parts = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
        f"{json.dumps(line)}\n\r\n--{boundary}--\r\n"
    )
    kind = f"multipart/form-data; boundary={boundary}"
    status, file = plain.caller.request("POST", "/v1/files", parts.encode(), kind)
    assert status == 200, file
    wanted = {
        "input_file_id": file["id"], "endpoint": line["url"], "completion_window": "24h",
    }  # fmt: skip
    status, batch = plain.caller.request("POST", "/v1/batches", json.dumps(wanted).encode())
    assert status == 200, batch

    def completed() -> bool:
        found = plain.caller.request("GET", f"/v1/batches/{batch['id']}")[1]
        assert found["status"] not in ("failed", "expired"), found
        return bool(found["status"] == "completed")

    wait_until(completed, "the batch is completed", JOB_TIMEOUT_S)


def test_flower_lists_the_worker(plain: Project) -> None:
    url = f"http://127.0.0.1:{plain.variables['FLOWER_PORT']}/workers"

    def listed() -> bool:
        with urllib.request.urlopen(url, timeout=30) as response:
            return "cpu0@" in response.read().decode()

    wait_until(listed, "Flower lists the worker", engine.HEALTHY_TIMEOUT_S)
