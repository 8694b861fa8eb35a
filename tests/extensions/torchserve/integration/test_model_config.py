"""What a model-config.yaml asks for, on a real server and a real worker."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.extensions.torchserve.harness.site import GATED, TorchServeSite, torchserve_site
from tests.harness.servers.redis_servers import redis_server
from tests.harness.wait import wait_until

#: Waits for the file that a request names, if it names one.
WAITS = """
import pathlib
import time

from headrace import Handler


class Waits(Handler):
    def inference(self, items):
        for item in items:
            if not item:
                continue
            gate = pathlib.Path(item)
            gate.with_suffix(".begun").touch()
            while not gate.exists():
                time.sleep(0.02)
        return ["done" for _ in items]
"""
#: Loads a file that holds more than weights, as old archives do.
PICKLED = """
import torch

from headrace import Handler


class Pickled(Handler):
    def initialize(self, context):
        super().initialize(context)
        self.found = torch.load(context.model_dir / "x.pt", weights_only=context.weights_only)

    def inference(self, items):
        return [str(self.found) for _ in items]
"""


@pytest.fixture(scope="module")
def _site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServeSite]:
    allowed = {"pickled": {"1.0": {"weightsOnly": False}}}
    with redis_server("valkey9") as redis:
        folder = tmp_path_factory.mktemp("site")
        with torchserve_site(redis.url, folder, models=allowed) as site:
            yield site


@pytest.fixture
def site(_site: TorchServeSite) -> Iterator[TorchServeSite]:
    yield _site
    _site.clear()


def archive(site: TorchServeSite, name: str, config: str, code: str = WAITS) -> str:
    manifest: dict[str, Any] = {
        "model": {
            "modelName": name,
            "modelVersion": "1.0",
            "handler": "h.py",
            "configFile": "c.yaml",
        }
    }
    members = {"MAR-INF/MANIFEST.json": json.dumps(manifest), "h.py": code, "c.yaml": config}
    return site.members(f"{name}.mar", members)


def test_a_model_with_tickets_takes_a_request_only_if_a_process_is_idle(
    site: TorchServeSite, tmp_path: Path
) -> None:
    assert site.register(archive(site, "slow", "useJobTicket: true\n")).status_code == 200
    gate = tmp_path / "gate"
    with ThreadPoolExecutor(1) as pool:
        try:
            first = pool.submit(site.http.post, "/predictions/slow", json=str(gate))
            wait_until(gate.with_suffix(".begun").exists, "the first request runs")
            refused = site.http.post("/predictions/slow", json="")
            assert refused.status_code == 503
            assert refused.json()["type"] == "ServiceUnavailableException"
            assert "none is idle" in refused.json()["message"]
        finally:
            gate.touch()
        assert first.result().text == "done"
    assert site.http.post("/predictions/slow", json="").text == "done"


def test_two_requests_in_the_same_moment_do_not_share_a_ticket(
    site: TorchServeSite, tmp_path: Path
) -> None:
    assert site.register(archive(site, "slow", "useJobTicket: true\n")).status_code == 200
    gate = tmp_path / "gate"
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(site.http.post, "/predictions/slow", json=str(gate))
                   for _ in range(8)]  # fmt: skip
        try:
            wait_until(lambda: sum(one.done() for one in futures) == 7, "all but one are refused")
        finally:
            gate.touch()
        assert sorted(one.result().status_code for one in futures) == [200] + [503] * 7


def test_a_model_with_sequences_has_one_worker(site: TorchServeSite) -> None:
    name = archive(site, "stateful", "sequenceBatching: true\nminWorkers: 2\nmaxWorkers: 2\n")
    found = site.register(name, initial_workers=3)
    assert "registered with 1 initial workers" in found.json()["status"]
    shown = site.described("stateful")
    assert (shown["minWorkers"], shown["maxWorkers"], shown["stateful"]) == (1, 1, True)
    refused = site.http.put("/models/stateful", params={"min_worker": 2})
    assert (refused.status_code, refused.json()["type"]) == (400, "BadRequestException")
    assert "Give it one worker" in refused.json()["message"]
    scaled = site.http.put("/models/stateful?min_worker=0&synchronous=true")
    assert scaled.status_code == 200


def test_a_model_in_several_processes_is_refused(site: TorchServeSite) -> None:
    config = "parallelType: tp\ntorchrun:\n  nproc-per-node: 4\n"
    refused = site.register(archive(site, "large", config))
    assert (refused.status_code, refused.json()["type"]) == (400, "InvalidModelException")
    assert "runs in one process" in refused.json()["message"]
    assert site.names() == ["echo"]


def test_pickled_files_are_read_where_the_operator_allows_it(site: TorchServeSite) -> None:
    file = io.BytesIO()
    torch.save(Path("a/path"), file)
    for name in ("pickled", "other"):
        folder = site.store / name
        (folder / "MAR-INF").mkdir(parents=True)
        model = {"modelName": name, "modelVersion": "1.0", "handler": "h.py"}
        (folder / "MAR-INF/MANIFEST.json").write_text(json.dumps({"model": model}))
        (folder / "h.py").write_text(PICKLED)
        (folder / "x.pt").write_bytes(file.getvalue())
    assert site.register("pickled").status_code == 200
    assert site.http.post("/predictions/pickled", json=1).text == "a/path"
    refused = site.register("other")
    assert refused.status_code == 500
    assert "weights_only" in refused.json()["message"]


def test_numbers_of_zero_or_less_in_a_request_count(site: TorchServeSite) -> None:
    name = site.archive("digits")
    late = site.register(name, startup_timeout=0)
    assert (late.status_code, late.json()["type"]) == (500, "InternalServerException")
    assert "the load took longer than load_timeout_s" in late.json()["message"]
    assert site.names() == ["echo"]
    asked = {"batch_size": 0, "max_batch_delay": 0, "response_timeout": -5}
    assert site.register(name, **asked).status_code == 200
    described = site.described("digits")
    numbers = [described[key] for key in ("batchSize", "maxBatchDelay", "responseTimeout")]
    assert numbers == [0, 0, -5]
    refused = site.http.post("/predictions/digits", json="")
    assert (refused.status_code, refused.json()["type"]) == (500, "InternalServerException")
    assert "response_timeout of -5 s" in refused.json()["message"]


def test_a_description_has_the_workers_that_there_will_be(
    site: TorchServeSite, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    code = GATED.replace("GATE", repr(str(gate)))
    try:
        begun = site.register(site.archive("digits", code), initial_workers=2, synchronous="false")
        assert begun.status_code == 202
        assert [one["status"] for one in site.described("digits")["workers"]] == ["UNLOADING"] * 2
        site.http.put("/models/digits", params={"min_worker": 3})
        assert len(site.described("digits")["workers"]) == 3
    finally:
        gate.touch()
    scaled = site.http.put("/models/digits", params={"min_worker": 3, "synchronous": "true"})
    assert scaled.status_code in (200, 206)
    site.http.put("/models/digits", params={"min_worker": 0})
    assert site.described("digits")["workers"] == []


def test_a_model_with_sequences_gets_one_worker_and_the_answer_has_the_reason(
    site: TorchServeSite,
) -> None:
    config = "sequenceBatching: true\nminWorkers: 2\nmaxWorkers: 2\n"
    found = site.register(archive(site, "steps", config))
    assert found.status_code == 200
    assert "registered with 1 initial workers. The state of all its" in found.json()["status"]
    assert site.described("steps")["maxWorkers"] == 1
