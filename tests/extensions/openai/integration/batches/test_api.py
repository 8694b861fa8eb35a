"""`/v1/batches` as routes, and batches that are executed in this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from extensions.openai.api.files import FileService
from extensions.openai.batches.execution import BatchExecution
from extensions.openai.batches.runner import ACTS_FOR, ApiClient, internal_key
from headrace.access.api_key import Scope
from headrace.access.key_store import api_keys_at
from headrace.client import Client
from headrace.config.settings import Settings
from headrace.errors import ServerUnreachable
from tests.extensions.openai.harness.batches import Batches, batches_at, line, sdk
from tests.harness.clients.payloads import make_due
from tests.harness.fakes.worker import FakeWorker
from tests.harness.servers.api_process import api_process
from tests.harness.servers.api_server import ApiServer, api_server, catalog
from tests.harness.servers.certificates import Authority
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.servers.up import write_models
from tests.harness.wait import wait_until

ECHO = "/api/v1/models/echo/jobs"
FILE = "file-0193f1a2b3c47d5e8f60718293a4b5c6"
BATCH = "batch_0193f1a2b3c47d5e8f60718293a4b5c6"


@pytest.fixture
def api(redis_db: RedisServer) -> Iterator[ApiServer]:
    with api_server(redis_db.url, catalog(echo={})) as server:
        yield server
        swept(server, redis_db)


def swept(api: ApiServer, redis_db: RedisServer) -> None:
    with redis_db.client() as client:
        for key in client.scan_iter("hr:file:*"):
            client.delete(key)
        make_due(client)
        api.services.of(FileService).store.stores.sweep()


@pytest.fixture
def batches(api: ApiServer) -> Iterator[Batches]:
    with batches_at(api.url) as found:
        yield found


def execute(api: ApiServer, redis_url: str, **headers: str) -> BatchExecution:
    """Drive the batch that waits longest as far as it goes."""
    files = api.services.of(FileService)
    lease = files.batches.claim()
    assert lease is not None
    client = Client(api.url, headers=headers, retry_s=1)
    execution = BatchExecution(
        lease, files.store, files.batches, client, Settings(redis_url=redis_url)
    )
    execution.run()
    assert execution.done
    return execution


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        ({}, "endpoint is missing", "endpoint"),
        ({"endpoint": ECHO}, "input_file_id is missing", "input_file_id"),
        ({"endpoint": "/v1/images"}, "'/v1/images' is not served here", "endpoint"),
        ({"endpoint": "/api/v1/models/ecco/jobs"}, "ecco", "endpoint"),
        ({"endpoint": ECHO, "input_file_id": FILE}, "there is no file", "input_file_id"),
        ({"endpoint": ECHO, "input_file_id": 7}, "expected `str", "input_file_id"),
        ({"endpont": ECHO}, "unknown member 'endpont'", "endpont"),
        ({"rerun_of": BATCH}, "there is no batch", "rerun_of"),
        ({"metadata": {"a": 1}}, "expected `str`", "metadata"),
        ({"metadata": {"a": "x" * 513}}, "length <= 512", "metadata"),
        ({"metadata": {"x" * 65: ""}}, "length <= 64", "metadata"),
        ({"metadata": {str(n): "" for n in range(17)}}, "length <= 16", "metadata"),
    ],
)
def test_a_create_that_is_refused(
    api: ApiServer, body: dict[str, Any], message: str, param: str
) -> None:
    if "endpoint" in body and "input_file_id" not in body and param == "endpoint":
        body = {**body, "input_file_id": FILE}
    answer = api.http.post("/v1/batches", json=body)
    error = answer.json()["error"]
    assert answer.status_code == 400, error
    assert message in error["message"]
    assert (error["type"], error["param"], error["code"]) == (
        "invalid_request_error", param, "invalid-request",
    )  # fmt: skip


@pytest.mark.parametrize("window", ["", "24", "24 h", "0h", "721h", "1d", "-1h", "1h\n", "1.5h"])
def test_a_window_that_is_none(batches: Batches, window: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        batches.create([line("a", "echo", 1)], ECHO, window)
    assert caught.value.param == "completion_window"
    assert "such as 24h or 90m" in caught.value.message


@pytest.mark.parametrize(
    ("window", "seconds"), [("1s", 1), ("90m", 5400), ("24h", 86_400), ("720h", 2_592_000)]
)
def test_windows(batches: Batches, window: str, seconds: int) -> None:
    made = batches.create([line("a", "echo", 1)], ECHO, window)
    assert made.expires_at - made.created_at == seconds
    assert made.completion_window == window
    batches.client.batches.cancel(made.id)


def test_errors_are_openais(api: ApiServer, batches: Batches) -> None:
    for call in (batches.client.batches.retrieve, batches.client.batches.cancel):
        with pytest.raises(openai.NotFoundError) as caught:
            call(BATCH)
        assert caught.value.code == "batch-not-found"
    with pytest.raises(openai.BadRequestError):
        batches.client.batches.list(limit=101)
    answer = api.http.delete("/v1/batches")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, POST")
    assert answer.json()["error"]["code"] == "method-not-allowed"
    answer = api.http.post(
        "/v1/batches", content=b"{", headers={"content-type": "application/json"}
    )
    assert "is not JSON" in answer.json()["error"]["message"]


def test_a_batch_over_a_file_that_is_gone_fails(
    api: ApiServer, batches: Batches, redis_db: RedisServer
) -> None:
    made = batches.create([line("a", "echo", 1)], ECHO)
    batches.client.files.delete(made.input_file_id)
    execute(api, redis_db.url)
    batch = batches.client.batches.retrieve(made.id)
    assert batch.status == "failed"
    assert [(error.code, error.param) for error in batch.errors.data] == [
        ("file_not_found", "input_file_id")
    ]


def test_a_rerun_whose_error_file_is_gone_keeps_the_rows_that_it_has(
    api: ApiServer, batches: Batches, redis_db: RedisServer
) -> None:
    put_off = line("late", "echo", 0, "?countdown=3600")
    first = batches.create([line("a", "echo", 1), line("b", "echo", 2), put_off], ECHO)
    batches.client.batches.cancel(first.id)
    execute(api, redis_db.url)
    first = batches.client.batches.retrieve(first.id)
    again = batches.client.batches.create(
        input_file_id=first.input_file_id, endpoint=ECHO, completion_window="24h",
        extra_body={"rerun_of": first.id},
    )  # fmt: skip
    files = api.services.of(FileService)
    lease = files.batches.claim()
    assert lease is not None
    runner = BatchExecution(lease, files.store, files.batches, Client(api.url), Settings())
    with FakeWorker(redis_db.url, "echo"):
        thread = threading.Thread(target=runner.run)
        thread.start()

        def saved() -> bool:
            return bool(files.batches.get(again.id).completed == 2)

        wait_until(saved, "what has ended is saved", 60)
        runner.stop()
        thread.join()
    batches.client.files.delete(first.error_file_id)
    execute(api, redis_db.url)
    batch = batches.client.batches.retrieve(again.id)
    assert batch.status == "failed"
    assert [(error.code, error.param) for error in batch.errors.data] == [
        ("file_not_found", "rerun_of")
    ]
    assert sorted(batches.rows(batch.output_file_id)) == ["a", "b"]
    assert (batch.request_counts.completed, batch.request_counts.total) == (2, 3)


def test_a_batch_whose_time_was_over_before_it_began(
    api: ApiServer, batches: Batches, redis_db: RedisServer
) -> None:
    made = batches.create([line(str(n), "echo", n) for n in range(3)], ECHO, "1s")
    files = api.services.of(FileService)
    lease = files.batches.claim()
    assert lease is not None
    client = Client(api.url, retry_s=1)
    execution = BatchExecution(lease, files.store, files.batches, client, Settings())
    execution._expires_at = 0
    execution.renew()
    execution.run()
    batch = batches.client.batches.retrieve(made.id)
    assert batch.status == "expired"
    good, bad = batches.both(batch)
    assert (good, sorted(bad)) == ({}, ["0", "1", "2"])
    assert {row["error"]["code"] for row in bad.values()} == {"batch_expired"}
    # No job was ever made.
    assert api.http.get("/api/v1/jobs").json()["jobs"] == []


def test_a_batch_that_is_cancelled_before_it_began(
    api: ApiServer, batches: Batches, redis_db: RedisServer
) -> None:
    made = batches.create([line(str(n), "echo", n) for n in range(3)], ECHO)
    assert batches.client.batches.cancel(made.id).status == "cancelling"
    execute(api, redis_db.url)
    batch = batches.client.batches.retrieve(made.id)
    assert (batch.status, batch.in_progress_at) == ("cancelled", None)
    assert batch.cancelled_at >= batch.cancelling_at
    good, bad = batches.both(batch)
    assert (good, sorted(bad)) == ({}, ["0", "1", "2"])
    assert {row["error"]["code"] for row in bad.values()} == {"batch_cancelled"}


def test_without_an_api_a_batch_waits_and_goes_on(
    api: ApiServer, batches: Batches, redis_db: RedisServer
) -> None:
    made = batches.create([line("a", "echo", 1)], ECHO)
    files = api.services.of(FileService)
    lease = files.batches.claim()
    assert lease is not None
    unknown = Client("http://127.0.0.1:1", retry_s=0)
    BatchExecution(lease, files.store, files.batches, unknown, Settings()).run()
    assert batches.client.batches.retrieve(made.id).status == "validating"
    assert files.batches.claim() is None, "it is left alone for some seconds"
    with redis_db.client() as client:
        client.zadd("hr:batches:open", {made.id: 0})
    with FakeWorker(redis_db.url, "echo"):
        execute(api, redis_db.url)
    assert batches.client.batches.retrieve(made.id).status == "completed"


def test_batches_and_files_are_their_keys_alone(redis_db: RedisServer, tmp_path: Path) -> None:
    with api_keys_at(redis_db.url) as keys:
        texts = [keys.create(name, [Scope.SUBMIT, Scope.READ])[1] for name in ("one", "two")]
    acting = internal_key(redis_db.url)
    models = write_models(tmp_path)
    with (
        api_process(redis_db.url, models, auth="on") as process,
        sdk(process.url, texts[0]) as one,
        sdk(process.url, texts[1]) as two,
        api_server(redis_db.url, catalog(echo={})) as inside,
        FakeWorker(redis_db.url, "echo"),
    ):
        mine, theirs = Batches(one), Batches(two)
        made = mine.create([line("a", "echo", {"x": 1})], ECHO)
        with (
            sdk(process.url) as unknown,
            pytest.raises(openai.AuthenticationError) as caught,
        ):
            unknown.batches.list()
        assert caught.value.code == "invalid_api_key"

        def drive_for(owner: str) -> None:
            files = inside.services.of(FileService)
            lease = files.batches.claim()
            assert lease is not None
            assert lease.batch.spec.owner == owner
            client = Client(process.url, api_key=acting, headers={ACTS_FOR: owner}, retry_s=1)
            BatchExecution(lease, files.store, files.batches, client, Settings()).run()

        drive_for(texts[0].split("_")[1])
        batch = mine.client.batches.retrieve(made.id)
        assert batch.status == "completed"
        assert list(mine.rows(batch.output_file_id)) == ["a"]
        hidden = [batch.input_file_id, batch.output_file_id]
        for call, names in (
            (theirs.client.batches.retrieve, [batch.id]),
            (theirs.client.batches.cancel, [batch.id]),
            (theirs.client.files.retrieve, hidden),
            (theirs.client.files.content, hidden),
            (theirs.client.files.delete, hidden),
        ):
            for name in names:
                with pytest.raises(openai.NotFoundError):
                    call(name)
        assert theirs.client.files.list().data == theirs.client.batches.list().data == []
        with pytest.raises(openai.BadRequestError, match="there is no file"):
            theirs.client.batches.create(
                input_file_id=hidden[0], endpoint=ECHO, completion_window="24h"
            )
        assert len(mine.client.files.list().data) == 2

        # Without the right to read there are no results to write down.
        with api_keys_at(redis_db.url) as keys:
            submits = keys.create("three", [Scope.SUBMIT])[1]
        with sdk(process.url, submits) as third:
            unread = Batches(third).create([line("a", "echo", 1)], ECHO)
        drive_for(submits.split("_")[1])
        found = inside.services.of(FileService).batches.get(unread.id)
        assert (found.status, found.errors[0].code) == ("failed", "forbidden")
        assert found.errors[0].message.startswith("a batch needs an API key with the scopes submit")

        # Whose key is revoked has nothing run any more.
        last = mine.create([line("b", "echo", 2)], ECHO)
        with api_keys_at(redis_db.url) as keys:
            keys.revoke(texts[0].split("_")[1])
        drive_for(texts[0].split("_")[1])
        found = inside.services.of(FileService).batches.get(last.id)
        assert (found.status, found.errors[0].code) == ("failed", "unauthorized")
        swept(inside, redis_db)


def test_a_runner_trusts_the_certificate_of_its_own_api_alone(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    ours, other = (Authority(tmp_path, name).sign(name) for name in ("ours", "other"))
    tls = {"tls_cert_file": ours.cert_file, "tls_key_file": ours.key_file}
    with api_server(redis_db.url, catalog(echo={}), **tls) as server:
        with ApiClient(server.url, Settings(tls_cert_file=ours.cert_file)) as client:
            assert [model.name for model in client.models()] == ["echo"]
        with (
            ApiClient(server.url, Settings(tls_cert_file=other.cert_file), retry_s=0) as client,
            pytest.raises(ServerUnreachable, match="certificate"),
        ):
            client.models()


def test_the_batch_object_has_the_fields_of_openai(batches: Batches, api: ApiServer) -> None:
    made = batches.create([line("a", "echo", 1)], ECHO)
    shown = json.loads(api.http.get(f"/v1/batches/{made.id}").content)
    assert set(openai.types.Batch.model_fields) - {"usage"} <= set(shown)
    batches.client.batches.cancel(made.id)
