"""An archive's handler over TorchServe's URLs: a real server, worker and model process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from extensions.torchserve.config.settings import TorchServeConfig, write_config
from headrace.config.settings import Settings
from headrace.models.catalog import load_models
from tests.extensions.torchserve.harness.archives import write_archive
from tests.harness.servers.api_server import api_server
from tests.harness.servers.redis_servers import nothing_leaks, redis_server
from tests.harness.workers.worker import Client, celery_worker, write_models

INLINE_BYTES = 1000
LIMIT_BYTES = 25_600
#: What each request asks for is in its header `do`.
HANDLER = """
import time
from ts.utils.util import PredictionException

def handle(data, context):
    if data is None:
        return None
    return [one(place, row, context) for place, row in enumerate(data)]

def one(place, row, context):
    header = lambda name: context.get_request_header(place, name)
    do = header("Do")
    if do == "rows":
        return {name: [type(value).__name__, str(value)] for name, value in row.items()}
    if do == "headers":
        return {name: header(name) for name in ("X-Own", "url_path", "explain")}
    if do == "headers_out":
        context.set_response_content_type(place, "text/plain")
        context.set_response_header(place, "dummy", "1")
        return "typed"
    if do == "status":
        context.set_response_status(507, idx=place)
        return "Invalid response"
    if do == "code":
        raise PredictionException("Some Prediction Error", 599)
    if do == "memory":
        raise MemoryError("no room")
    if do == "raise":
        raise ValueError("this request is bad")
    if do == "nan":
        return {"a": float("nan")}
    if do in ("204", "304"):
        context.set_response_header(place, "etag", "x")
        context.set_response_status(int(do), idx=place)
        return "no response has this body"
    if do == "empty":
        context.set_response_status(204, idx=place)
        return "b" * 5000
    if do == "many_headers":
        for n in range(65):
            context.set_response_header(place, f"x-{n}", "1")
    if do == "long_headers":
        context.set_response_header(place, "x-long", "1" * 10_000)
    if do == "long_headers_of_an_error":
        context.set_response_header(place, "x-long", "1" * 10_000)
        context.set_response_status(404, idx=place)
    if do == "large":
        return "é" * 12800
    if do == "too_large":
        return "é" * 12801
    if do == "large_json":
        return {"n": list(range(1000))}
    return row["body"]
