"""Predictions over TorchServe's URLs, with a worker that answers what a test wants."""

from __future__ import annotations

import base64
import json
import socket
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from api.components import model_status
from extensions.torchserve.config.settings import TorchServeConfig, write_config
from headrace.jobs.message import Message
from headrace.jobs.options import read_details
from headrace.jobs.values.encoding import kombu_bytes
from headrace.redis import keys
from headrace.redis.fields import JobField
from headrace.response import ErrorResponse, ResponseDetails, with_details
from tests.harness.fakes.worker import Answer, FakeWorker, echo, failure, publish_state
from tests.harness.servers.api_server import ApiServer, api_server, catalog
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until

LIMIT_BYTES = 4096
UNAVAILABLE = "ServiceUnavailableException"
NOT_KEPT = "no-cache; no-store, must-revalidate, private"


@pytest.fixture(scope="module")
def _server(
    _servers: dict[str, RedisServer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiServer]:
    path = tmp_path_factory.mktemp("torchserve") / "config.properties"
    config = TorchServeConfig(
        disable_token_authorization=True, max_response_size=LIMIT_BYTES, cors_allowed_origin="*"
    )
    write_config(path, config)
    models = catalog(
        mar={"handler": "torchserve:handler.py", "max_queue_depth": 2},
        native={},
        stopped={"total_replicas": 0},
        broken={},
        late={"handler": "torchserve:handler.py"},
        late_native={},
    )
    settings = {"torchserve": path, "body_limit_bytes": LIMIT_BYTES}
    with api_server(_servers["valkey9"].url, models, **settings) as server:
        yield server


@pytest.fixture
def api(_server: ApiServer, redis_db: RedisServer) -> ApiServer:
    """An API with TorchServe's URLs on its only port, over a clean Redis."""
    assert redis_db.url == _server.redis_url
    return _server


def answering(redis_db: RedisServer, answer: Answer, model: str = "mar") -> FakeWorker:
    return FakeWorker(redis_db.url, model, lambda _: answer)


def error_of(response: httpx2.Response) -> tuple[int, str]:
    """The code and type of an error, after a look at its form."""
    body = response.json()
    assert list(body) == ["code", "type", "message"]
    assert body["code"] == response.status_code
    assert body["message"]
    assert response.text == json.dumps(body, indent=2, ensure_ascii=False) + "\n"
    assert response.headers["content-type"] == "application/json"
    return response.status_code, body["type"]


def seen(redis_db: RedisServer, send: Callable[[], httpx2.Response]) -> Message:
    """The message of the job that a request makes."""
    messages: list[Message] = []

    def answer(message: Message) -> Answer:
        messages.append(message)
        return Answer()

    with FakeWorker(redis_db.url, "mar", answer):
        assert send().status_code == 200
    (message,) = messages
    return message


def test_a_prediction_is_the_body_that_the_handler_returns(
    api: ApiServer, redis_db: RedisServer
) -> None:
    with answering(redis_db, Answer(result=b'{"cat":0.5}')):
        response = api.http.post("/predictions/mar", content=b"\xff")
    assert response.status_code == 200
    assert response.content == b'{\n  "cat": 0.5\n}'
    headers = response.headers
    assert "content-type" not in headers
    assert headers["content-length"] == str(len(response.content))
    assert (headers["pragma"], headers["cache-control"]) == ("no-cache", NOT_KEPT)
    assert headers["expires"] == "Thu, 01 Jan 1970 00:00:00 UTC"
    assert headers["access-control-allow-origin"] == "*"
    job = headers["headrace-job"]
    assert headers["x-request-id"] == job
    assert api.http.get(f"/api/v1/jobs/{job}").json()["status"] == "succeeded"


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
def test_any_method_predicts(api: ApiServer, redis_db: RedisServer, method: str) -> None:
    with answering(redis_db, Answer(result=b'"OK"')):
        assert api.http.request(method, "/predictions/mar/").content == b"OK"


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/predictions/mar", {"url_path": "", "explain": "False"}),
        ("/predictions/mar/1.0/v1/models", {"url_path": "v1/models", "explain": "False"}),
        ("/explanations/mar", {"url_path": "", "explain": "True"}),
        ("/v1/models/mar:explain", {"url_path": "", "explain": "True"}),
        ("/v2/models/mar/infer", {"url_path": "", "explain": "False"}),
    ],
)
def test_a_handler_of_torchserve_gets_all_headers(
    api: ApiServer, redis_db: RedisServer, path: str, headers: dict[str, str]
) -> None:
    sent = [(b"X-Own", "é".encode()), (b"Explain", b"no")]
    message = seen(redis_db, lambda: api.http.post(path, json=[1], headers=sent))
    assert message.input == b"[1]"
    assert message.details is not None
    found = read_details(message.details.text())
    assert not found.nested
    assert found.headers["x-own"] == "é"
    assert found.headers["content-type"] == "application/json"
    assert found.headers.items() >= headers.items()


