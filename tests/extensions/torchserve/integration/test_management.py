"""TorchServe's management API on a real server and a real worker: each code and each type."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from extensions.torchserve.api.management import changes
from headrace.server.ports import free_port
from tests.extensions.torchserve.compat.archives import ARCHIVES, build
from tests.extensions.torchserve.harness.site import ANSWERS, GATED, TorchServeSite, torchserve_site
from tests.harness.archives import write_tar
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.wait import wait_until

KEYS = [
    "modelName", "modelVersion", "modelUrl", "runtime", "minWorkers", "maxWorkers", "batchSize",
    "maxBatchDelay", "responseTimeout", "startupTimeout", "maxRetryTimeoutInSec",
    "clientTimeoutInMills", "parallelType", "parallelLevel", "deviceType", "continuousBatching",
    "useJobTicket", "useVenv", "stateful", "sequenceMaxIdleMSec", "sequenceTimeoutMSec",
    "maxNumSequence", "maxSequenceJobQueueSize", "loadedAtStartup", "workers", "jobQueueStatus",
]  # fmt: skip
WORKER_KEYS = ["id", "startTime", "status", "memoryUsage", "pid", "gpu", "gpuUsage"]
BROKEN = f"{ANSWERS}\nraise RuntimeError('no such luck')\n"
#: Writes that it has begun, and answers once the gate is there.
SLOW = """
import pathlib
import time

from headrace import Handler


class Slow(Handler):
    def inference(self, items):
        gate = pathlib.Path(GATE)
        gate.with_suffix(".begun").touch()
        while not gate.exists():
            time.sleep(0.02)
        return ["done" for _ in items]