"""


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    folder = tmp_path_factory.mktemp("archive")
    archive = write_archive(folder / "archive", "handler.py", {"handler.py": HANDLER})
    model = {"source": str(archive), "max_batch_size": 4, "version": "1.0"}
    models = write_models(folder, m=model)
    config = folder / "config.properties"
    write_config(
        config, TorchServeConfig(disable_token_authorization=True, max_response_size=LIMIT_BYTES)
    )
    with redis_server() as server:
        settings = Settings(redis_url=server.url, models_file=models, state_dir=folder / "state")
        environ = {
            "HEADRACE_TORCHSERVE": str(config),
            "HEADRACE_STATE_DIR": str(folder / "state"),
            "HEADRACE_INLINE_LIMIT_BYTES": str(INLINE_BYTES),
        }
        with (
            celery_worker(server.url, models, folder, environ=environ) as worker,
            api_server(
                server.url,
                load_models(settings),
                torchserve=config,
                models_file=models,
                state_dir=folder / "state",
                inline_limit_bytes=INLINE_BYTES,
            ) as api,
            Client(server.url, models) as ours,
        ):
            worker.wait_ready("m")
            yield api.http
            nothing_leaks(ours.redis)


def asked(http: httpx2.Client, do: str = "", path: str = "/predictions/m") -> httpx2.Response:
    return http.post(path, headers={"Do": do})


def test_a_body_comes_back_as_it_is(http: httpx2.Client) -> None:
    for body in (b"\x00\xff", b"", bytes(range(256)) * 100):
        response = http.post("/predictions/m", content=body)
        assert (response.status_code, response.content) == (200, body)
        assert "content-type" not in response.headers


def test_the_rows_are_those_of_torchserve(http: httpx2.Client) -> None:
    def rows(**sent: object) -> object:
        return http.post("/predictions/m", headers={"Do": "rows"}, **sent).json()  # type: ignore[arg-type]

    assert rows(json={"a": 1}) == {"body": ["dict", "{'a': 1}"]}
    assert rows(json={"content_type": "x", "base64": "?"})["body"][0] == "dict"  # type: ignore[index]
    assert rows(content=b"hi") == {"body": ["bytearray", "bytearray(b'hi')"]}
    assert rows() == {"body": ["bytearray", "bytearray(b'')"]}
    assert rows(data={"x": "1"}) == {"x": ["bytearray", "bytearray(b'1')"]}
    files = {"data": ("a.txt", b"hi", "text/plain"), "doc": ("b.json", b"[1]", "application/json")}
    assert rows(files=files) == {"data": ["str", "hi"], "doc": ["list", "[1]"]}


def test_the_headers_of_a_request_reach_the_handler(http: httpx2.Client) -> None:
    sent = {"Do": "headers", "X-Own": "1"}
    found = http.get("/explanations/m/1.0/v1/more", headers=sent).json()
    assert found == {"X-Own": "1", "url_path": "v1/more", "explain": "True"}


def test_a_handler_sets_headers(http: httpx2.Client) -> None:
    response = asked(http, "headers_out")
    assert (response.status_code, response.text) == (200, "typed")
    assert (response.headers["content-type"], response.headers["dummy"]) == ("text/plain", "1")


def test_a_handler_sets_a_status(http: httpx2.Client) -> None:
    response = asked(http, "status")
    assert (response.status_code, response.text) == (507, "Invalid response")


@pytest.mark.parametrize("do", ["204", "304", "empty"])
def test_a_status_without_a_body_has_no_length(http: httpx2.Client, do: str) -> None:
    for _ in range(2):  # the next response is read from the same connection
        response = asked(http, do)
        assert response.status_code == int(do.replace("empty", "204"))
        assert response.content == b""
        assert "content-length" not in response.headers
        assert "transfer-encoding" not in response.headers
        assert response.headers.get("etag") == (None if do == "empty" else "x")
    assert asked(http, "headers_out").text == "typed"


@pytest.mark.parametrize(
    ("do", "message"),
    [
        ("many_headers", "the handler set 65 headers"),
        ("long_headers", "the handler set headers of 10006 bytes"),
        ("long_headers_of_an_error", "the handler set headers of 10006 bytes"),
    ],
)
def test_headers_that_no_client_would_read_fail_their_job_alone(
    http: httpx2.Client, do: str, message: str
) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda one: asked(http, one), [do, "headers_out"] * 4))
    for response in found[::2]:
        assert (response.status_code, response.json()["type"]) == (503, "InternalServerException")
        assert response.json()["message"].startswith(message)
    assert [response.text for response in found[1::2]] == ["typed"] * 4


@pytest.mark.parametrize(
    ("do", "code", "message"),
    [
        ("code", 599, "Some Prediction Error"),
        ("memory", 507, "no room"),
        ("raise", 503, "this request is bad"),
    ],
)
def test_an_exception_is_an_error(http: httpx2.Client, do: str, code: int, message: str) -> None:
    response = asked(http, do)
    assert response.status_code == code
    assert response.json()["type"] == "InternalServerException"
    assert message in response.json()["message"]


def test_results_are_written_as_torchserve_writes_them(http: httpx2.Client) -> None:
    assert asked(http, "nan").text == '{\n  "a": NaN\n}'
    assert asked(http, "large").text == "é" * (LIMIT_BYTES // 2)
    assert asked(http, "large_json").text == json.dumps({"n": list(range(1000))}, indent=2)
    refused = asked(http, "too_large")
    assert refused.status_code == 500
    assert f"has {LIMIT_BYTES + 2} bytes, more than max_response_size" in refused.json()["message"]