def test_a_form_is_an_object_of_binary_inputs(api: ApiServer, redis_db: RedisServer) -> None:
    files = {"data": ("a.jpg", b"\xff\xd8", "image/jpeg")}
    message = seen(redis_db, lambda: api.http.post("/predictions/mar", files=files))
    assert message.details is not None
    assert message.details.nested
    kind = "application/octet-stream"
    encoded = base64.b64encode(b"\xff\xd8").decode()
    assert json.loads(message.input) == {"data": {"content_type": kind, "base64": encoded}}


@pytest.mark.parametrize(
    "path", ["/invocations?model_name=mar&x=1", "/models/mar/invoke?x=1", "/mar/predict?x=1"]
)
def test_the_query_is_an_input_on_some_urls(
    api: ApiServer, redis_db: RedisServer, path: str
) -> None:
    message = seen(redis_db, lambda: api.http.post(path, json=[1]))
    assert message.details is not None
    assert message.details.nested
    assert json.loads(message.input).keys() - {"model_name"} == {"x", "body"}


def test_the_query_of_a_prediction_is_ignored(api: ApiServer, redis_db: RedisServer) -> None:
    message = seen(redis_db, lambda: api.http.post("/predictions/mar?x=1&priority=9", json=[1]))
    assert message.input == b"[1]"


def test_invocations_find_the_model_in_the_form(api: ApiServer, redis_db: RedisServer) -> None:
    form = {"model_name": "mar", "x": "1"}
    message = seen(redis_db, lambda: api.http.post("/invocations", data=form))
    assert json.loads(message.input).keys() == {"model_name", "x"}
    assert error_of(api.http.post("/invocations", json=[1])) == (400, "BadRequestException")


def test_a_native_model_gets_the_input_of_the_native_route(
    api: ApiServer, redis_db: RedisServer
) -> None:
    with FakeWorker(redis_db.url, "native", echo):
        assert api.http.post("/predictions/native", json={"a": 1}).json() == {"a": 1}
        refused = api.http.post(
            "/predictions/native", content=b"{", headers={"content-type": "application/json"}
        )
    assert error_of(refused) == (400, "BadRequestException")
    assert error_of(api.http.post("/explanations/native")) == (400, "BadRequestException")


def test_bytes_come_back_as_they_are(api: ApiServer, redis_db: RedisServer) -> None:
    answer = Answer(
        result=kombu_bytes(b"\x00\xff"), extra=JobField.RESULT_TYPE,
        value="application/octet-stream",
    )  # fmt: skip
    with answering(redis_db, answer):
        response = api.http.post("/predictions/mar")
    assert response.content == b"\x00\xff"
    assert "content-type" not in response.headers


def test_a_handler_sets_status_headers_and_type(api: ApiServer, redis_db: RedisServer) -> None:
    headers = {"content-type": "text/plain", "dummy": "1", "Content-Length": "99"}
    kind = with_details("text/plain", ResponseDetails(201, headers))
    answer = Answer(result=kombu_bytes(b"hi"), extra=JobField.RESULT_TYPE, value=kind)
    with answering(redis_db, answer):
        response = api.http.post("/predictions/mar")
    assert (response.status_code, response.text) == (201, "hi")
    assert (response.headers["content-type"], response.headers["dummy"]) == ("text/plain", "1")


def failed_with(response: ErrorResponse) -> Answer:
    error = {"type": "handler-error", "message": "not today", "response": response}
    return failure("handler-error", "not today")._replace(value=msgspec.json.encode(error).decode())


def test_a_handler_sets_the_status_of_a_failure(api: ApiServer, redis_db: RedisServer) -> None:
    with answering(redis_db, failed_with(ErrorResponse(507, body=b"Invalid response"))):
        response = api.http.post("/predictions/mar")
    assert (response.status_code, response.text) == (507, "Invalid response")
    assert "content-type" not in response.headers


