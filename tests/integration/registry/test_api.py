"""The registry over HTTP: a real API with a models file, and another one on the same Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest

from headrace import Client
from headrace.observability.worker_report import REGISTRY
from headrace.redis import keys
from headrace.redis.script_client import ScriptClient
from headrace.registry.catalog import ConfigReader
from headrace.registry.model import register
from headrace.registry.store import RegistryStore
from tests.harness.clients.commands import CommandsWithin
from tests.harness.fakes.worker import publish_state
from tests.harness.http.events import reading
from tests.harness.servers.api_server import ApiServer, registry_server
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until

FILE = """
models:
  words: {handler: echo, max_batch_size: 8, options: {secret: hidden}}
  spare: {handler: echo}
pipelines:
  chain: {stages: {words: {}}}
"""


@pytest.fixture
def frequent_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """An API that finds at once what no publication has said."""
    monkeypatch.setattr("api.components.model_registry.POLL_S", 0.1)


@pytest.fixture
def api(redis_db: RedisServer, file: Path) -> Iterator[ApiServer]:
    with registry_server(redis_db.url, file) as server:
        yield server


def names(api: ApiServer) -> list[str]:
    return [model["name"] for model in api.http.get("/api/v1/models").json()["models"]]


def test_the_models_file_is_applied_at_the_start(api: ApiServer) -> None:
    found = api.http.get("/api/v1/models/words/versions").json()

    assert (found["default_version"], found["changed_by"]) == ("1.0", "models file models.yaml")
    (version,) = found["versions"]
    assert version == {
        "version": "1.0", "default": True, "declared": True, "changed": {}, "loads": 0,
        "unserved": "no worker runs",
    }  # fmt: skip


def test_a_start_with_a_changed_file_applies_it_and_keeps_what_the_api_has_changed(
    redis_db: RedisServer, file: Path
) -> None:
    with registry_server(redis_db.url, file) as api:
        change = {"options": {"max_batch_size": 2}}
        assert api.http.patch("/api/v1/models/words", json=change).status_code == 200
    file.write_text(FILE.replace("8", "9").replace("spare", "other"))
    with registry_server(redis_db.url, file) as api:
        assert sorted(names(api)) == ["chain", "other", "words"]
        assert api.http.get("/api/v1/models/words").json()["max_batch_size"] == 2
        back = {"options": {"max_batch_size": None}}
        assert api.http.patch("/api/v1/models/words", json=back).status_code == 200
        assert api.http.get("/api/v1/models/words").json()["max_batch_size"] == 9


@pytest.mark.leaves_keys
def test_a_model_that_is_registered_takes_jobs_on_every_api_process(
    api: ApiServer, redis_db: RedisServer, file: Path
) -> None:
    with registry_server(redis_db.url, file) as other:
        answer = api.http.put("/api/v1/models/new/versions/3", json={"options": HANDLER})
        assert answer.status_code == 201
        assert api.http.post("/api/v1/models/new/jobs", json={"x": 1}).status_code == 202
        wait_until(lambda: "new" in names(other), "the other process follows")
        assert other.http.delete("/api/v1/models/new").status_code == 204
        wait_until(lambda: "new" not in names(api), "the first process follows")
        refused = api.http.post("/api/v1/models/new/jobs", json={"x": 1})
        assert refused.status_code == 404
        job = other.http.get("/api/v1/jobs").json()
        assert job["jobs"] == []


HANDLER = {"handler": "echo"}


def test_of_two_operators_the_second_learns_what_the_first_has_changed(api: ApiServer) -> None:
    seen = api.http.get("/api/v1/models/words/versions")
    tag = seen.headers["etag"]
    first = {"options": {"replicas": 2}}
    second = {"options": {"replicas": 3}}
    done = api.http.patch("/api/v1/models/words", json=first, headers={"If-Match": tag})
    assert done.status_code == 200
    late = api.http.patch("/api/v1/models/words", json=second, headers={"If-Match": tag})

    assert late.status_code == 409
    assert "set replicas=2 of version 1.0" in late.json()["detail"]
    assert api.http.get("/api/v1/models/words").json()["replicas"] == 2


def test_a_wrong_option_is_refused_and_nothing_changes(api: ApiServer) -> None:
    wrong = api.http.patch("/api/v1/models/words", json={"options": {"max_batchsize": 2}})
    assert wrong.status_code == 400
    assert "did you mean max_batch_size" in wrong.json()["detail"]
    wrong = api.http.put("/api/v1/models/new/versions/1", json={"options": {}})
    assert "handler" in wrong.json()["detail"]
    wrong = api.http.patch("/api/v1/models/wrods", json={"options": {"replicas": 2}})
    assert (wrong.status_code, "words" in wrong.json()["detail"]) == (404, True)
    assert sorted(names(api)) == ["chain", "spare", "words"]


def test_versions_are_added_chosen_and_removed(api: ApiServer) -> None:
    http = api.http
    assert http.put("/api/v1/models/words/versions/2.0", json={"options": HANDLER}).is_success
    assert http.get("/api/v1/models/words").json()["version"] == "1.0"
    chosen = http.patch("/api/v1/models/words", json={"default_version": "2.0"})
    assert chosen.json()["default_version"] == "2.0"
    assert http.get("/api/v1/models/words").json()["version"] == "2.0"
    refused = http.delete("/api/v1/models/words/versions/2.0")
    assert (refused.status_code, "1.0" in refused.json()["remedy"]) == (409, True)
    assert http.delete("/api/v1/models/words/versions/1.0").status_code == 200


def test_the_model_of_a_pipeline_cannot_be_removed(api: ApiServer) -> None:
    refused = api.http.delete("/api/v1/models/words")

    assert (refused.status_code, "chain" in refused.json()["detail"]) == (409, True)
    assert api.http.delete("/api/v1/models/spare").status_code == 204


def test_without_model_api_no_code_can_be_named(redis_db: RedisServer, file: Path) -> None:
    with registry_server(redis_db.url, file, model_api=False) as api:
        put = api.http.put("/api/v1/models/new/versions/1", json={"options": HANDLER})
        assert (put.status_code, "HEADRACE_MODEL_API" in put.json()["remedy"]) == (403, True)
        for key, value in (
            ("handler", "digits"), ("weights_only", False), ("inputs", {"schema": "/etc/hosts"}),
            ("outputs", {"schema": "/etc/hosts"}), ("device", "cpu"), ("source", "x.zip"),
        ):  # fmt: skip
            code = {"options": {"replicas": 2, key: value}}
            refused = api.http.patch("/api/v1/models/words", json=code)
            assert (refused.status_code, key in refused.json()["detail"]) == (403, True), key
        scale = {"options": {"replicas": 2}}
        assert api.http.patch("/api/v1/models/words", json=scale).status_code == 200


def test_no_change_shows_paths_or_secrets(api: ApiServer) -> None:
    secret = {"options": {"key": "s3cret"}, "weights": "/s3cret.pt"}
    change = {"options": {**secret, "weight": 2}}
    done = api.http.patch("/api/v1/models/words", json=change)
    assert done.status_code == 200
    new = {"handler": "echo", "source": "https://s3cret@example.org/x.zip", **secret}
    api.http.put("/api/v1/models/words/versions/2", json={"options": new})

    shown = api.http.get("/api/v1/models/words/versions")
    logged = api.http.get("/api/v1/registry/changes")
    assert "s3cret" not in done.text + shown.text + logged.text
    changes = [change["what"] for change in logged.json()["changes"]]
    assert "set options, weight=2, weights of version 1.0" in changes


def test_no_model_has_the_name_of_a_pipeline(api: ApiServer) -> None:
    refused = api.http.put("/api/v1/models/chain/versions/1", json={"options": HANDLER})

    assert (refused.status_code, "pipeline" in refused.json()["detail"]) == (409, True)
    for method, path in (("GET", "versions"), ("GET", "traffic"), ("POST", "profile")):
        refused = api.http.request(method, f"/api/v1/models/chain/{path}")
        assert refused.status_code == 404
        told = refused.json()["detail"]
        assert "chain is a pipeline, and only its models are registered" in told
        assert refused.json()["remedy"] == "Name one of them: words."


def test_without_workers_a_wait_ends_when_its_time_is_up(api: ApiServer) -> None:
    url = "/api/v1/models/words"
    change = {"options": {"replicas": 2}}
    done = api.http.patch(f"{url}?wait=0.1", json=change)
    assert (done.status_code, done.json()["state"]) == (200, "pending")
    assert "state" not in api.http.post(f"{url}/reload").json()
    assert api.http.patch(f"{url}?wait=-1", json=change).status_code == 400
    assert api.http.put(f"{url}/traffic?wait=0.1", json={}).json()["state"] == "pending"
    assert api.http.delete("/api/v1/models/spare?wait=-1").status_code == 400
    # No worker serves it, so there is nothing to wait for.
    assert api.http.delete("/api/v1/models/spare?wait=60").status_code == 204


def test_a_removal_that_a_worker_has_not_finished_is_pending(
    api: ApiServer, redis_db: RedisServer
) -> None:
    url = "/api/v1/models/spare"
    with redis_db.client() as client, Client(api.url) as sdk:
        publish_state(client, "w", "spare", "ready")
        client.hset(keys.worker("w"), REGISTRY, msgspec.json.encode({"generation": 1}))
        client.persist(keys.worker("w"))
        assert api.http.put(f"{url}/versions/2.0", json={"options": HANDLER}).is_success
        one = api.http.delete(f"{url}/versions/2.0?wait=0.1")
        assert (one.status_code, one.json()["state"]) == (200, "pending")
        last = api.http.delete(f"{url}/versions/1.0?wait=0.1")
        assert (last.status_code, last.json()) == (202, {"name": "spare", "state": "pending"})
        assert api.http.put(f"{url}/versions/1.0", json={"options": HANDLER}).is_success
        assert sdk.remove_model("spare", wait=0.1) == "pending"
        client.delete(keys.worker("w"))
        client.zrem(keys.WORKERS, "w")


def test_differences_from_the_models_file_are_listed_without_secrets(
    api: ApiServer, file: Path
) -> None:
    url = "/api/v1/models/words"
    assert api.http.get("/api/v1/registry/differences").json() == {"differences": []}
    change = {"options": {"replicas": 2, "max_batch_size": 2, "options": {"key": "s3cret"}}}
    assert api.http.patch(url, json=change).is_success
    assert api.http.put(f"{url}/versions/2", json={"options": HANDLER}).is_success
    found = api.http.get("/api/v1/registry/differences").json()["differences"]

    rows = [tuple(one.values()) for one in found]
    assert rows == [
        ("words", "1.0", "max_batch_size", 8, 2),
        ("words", "1.0", "options", None, None),
        ("words", "1.0", "replicas", None, 2),
        ("words", "2", None, None, None),
    ]
    assert api.http.delete("/api/v1/models/spare").is_success
    first, *_ = api.http.get("/api/v1/registry/differences").json()["differences"]
    assert tuple(first.values()) == ("spare", "1.0", "version", "1.0", None)
    lines = CommandsWithin(api.url, file.parent).lines("models", "diff")
    assert any(line.split() == ["spare", "1.0", "in", "the", "file", "removed"] for line in lines)


def test_every_change_is_logged_with_its_author(api: ApiServer) -> None:
    api.http.post("/api/v1/models/words/reload")

    newest, *older = api.http.get("/api/v1/registry/changes").json()["changes"]
    assert (newest["model"], newest["what"]) == ("words", "reloaded 1.0")
    assert newest["by"] == "a client without an API key"
    assert {change["by"] for change in older} == {"models file models.yaml"}


@pytest.mark.usefixtures("frequent_polls")
@pytest.mark.leaves_keys
def test_an_api_whose_redis_has_lost_everything_applies_its_file_again(
    api: ApiServer, redis_db: RedisServer
) -> None:
    with redis_db.client() as client:
        client.flushall()
        store = RegistryStore(ScriptClient(client))
        # Within the time of one poll, in case the publication finds no listener.
        wait_until(lambda: "words" in store.read().models, "the file is applied again")
    assert api.http.post("/api/v1/models/words/jobs", json={"x": 1}).status_code == 202


BROKEN = b"7 \xc1"


def test_changes_are_streamed_and_resumed_on_another_process(
    api: ApiServer, redis_db: RedisServer, file: Path
) -> None:
    def reload(model: str) -> None:
        assert api.http.post(f"/api/v1/models/{model}/reload").is_success

    with registry_server(redis_db.url, file) as other:
        with reading(f"{api.url}/api/v1/registry/events") as reader:
            assert reader.headers["content-type"] == "text/event-stream"
            reload("words")
            first = reader.wait_for("change")
            reload("spare")
            reader.wait_for("change", 2)
        assert (first.data["model"], first.data["what"]) == ("words", "reloaded 1.0")
        reload("words")
        with reading(f"{other.url}/api/v1/registry/events", first.id) as reader:
            reader.wait_for("change", 2)
            reload("spare")
            reader.wait_for("change", 3)
            assert [event.data["model"] for event in reader.events] == ["spare", "words", "spare"]


def test_a_stream_of_changes_begins_with_an_id(api: ApiServer) -> None:
    with api.http.stream("GET", "/api/v1/registry/events") as stream:
        lines = stream.iter_lines()
        begin = next(line for line in lines if line.startswith("id:"))
        assert api.http.post("/api/v1/models/words/reload").is_success
        assert next(line for line in lines if line.startswith("event:")) == "event: change"
    last_id = begin.removeprefix("id:").strip()
    with reading(f"{api.url}/api/v1/registry/events", last_id) as reader:
        assert reader.wait_for("change").data["what"] == "reloaded 1.0"


@pytest.mark.usefixtures("frequent_polls")
def test_an_api_starts_with_a_model_that_is_not_readable(redis_db: RedisServer, file: Path) -> None:
    with redis_db.client() as client:
        client.hset(keys.MODELS, "broken", BROKEN)
        client.hset(keys.REGISTRY, "generation", 7)
        with registry_server(redis_db.url, file) as api:
            assert sorted(names(api)) == ["chain", "spare", "words"]
            refused = api.http.post("/api/v1/models/words/reload")
            assert (refused.status_code, "'broken'" in refused.json()["detail"]) == (500, True)
            assert "HDEL hr:models broken" in refused.json()["remedy"]
            client.hdel(keys.MODELS, "broken")
            wait_until(
                lambda: api.http.get("/api/v1/models/words/versions").is_success,
                "the file is applied",
            )


def test_an_api_goes_on_with_what_it_has_while_a_model_is_not_readable(
    api: ApiServer, redis_db: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with redis_db.client() as client:
        client.hset(keys.MODELS, "broken", BROKEN)
        client.hincrby(keys.REGISTRY, "generation", 1)
        client.publish(keys.MODEL_CHANGES, "2")
        wait_until(lambda: "'broken' is not readable" in caplog.text, "it is logged")
        assert sorted(names(api)) == ["chain", "spare", "words"]
        client.hdel(keys.MODELS, "broken")
        store = RegistryStore(ScriptClient(client))
        seen = store.read()
        store.write(seen, register(seen, "direct", "1.0", HANDLER), "a script")
    wait_until(lambda: "direct" in names(api), "the API follows again")


@pytest.mark.usefixtures("frequent_polls")
def test_an_api_starts_with_a_full_redis_and_applies_its_file_later(
    redis_db: RedisServer, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with redis_db.client() as client:
        client.config_set("maxmemory", "1mb")
        try:
            with registry_server(redis_db.url, file) as api:
                assert sorted(names(api)) == ["chain", "spare", "words"]
                assert "not followed at present" in caplog.text
                client.config_set("maxmemory", "0")
                wait_until(lambda: client.hlen(keys.MODELS) == 2, "the file is applied")
        finally:
            client.config_set("maxmemory", "0")


def test_an_api_starts_after_an_unknown_error(
    redis_db: RedisServer,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> NoReturn:
        raise KeyError("x")

    with monkeypatch.context() as patch:
        patch.setattr(ConfigReader, "versions", fail)
        with registry_server(redis_db.url, file) as api:
            assert sorted(names(api)) == ["chain", "spare", "words"]
            assert "not followed at present" in caplog.text


@pytest.mark.parametrize(
    "options", [{**HANDLER, "weights": "~nouser/x"}, {"source": "https://["}, {"source": "x" * 300}]
)
def test_a_model_that_cannot_be_read_does_not_end_what_others_need(
    api: ApiServer, redis_db: RedisServer, options: dict[str, Any]
) -> None:
    with redis_db.client() as client:
        store = RegistryStore(ScriptClient(client))
        seen = store.read()
        store.write(seen, register(seen, "broken", "1.0", options), "a script")
        change = {"options": {"max_batch_size": 2}}
        assert api.http.patch("/api/v1/models/words", json=change).status_code == 200
        put = api.http.put("/api/v1/models/new/versions/1", json={"options": options})
        assert put.status_code == (400 if "weights" in options else 201)
        seen = store.read()
        store.write(seen, register(seen, "direct", "1.0", HANDLER), "a script")
    wait_until(lambda: "direct" in names(api), "the API follows")


@pytest.mark.usefixtures("frequent_polls")
def test_the_api_follows_on_after_an_unknown_error(
    api: ApiServer,
    redis_db: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> NoReturn:
        raise KeyError("x")

    with redis_db.client() as client, monkeypatch.context() as patch:
        patch.setattr(ConfigReader, "versions", fail)
        store = RegistryStore(ScriptClient(client))
        seen = store.read()
        store.write(seen, register(seen, "direct", "1.0", HANDLER), "a script")
        wait_until(lambda: "not followed at present" in caplog.text, "it is logged")
    wait_until(lambda: "direct" in names(api), "the API follows again")


@pytest.mark.usefixtures("frequent_polls")
def test_a_generation_that_was_lost_and_counted_again_is_another_one(
    api: ApiServer, redis_db: RedisServer
) -> None:
    with redis_db.client() as client:
        store = RegistryStore(ScriptClient(client))
        seen = store.read()
        store.write(seen, register(seen, "lost", "1.0", HANDLER), "a script")
        wait_until(lambda: "lost" in names(api), "the API follows")
        one = store.read().get("lost")
        other = msgspec.structs.replace(one, name="kept")
        with client.pipeline() as pipe:  # without a publication
            pipe.hdel(keys.MODELS, "lost")
            pipe.hset(
                keys.MODELS, "kept", b"%d %b" % (one.generation, msgspec.msgpack.encode(other))
            )
            pipe.hset(keys.REGISTRY, "change", "another")
            pipe.execute()
    wait_until(lambda: "kept" in names(api), "the API follows the other change")
    assert "lost" not in names(api)


def test_a_change_that_is_made_in_redis_is_followed(api: ApiServer, redis_db: RedisServer) -> None:
    with redis_db.client() as client:
        store = RegistryStore(ScriptClient(client))
        seen = store.read()
        store.write(seen, register(seen, "direct", "1.0", HANDLER), "a script")
    wait_until(lambda: "direct" in names(api), "the API follows")
    metrics = wait_until(lambda: api.http.get("/metrics").text, "metrics")
    assert 'model="direct"' in metrics