"""
HUNGRY = ANSWERS.replace("self.version = context.version", "raise MemoryError('too large')")


@pytest.fixture(scope="module")
def _site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServeSite]:
    with redis_server("valkey9") as redis:
        folder = tmp_path_factory.mktemp("site")
        with torchserve_site(redis.url, folder, default_response_timeout=77) as site:
            yield site


@pytest.fixture
def site(_site: TorchServeSite) -> Iterator[TorchServeSite]:
    yield _site
    _site.clear()


def refusal(found: Any) -> tuple[int, str]:
    """The code and the type of an error, whose body has the shape that clients read."""
    body = found.json()
    assert list(body) == ["code", "type", "message"]
    assert body["code"] == found.status_code
    assert found.text == json.dumps(body, indent=2, ensure_ascii=False) + "\n"
    return found.status_code, body["type"]


def test_a_model_is_registered_without_workers_and_scaled(site: TorchServeSite) -> None:
    found = site.register(site.archive("digits"), initial_workers=None)
    assert found.status_code == 200
    assert "registered with 0 initial workers" in found.json()["status"]
    shown = site.described("digits")
    assert list(shown) == KEYS
    assert (shown["minWorkers"], shown["maxWorkers"], shown["workers"]) == (0, 0, [])
    assert (shown["modelUrl"], shown["modelVersion"]) == ("digits.mar", "1.0")
    assert (shown["batchSize"], shown["maxBatchDelay"], shown["responseTimeout"]) == (1, 100, 77)

    later = site.http.put("/models/digits", params={"min_worker": 1})
    assert (later.status_code, later.json()["status"]) == (202, "Processing worker updates...")
    now = site.http.put("/models/digits", params={"min_worker": 2, "synchronous": "true"})
    assert now.status_code == 200, now.text
    shown = site.described("digits")
    assert [worker["status"] for worker in shown["workers"]] == ["READY", "READY"]
    assert list(shown["workers"][0])[: len(WORKER_KEYS)] == WORKER_KEYS
    assert len({worker["id"] for worker in shown["workers"]}) == 2
    ids = [worker["id"] for worker in shown["workers"]]
    assert [worker["id"] for worker in site.described("digits")["workers"]] == ids
    assert list(shown["jobQueueStatus"])[:2] == ["remainingCapacity", "pendingRequests"]
    assert shown["jobQueueStatus"]["remainingCapacity"] == 100

    gone = site.http.put("/models/digits/1.0?min_worker=0&synchronous=true")
    assert gone.status_code == 200, gone.text
    assert "version: 1.0" in gone.json()["status"]
    wait_until(lambda: not site.described("digits")["workers"], "no worker is left")
    removed = site.http.delete("/models/digits")
    assert (removed.status_code, list(removed.json())) == (200, ["status"])
    assert site.names() == ["echo"]


def test_a_model_with_workers_answers_when_it_is_registered(site: TorchServeSite) -> None:
    site.archive("digits")
    body = "{'url': 'digits.mar', 'initial_workers': '1', 'batch_size': 4, 'nonsense': [1]}"
    found = site.http.post("/models", content=body, headers={"content-type": "application/json"})
    assert found.status_code == 200, found.text
    assert "registered with 1 initial workers" in found.json()["status"]
    shown = site.described("digits")
    assert (shown["batchSize"], shown["minWorkers"], shown["maxWorkers"]) == (4, 1, 1)
    assert shown["workers"][0]["memoryUsage"] >= 0
    job = site.http.post("/api/v1/models/digits/jobs?wait=60", json={})
    assert job.json()["result"] == "1.0"


def test_the_first_version_is_the_default_one_until_another_is_chosen(site: TorchServeSite) -> None:
    site.register(site.archive("digits", file="one.mar"), initial_workers=0)
    site.register(site.archive("digits", version="2.0", file="two.mar"), initial_workers=0)
    assert site.described("digits")["modelVersion"] == "1.0"
    every = site.http.get("/models/digits/all").json()
    assert [one["modelVersion"] for one in every] == ["1.0", "2.0"]
    assert site.described("digits", "/2.0")["modelUrl"] == "two.mar"

    default = (403, "InvalidModelVersionException")
    assert refusal(site.http.delete("/models/digits")) == default
    assert refusal(site.http.delete("/models/digits/1.0")) == default
    missing = (404, "ModelVersionNotFoundException")
    for method, path in (
        ("GET", "/models/digits/9"),
        ("PUT", "/models/digits/9?min_worker=1"),
        ("PUT", "/models/digits/9/set-default"),
        ("DELETE", "/models/digits/9"),
    ):
        assert refusal(site.http.request(method, path)) == missing
    assert site.http.put("/models/digits/2.0/set-default").status_code == 200
    assert site.described("digits")["modelVersion"] == "2.0"
    listed = {"modelName": "digits", "modelUrl": "two.mar"}
    assert listed in site.http.get("/models").json()["models"]
    assert site.http.delete("/models/digits/1.0").status_code == 200
    assert site.http.delete("/models/digits").status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/models/none"), ("GET", "/models/none/all"), ("PUT", "/models/none"),
        ("DELETE", "/models/none"), ("PUT", "/models/none/1.0/set-default"),
    ],
)  # fmt: skip
def test_an_unknown_model_is_not_found(site: TorchServeSite, method: str, path: str) -> None:
    assert refusal(site.http.request(method, path)) == (404, "ModelNotFoundException")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PATCH", "/models"), ("PUT", "/models"), ("DELETE", "/models"), ("POST", "/models/echo"),
        ("PATCH", "/models/echo/1.0"), ("GET", "/models/echo/1.0/set-default"),
    ],
)  # fmt: skip
def test_a_wrong_method_is_refused(site: TorchServeSite, method: str, path: str) -> None:
    assert refusal(site.http.request(method, path)) == (405, "MethodNotAllowedException")


@pytest.mark.parametrize("path", ["/models/echo/1.0/bogus", "/models/echo/1.0/set-default/x"])
def test_an_unknown_path_is_not_found(site: TorchServeSite, path: str) -> None:
    assert refusal(site.http.put(path)) == (404, "ResourceNotFoundException")


@pytest.mark.parametrize(
    ("query", "code", "type_"),
    [
        ({}, 400, "BadRequestException"),
        ({"url": ""}, 404, "ModelNotFoundException"),
        ({"url": "../digits.mar"}, 404, "ModelNotFoundException"),
        ({"url": ".."}, 404, "ModelNotFoundException"),
        ({"url": "../models/digits.mar"}, 404, "ModelNotFoundException"),
        ({"url": "none.mar"}, 404, "ModelNotFoundException"),
        ({"url": "/none/none.mar"}, 404, "ModelNotFoundException"),
        ({"url": "ftp://host/none.mar"}, 404, "ModelNotFoundException"),
        ({"url": "\0"}, 404, "ModelNotFoundException"),
        ({"url": "none.mar", "runtime": "java"}, 400, "BadRequestException"),
        ({"url": "none.mar", "runtime": "LSP"}, 400, "BadRequestException"),
        ({"url": "file:///none/none.mar"}, 400, "DownloadArchiveException"),
        ({"url": "http://127.0.0.1:1/none.mar"}, 400, "DownloadArchiveException"),
        ({"url": "http://127.0.0.1:1/"}, 400, "DownloadArchiveException"),
        ({"url": "http://[/none.mar"}, 400, "DownloadArchiveException"),
    ],
)
def test_what_cannot_be_found_is_not_registered(
    site: TorchServeSite, query: dict[str, str], code: int, type_: str
) -> None:
    assert refusal(site.http.post("/models", params=query)) == (code, type_)
    assert site.names() == ["echo"]
    assert not list(site.store.iterdir())


def test_broken_archives_are_not_registered(site: TorchServeSite) -> None:
    whole = (site.store / site.archive("digits")).read_bytes()
    (site.store / "cut.mar").write_bytes(whole[: len(whole) // 2])
    (site.store / "bad.tar.gz").write_bytes(b"no archive")
    (site.store / "notes.txt").write_bytes(b"no archive")
    write_tar(site.store / "slip.tar.gz", [("../evil", b"evil")])
    site.members("slip.mar", {"../evil": "evil"})
    for name in ("cut.mar", "bad.tar.gz", "notes.txt", "slip.tar.gz", "slip.mar"):
        found = site.register(name, model_name="broken")
        assert refusal(found) == (500, "InternalServerException"), name
    unnamed = {"MAR-INF/MANIFEST.json": '{"model": {"handler": "answers.py"}}'}
    site.members("unnamed.mar", {**unnamed, "answers.py": ANSWERS})
    site.members("garbled.mar", {"MAR-INF/MANIFEST.json": "{{", "answers.py": ANSWERS})
    (site.store / "junk.mar").write_bytes(b"no archive")
    for name in ("unnamed.mar", "garbled.mar", "junk.mar"):
        assert refusal(site.register(name)) == (400, "InvalidModelException"), name
    assert refusal(site.register("digits.mar", model_name="a b/c"))[0] == 400
    assert site.names() == ["echo"]
    assert not (site.folder / "evil").exists()
    assert not (site.store.parent / "evil").exists()

    junk = site.register("junk.mar", model_name="junk", initial_workers=0)
    assert junk.status_code == 200, junk.text
    assert site.described("junk")["modelUrl"] == "junk.mar"


@pytest.mark.parametrize("name", ["x" * 9000, "é" * 130, "a\0b", "/".join(["a"] * 3000)])
def test_a_name_that_no_file_can_have_is_refused(site: TorchServeSite, name: str) -> None:
    archive = site.archive("digits")
    assert refusal(site.register(archive, handler=name)) == (400, "BadRequestException")
    path = quote(name, safe="/")
    for url in (f"https://example.org/{path}.mar", f"file:///{path}.mar"):
        found = refusal(site.register(url))
        assert found[0] in (400, 404), found
    assert refusal(site.http.post("/workflows", params={"url": name}))[0] == 404
    assert site.names() == ["echo"]


def test_an_archive_without_a_manifest_is_registered_with_a_name_and_a_handler(
    site: TorchServeSite,
) -> None:
    site.members("plain.mar", {"answers.py": ANSWERS})
    assert refusal(site.register("plain.mar")) == (400, "InvalidModelException")
    found = site.register("plain.mar", model_name="plain", handler="answers.py")
    assert found.status_code == 200, found.text
    assert site.described("plain")["workers"][0]["status"] == "READY"


def test_folders_are_registered_from_the_store_and_by_their_path(
    site: TorchServeSite, tmp_path: Path
) -> None:
    manifest = {"model": {"modelName": "inner", "handler": "answers.py"}}
    for folder in (site.store / "inner", tmp_path / "outer"):
        (folder / "MAR-INF").mkdir(parents=True)
        (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
        (folder / "answers.py").write_text(ANSWERS)
    assert site.register("inner", initial_workers=0).status_code == 200
    outer = site.register(str(tmp_path / "outer"), model_name="outer")
    assert outer.status_code == 200, outer.text
    assert site.described("inner")["modelVersion"] == "1.0"
    assert site.described("outer")["modelUrl"] == str(tmp_path / "outer")


def test_the_same_version_twice_is_a_conflict(site: TorchServeSite) -> None:
    name = site.archive("digits")
    assert site.register(name, initial_workers=0).status_code == 200
    assert refusal(site.register(name)) == (409, "ConflictStatusException")
    assert site.described("digits")["minWorkers"] == 0


def test_a_file_url_is_copied_into_the_store_and_removed_with_its_model(
    site: TorchServeSite, tmp_path: Path
) -> None:
    name = site.archive("digits")
    (site.store / name).rename(tmp_path / name)
    url = f"file://{tmp_path / name}"
    assert site.register(url).status_code == 200
    assert site.described("digits")["modelUrl"] == url
    assert [path.name for path in site.store.iterdir()] == [name]
    assert refusal(site.register(url)) == (500, "InternalServerException")
    # Another file with the same model stays, and is no file of a model that is removed.
    (tmp_path / "other.mar").write_bytes((tmp_path / name).read_bytes())
    for again in (f"file://{tmp_path / 'other.mar'}", "other.mar"):
        assert refusal(site.register(again)) == (409, "ConflictStatusException")
    assert site.http.delete("/models/digits").status_code == 200
    assert [path.name for path in site.store.iterdir()] == ["other.mar"]
    assert site.register(str(site.store / "other.mar"), initial_workers=0).status_code == 200
    assert site.described("digits")["modelUrl"] == str(site.store / "other.mar")
    assert site.http.delete("/models/digits").status_code == 200
    assert [path.name for path in site.store.iterdir()] == ["other.mar"]


def test_a_load_that_fails_takes_the_registration_back(
    site: TorchServeSite, tmp_path: Path
) -> None:
    name = site.archive("digits", BROKEN)
    (site.store / name).rename(tmp_path / name)
    found = site.register(f"file://{tmp_path / name}")
    assert refusal(found) == (500, "InternalServerException")
    assert "RuntimeError: no such luck" in found.json()["message"]
    hungry = site.register(site.archive("hungry", HUNGRY))
    assert refusal(hungry) == (507, "InternalServerException")
    assert site.names() == ["echo"]
    assert [path.name for path in site.store.iterdir()] == ["hungry.mar"]


def test_a_load_that_fails_beside_another_version_takes_only_its_own_back(
    site: TorchServeSite,
) -> None:
    assert site.register(site.archive("digits", file="one.mar")).status_code == 200
    bad = site.archive("digits", BROKEN, version="2.0", file="two.mar")
    assert refusal(site.register(bad)) == (500, "InternalServerException")
    every = site.http.get("/models/digits/all").json()
    assert [one["modelVersion"] for one in every] == ["1.0"]
    job = site.http.post("/api/v1/models/digits/jobs?wait=60", json={})
    assert job.json()["result"] == "1.0"


def test_an_archive_that_is_replaced_in_the_store_is_registered_as_it_is_now(
    site: TorchServeSite,
) -> None:
    for text in ("first", "second"):
        code = ANSWERS.replace("self.version for", f"'{text}' for")
        assert site.register(site.archive("digits", code)).status_code == 200
        assert site.http.post("/predictions/digits", json={}).text == text
        assert site.http.delete("/models/digits").status_code == 200


def test_an_asynchronous_registration_reports_its_failure_in_the_description(
    site: TorchServeSite,
) -> None:
    found = site.register(site.archive("digits", BROKEN), synchronous="false")
    assert found.status_code == 202
    wait_until(
        lambda: "no such luck" in site.described("digits").get("loadError", ""),
        "the description has the traceback",
    )
    shown = site.described("digits")
    assert all(worker["status"] == "UNLOADING" for worker in shown["workers"])
    scaled = site.http.put("/models/digits?min_worker=2&synchronous=true")
    assert refusal(scaled) == (500, "InternalServerException")


def test_numbers_of_workers_are_checked(site: TorchServeSite) -> None:
    site.register(site.archive("digits"), initial_workers=0)
    less = site.http.put("/models/digits?min_worker=2&max_worker=1")
    assert refusal(less) == (400, "BadRequestException")
    negative = site.http.put("/models/digits?min_worker=-1")
    assert refusal(negative) == (500, "IndexOutOfBoundsException")
    between = site.http.put("/models/digits?min_worker=1&max_worker=2&synchronous=true")
    assert between.status_code == 200, between.text
    shown = site.described("digits")
    assert (shown["minWorkers"], shown["maxWorkers"]) == (1, 2)
    assert site.http.put("/models/digits?min_worker=nonsense&synchronous=nan").status_code == 202
    assert site.described("digits")["minWorkers"] == 1


def test_a_synchronous_scale_whose_workers_still_load_is_206(
    site: TorchServeSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    code = GATED.replace("GATE", repr(str(gate)))
    site.register(site.archive("digits", code), initial_workers=0, startup_timeout=600)
    # The request waits for one second instead of 630.
    monkeypatch.setattr(changes, "SLACK_S", -599.0)
    for path, of in (("", "model: digits"), ("/1.0", "model: digits, version: 1.0")):
        found = site.http.put(f"/models/digits{path}?min_worker=1&synchronous=true")
        assert found.status_code == 206, found.text
        assert found.json() == {"status": f"Workers scaling in progress for {of}"}
    monkeypatch.undo()
    wait_until(lambda: site.described("digits")["workers"], "the worker loads")
    assert [worker["status"] for worker in site.described("digits")["workers"]] == ["UNLOADING"]
    gate.touch()
    found = site.http.put("/models/digits?min_worker=1&synchronous=true")
    assert found.status_code == 200, found.text
    assert [worker["status"] for worker in site.described("digits")["workers"]] == ["READY"]


@pytest.mark.parametrize(
    "query",
    [
        {"min_worker": 100_000}, {"min_worker": 0, "max_worker": 257}, {"max_worker": "9" * 20},
        {"min_worker": "-" + "9" * 20}, {"min_worker": 257, "synchronous": "true"},
    ],
)  # fmt: skip
def test_more_workers_than_a_model_may_have_are_refused(
    site: TorchServeSite, query: dict[str, Any]
) -> None:
    site.register(site.archive("digits"), initial_workers=0)
    found = site.http.put("/models/digits", params=query)
    assert refusal(found) == (400, "BadRequestException")
    assert "that is accepted here" in found.json()["message"]
    shown = site.described("digits")
    assert (shown["minWorkers"], shown["maxWorkers"]) == (0, 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", "9" * 20), ("max_batch_delay", 2**31), ("response_timeout", "9" * 20),
        ("startup_timeout", 2**31), ("initial_workers", 257), ("initial_workers", "9" * 20),
    ],
)  # fmt: skip
def test_a_number_that_is_too_large_is_not_registered(
    site: TorchServeSite, name: str, value: int | str
) -> None:
    query = {"initial_workers": 0, name: value}
    found = site.register(site.archive("digits"), **query)
    assert refusal(found) == (400, "BadRequestException")
    assert found.json()["message"].startswith(f"{name} is {value}: ")
    as_json = {"url": "digits.mar", **query}
    assert refusal(site.http.post("/models", json=as_json)) == (400, "BadRequestException")
    assert site.names() == ["echo"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("handler: " + "[" * 5000 + "]" * 5000, "nested more than 100 levels deep"),
        ("handler: " + "{a: " * 5000 + "1" + "}" * 5000, "nested more than 100 levels deep"),
        ("handler:\n" + "- " * 5000 + "1", "nested more than 100 levels deep"),
        ("handler: " + "x" * 300_000, "larger than 262,144 bytes"),
    ],
)
def test_a_configuration_that_no_handler_could_load_is_not_registered(
    site: TorchServeSite, config: str, message: str
) -> None:
    model = {"modelName": "deep", "handler": "answers.py", "configFile": "model-config.yaml"}
    manifest = json.dumps({"model": model})
    members = {"MAR-INF/MANIFEST.json": manifest, "answers.py": ANSWERS}
    site.members("deep.mar", {**members, "model-config.yaml": config})
    found = site.register("deep.mar")
    assert refusal(found) == (400, "InvalidModelException")
    assert f"configFile: model-config.yaml: it is {message}" in found.json()["message"]
    assert site.names() == ["echo"]


def test_a_model_that_needs_no_worker_gets_one_by_its_first_request(site: TorchServeSite) -> None:
    assert site.register(site.archive("digits"), initial_workers=0).status_code == 200
    assert refusal(site.http.post("/predictions/digits"))[0] == 503
    scaled = site.http.put("/models/digits?min_worker=0&max_worker=2&synchronous=true")
    assert scaled.status_code == 200, scaled.text
    shown = site.described("digits")
    assert (shown["minWorkers"], shown["maxWorkers"]) == (0, 2)
    assert site.http.post("/predictions/digits", json={}).text == "1.0"
    assert len(site.described("digits")["workers"]) == 1
    for number in (2, 0):
        back = site.http.put(f"/models/digits?min_worker={number}&synchronous=true")
        assert back.status_code == 200, back.text
        shown = site.described("digits")
        assert (shown["minWorkers"], shown["maxWorkers"]) == (number, number)
        assert len(shown["workers"]) == number
    assert refusal(site.http.post("/predictions/digits"))[0] == 503


def test_models_are_listed_a_page_at_a_time(site: TorchServeSite) -> None:
    for name in ("b", "a"):
        site.register(site.archive(name), initial_workers=0)

    def page(**query: Any) -> Any:
        return site.http.get("/models", params=query).json()

    assert list(page(limit=2)) == ["nextPageToken", "models"]
    assert [one["modelName"] for one in page(limit=2)["models"]] == ["a", "b"]
    assert page(limit=2)["nextPageToken"] == "2"
    assert page(limit=2, next_page_token=2) == {
        "models": [{"modelName": "echo", "modelUrl": "echo"}]
    }
    assert page(limit=3)["nextPageToken"] == "3"
    assert page(limit=3, next_page_token=3) == {"models": []}
    assert page(limit=0) == {"nextPageToken": "0", "models": []}
    for query in ({}, {"limit": 101}, {"limit": -1}, {"limit": "x"}, {"next_page_token": -5}):
        assert len(page(**query)["models"]) == 3
        assert "nextPageToken" not in page(**query)


def test_workflows_are_listed_and_not_registered(site: TorchServeSite) -> None:
    assert site.http.get("/workflows").json() == {"workflows": []}
    site.members("some.war", {"x": ""})
    known = site.http.post("/workflows?url=some.war")
    assert refusal(known) == (400, "BadRequestException")
    for url in ("none.war", "", "%00"):
        missing = site.http.post(f"/workflows?url={url}")
        assert refusal(missing) == (404, "WorkflowNotFoundException")


def test_a_path_of_a_model_is_described(site: TorchServeSite) -> None:
    found = site.http.options("/models/echo").json()
    assert found["openapi"] == "3.0.1"
    assert set(found["paths"]["/models/{model_name}"]) == {"get", "put", "delete"}
    assert refusal(site.http.options("/models/none")) == (404, "ModelNotFoundException")


def test_predictions_run_on_another_default_version_once_it_is_chosen(
    site: TorchServeSite,
) -> None:
    assert site.register(site.archive("digits", file="one.mar")).status_code == 200
    second = site.register(site.archive("digits", version="2.0", file="two.mar"))
    assert second.status_code == 200, second.text
    for version in ("2.0", "1.0", "2.0"):
        assert site.http.put(f"/models/digits/{version}/set-default").status_code == 200
        assert site.http.post("/predictions/digits", json={}).text == version


def test_a_model_of_the_models_file_is_loaded_at_the_start(site: TorchServeSite) -> None:
    assert site.described("echo")["loadedAtStartup"] is True


def test_a_handler_of_torchserve_describes_itself(site: TorchServeSite) -> None:
    build(ARCHIVES["customized"], site.store)
    build(ARCHIVES["noop_function"], site.store)
    plain = site.archive("plain")
    assert site.register("customized.mar", initial_workers=0).status_code == 200
    asked = site.http.get("/models/customized?customized=true")
    assert refusal(asked) == (503, "ServiceUnavailableException")
    scaled = site.http.put("/models/customized?min_worker=1&synchronous=true")
    assert scaled.status_code == 200, scaled.text
    shown = site.described("customized", customized="true")
    assert list(shown) == [*KEYS, "customizedMetadata"]
    assert shown["customizedMetadata"] == {"data1": "data1", "limits": {"longest": 512}}
    assert "customizedMetadata" not in site.described("customized", customized="nan")
    assert "customizedMetadata" not in site.described("customized")
    missing = site.http.get("/models/customized/9?customized=true")
    assert refusal(missing) == (404, "ModelVersionNotFoundException")
    assert site.register("noop_function.mar").status_code == 200
    assert site.described("noop_function", customized="true")["customizedMetadata"] == {}
    # A native handler describes nothing.
    assert site.register(plain).status_code == 200
    assert list(site.described("plain", customized="true")) == KEYS


@pytest.mark.leaves_keys
def test_without_the_model_api_models_are_only_scaled(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    with torchserve_site(redis_db.url, tmp_path, worker=False, enable_model_api=False) as site:
        off = (405, "MethodNotAllowedException")
        assert refusal(site.register(site.archive("digits"))) == off
        assert refusal(site.http.delete("/models/echo")) == off
        assert site.http.put("/models/echo?min_worker=1").status_code == 202
        assert site.http.put("/models/echo/1.0/set-default").status_code == 200


@pytest.mark.leaves_keys
def test_packages_are_installed_when_a_model_is_registered(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    with torchserve_site(
        redis_db.url, tmp_path, worker=False, install_py_dep_per_model=True
    ) as site:
        for name in ("needs_package", "needs_missing_package"):
            build(ARCHIVES[name], site.store)
        found = site.register("needs_missing_package.mar", initial_workers=0)
        assert refusal(found) == (400, "ModelException")
        assert "a-package-that-nobody-has" in found.json()["message"]
        assert site.names() == ["echo"]
        assert site.register("needs_package.mar", initial_workers=0).status_code == 200
        assert list(site.folder.rglob("compat_needed*.dist-info"))


@pytest.mark.leaves_keys
def test_an_unregistration_waits_for_a_request_that_runs_until_its_timeout(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with torchserve_site(redis_db.url, tmp_path, unregister_model_timeout=1) as site:
        code = SLOW.replace("GATE", repr(str(gate)))
        assert site.register(site.archive("slow", code)).status_code == 200
        job = site.http.post("/api/v1/models/slow/jobs", json={}).json()
        wait_until(lambda: (tmp_path / "gate.begun").exists(), "the request runs")
        assert refusal(site.http.delete("/models/slow")) == (408, "RequestTimeoutException")
        assert site.names() == ["echo"]
        gate.touch()
        ended = site.http.get(f"/api/v1/jobs/{job['id']}?wait=60").json()
        assert (ended["status"], ended["result"]) == ("succeeded", "done")


@pytest.mark.leaves_keys
def test_a_description_has_the_requests_that_wait_for_each_version(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    with torchserve_site(redis_db.url, tmp_path, worker=False, job_queue_size=5) as site:
        site.register(site.archive("digits", file="one.mar"), initial_workers=0)
        site.register(site.archive("digits", version="2.0", file="two.mar"), initial_workers=0)
        for path in ("", "", "/versions/1.0", "/versions/2.0"):
            sent = site.http.post(f"/api/v1/models/digits{path}/jobs", json={})
            assert sent.status_code == 202, sent.text
        pending = {
            one["modelVersion"]: (
                one["jobQueueStatus"]["remainingCapacity"],
                one["jobQueueStatus"]["pendingRequests"],
            )
            for one in site.http.get("/models/digits/all").json()
        }
        assert pending == {"1.0": (2, 3), "2.0": (4, 1)}
        alone = site.described("digits", "/2.0")["jobQueueStatus"]
        assert alone["pendingRequests"] == 1
        assert alone["oldestRequestAgeSec"] >= 0


@pytest.mark.leaves_keys
def test_urls_must_match_an_expression(redis_db: RedisServer, tmp_path: Path) -> None:
    allowed = "file:///allowed/.*,https://models\\.example\\.com/.*"
    with torchserve_site(redis_db.url, tmp_path, worker=False, allowed_urls=allowed) as site:
        for url in (f"file://{tmp_path}/digits.mar", "https://models.example.com.evil/x.mar"):
            assert refusal(site.register(url)) == (404, "ModelNotFoundException")
        found = site.register("FILE:///allowed/none.mar")
        assert refusal(found) == (400, "DownloadArchiveException")


@pytest.mark.leaves_keys
def test_the_management_port_alone_tells_kserve_whether_a_model_is_ready(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    with torchserve_site(
        redis_db.url, tmp_path, settings={"port": port}, management_address=address
    ) as site:
        assert site.http.get("/v1/models/echo").json() == {"name": "echo", "ready": True}
        assert site.register(site.archive("digits"), initial_workers=0).status_code == 200
        assert site.http.get("/v1/models/digits/").json() == {"name": "digits", "ready": False}
        assert refusal(site.http.get("/v1/models/none")) == (404, "ModelNotFoundException")
        for path in ("/predictions/echo", "/ping", "/metrics", "/api/v1/models"):
            assert refusal(site.http.get(path)) == (404, "ResourceNotFoundException")