def test_a_code_without_a_body_is_an_error_of_torchserve(
    api: ApiServer, redis_db: RedisServer
) -> None:
    with answering(redis_db, failed_with(ErrorResponse(599))):
        response = api.http.post("/predictions/mar")
    assert error_of(response) == (599, "InternalServerException")
    assert response.json()["message"] == "not today"


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("handler-error", (503, "InternalServerException")),
        ("out-of-memory", (507, "InternalServerException")),
        ("timeout", (500, "InternalServerException")),
        ("replica-lost", (500, "InternalServerException")),
        ("expired", (408, "RequestTimeoutException")),
    ],
)
def test_a_failed_job_is_an_error_of_torchserve(
    api: ApiServer, redis_db: RedisServer, code: str, answer: tuple[int, str]
) -> None:
    with answering(redis_db, failure(code, "it went wrong")):
        response = api.http.post("/predictions/mar")
    assert error_of(response) == answer
    assert response.json()["message"] == "it went wrong"
    assert response.headers["headrace-job"]


def test_a_result_above_the_limit_is_an_error(api: ApiServer, redis_db: RedisServer) -> None:
    with answering(redis_db, Answer(result=b'"%b"' % (b"x" * (LIMIT_BYTES + 1)))):
        response = api.http.post("/predictions/mar")
    assert error_of(response) == (500, "InternalServerException")
    assert response.headers["headrace-job"] in response.json()["message"]


@pytest.mark.parametrize("text", ["x" * LIMIT_BYTES, "\n" * LIMIT_BYTES, "é" * (LIMIT_BYTES // 2)])
def test_a_text_of_the_limit_is_sent(api: ApiServer, redis_db: RedisServer, text: str) -> None:
    """Its quotes and escapes in JSON are not."""
    with answering(redis_db, Answer(result=json.dumps(text).encode())):
        assert api.http.post("/predictions/mar").text == text
    with answering(redis_db, Answer(result=json.dumps(text + "x").encode())):
        assert error_of(api.http.post("/predictions/mar"))[0] == 500


def test_a_body_above_the_limit_has_an_answer_without_a_body(api: ApiServer) -> None:
    response = api.http.post("/predictions/mar", content=b"x" * (LIMIT_BYTES + 1))
    assert (response.status_code, response.content) == (413, b"")


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/predictions/nobody", (404, "ModelNotFoundException")),
        ("/predictions/mar/9", (404, "ModelVersionNotFoundException")),
        ("/wfpredict/nothing", (404, "WorkflowNotFoundException")),
        ("/nothing", (404, "ResourceNotFoundException")),
        ("/v2", (404, "ResourceNotFoundException")),
        ("/predictions/stopped", (503, "ServiceUnavailableException")),
    ],
)
def test_what_is_not_there_is_an_error(api: ApiServer, path: str, answer: tuple[int, str]) -> None:
    response = api.http.post(path, json=1)
    assert error_of(response) == answer
    assert uuid.UUID(response.headers["x-request-id"]).version == 4


@pytest.mark.leaves_keys
def test_a_model_that_cannot_be_loaded_has_no_worker(api: ApiServer, redis_db: RedisServer) -> None:
    def asked() -> httpx2.Response:
        return api.http.post("/predictions/broken", headers={"Prefer": "respond-async"})

    with redis_db.client() as client:
        publish_state(client, "w", "broken", "failed", ready=0, error="Traceback…\nValueError: no")
        # The states of the workers are read once a second.
        wait_until(lambda: asked().status_code == 503, "the failure is known")
    response = asked()
    assert error_of(response) == (503, UNAVAILABLE)
    assert "ValueError: no" in response.json()["message"]


@pytest.mark.leaves_keys
@pytest.mark.parametrize("model", ["late", "late_native"])
def test_a_request_that_waits_for_a_load_ends_when_it_fails(
    api: ApiServer, redis_db: RedisServer, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setattr(model_status, "LOAD_LOOK_S", 0.2)
    with redis_db.client() as client, ThreadPoolExecutor() as pool:
        publish_state(client, "w", model, "loading", ready=0)
        waiting = pool.submit(api.http.post, f"/predictions/{model}")
        wait_until(lambda: client.llen(keys.queue_name(model)), "it waits")
        publish_state(client, "w", model, "failed", ready=0, error="Traceback…\nValueError: no")
        response = waiting.result(60)
    assert error_of(response) == (503, UNAVAILABLE)
    assert "ValueError: no" in response.json()["message"]
    (queue,) = [q for q in api.http.get("/api/v1/queues").json()["queues"] if q["model"] == model]
    assert sum(queue["depth"].values()) == 0, "its job is cancelled"


@pytest.mark.leaves_keys
def test_a_full_queue_is_told_apart_from_no_worker(api: ApiServer) -> None:
    for _ in range(2):
        deferred = api.http.post("/predictions/mar", headers={"Prefer": "respond-async"})
        assert deferred.status_code == 202
    response = api.http.post("/predictions/mar")
    assert error_of(response) == (503, "QueueFullException")
    assert int(response.headers["retry-after"]) > 0


def test_a_client_that_prefers_it_gets_the_job(api: ApiServer, redis_db: RedisServer) -> None:
    response = api.http.post("/predictions/mar", json=1, headers={"Prefer": "respond-async"})
    assert response.status_code == 202
    assert response.headers["preference-applied"] == "respond-async"
    job = response.json()
    assert job["status"] == "queued"
    assert response.headers["location"] == f"/api/v1/jobs/{job['id']}"
    with FakeWorker(redis_db.url, "mar", echo):
        ended = api.http.get(response.headers["location"], params={"wait": 30}).json()
    assert (ended["status"], ended["result"]) == ("succeeded", 1)


def test_a_client_that_prefers_it_waits_for_a_moment(api: ApiServer, redis_db: RedisServer) -> None:
    with FakeWorker(redis_db.url, "mar", echo):
        preferred = {"Prefer": "respond-async, wait=30"}
        response = api.http.post("/predictions/mar", json="now", headers=preferred)
    assert (response.status_code, response.text) == (200, "now")


def queued(client: Any) -> int:
    return int(client.llen(keys.queue_name("mar")))


def hang_up_while_waiting(api: ApiServer, client: Any, path: str) -> None:
    with closing(socket.create_connection(("127.0.0.1", api.port), 60)) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
        connection.sendall(head.encode())
        wait_until(lambda: queued(client) == 1, "the job is queued")


@pytest.mark.leaves_keys
def test_a_client_that_hangs_up_cancels_what_has_not_started(
    api: ApiServer, redis_db: RedisServer
) -> None:
    def status() -> Any:
        (job,) = api.http.get("/api/v1/jobs", params={"model": "mar"}).json()["jobs"]
        return job["status"]

    with redis_db.client() as client:
        hang_up_while_waiting(api, client, "/predictions/mar")
    wait_until(lambda: status() == "cancelled", "the job is cancelled")
    assert api.services.waiters.count == 0


def test_the_health_of_the_models_is_that_of_their_workers(
    api: ApiServer, redis_db: RedisServer
) -> None:
    unhealthy = api.http.get("/ping")
    assert (unhealthy.status_code, unhealthy.text) == (500, '{\n  "status": "Unhealthy"\n}\n')
    with redis_db.client() as client:
        for model in ("mar", "broken", "late", "late_native"):
            publish_state(client, "w", model, "ready")
        publish_state(client, "w", "native", "loading", ready=0)
        healthy = api.http.get("/ping")
        assert (healthy.status_code, healthy.text) == (200, '{\n  "status": "Healthy"\n}\n')
        publish_state(client, "w", "native", "failed", ready=0)
        assert api.http.get("/ping").status_code == 500


def test_the_port_is_described(api: ApiServer) -> None:
    for described in (api.http.options("/"), api.http.get("/api-description")):
        assert described.status_code == 200
        document = described.json()
        assert document["openapi"] == "3.0.1"
        assert {"/predictions/{model_name}", "/models", "/metrics"} <= document["paths"].keys()
    assert error_of(api.http.get("/")) == (405, "MethodNotAllowedException")


def test_a_model_is_described(api: ApiServer) -> None:
    assert "/predictions/mar" in api.http.options("/predictions/mar").json()["paths"]
    unknown = api.http.options("/predictions/nobody")
    assert error_of(unknown) == (404, "ModelNotFoundException")


def test_the_native_api_is_beside_it(api: ApiServer) -> None:
    assert api.http.get("/api/v1/models").status_code == 200
    assert api.http.get("/live").status_code == 200
    # In this form are the errors of the native API.
    assert api.http.get("/api/predict").headers["content-type"] == "application/problem+json"


def test_a_request_id_of_the_client_is_kept(api: ApiServer, redis_db: RedisServer) -> None:
    with answering(redis_db, Answer()):
        response = api.http.post("/predictions/mar", headers={"x-request-id": "mine"})
    assert response.headers.get_list("x-request-id") == ["mine"]


@pytest.mark.leaves_keys
def test_a_stop_answers_who_waits(redis_db: RedisServer, tmp_path: Path) -> None:
    path = tmp_path / "config.properties"
    write_config(path, TorchServeConfig(disable_token_authorization=True))
    with ThreadPoolExecutor(1) as pool:
        with api_server(redis_db.url, catalog(m={}), torchserve=path) as server:
            asked = pool.submit(httpx2.post, f"{server.url}/predictions/m", timeout=60)
            wait_until(lambda: server.services.waiters.count == 1, "a request waits")
        response = asked.result(60)
    assert error_of(response) == (503, UNAVAILABLE)
    assert response.headers["headrace-job"] in response.json()["message"]
