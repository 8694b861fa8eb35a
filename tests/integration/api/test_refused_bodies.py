"""The body of a refused request is free when its answer was sent, however it is refused."""

from __future__ import annotations

import gc
import json
import resource
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from extensions.torchserve.config.settings import TorchServeConfig, write_config
from headrace.config.inputs.input_schema import InputSection
from tests.harness.clients.access import USER, bearer, http_as, make_key
from tests.harness.fakes.worker import Answer, FakeWorker, failure
from tests.harness.servers.api_server import ApiServer, api_server, catalog
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until

BODY_BYTES: Final = 5_000_000
COUNT: Final = 10
#: What may differ by chance: a few bodies, of which the allocator keeps the memory.
MOST_BYTES: Final = 5 * BODY_BYTES
LONG: Final = "x" * BODY_BYTES
JOBS: Final = "/api/v1/jobs"
ECHO: Final = "/api/v1/models/echo/jobs"
FORM: Final = "multipart/form-data; boundary=b"
NDJSON: Final = "application/x-ndjson"


class Way(NamedTuple):
    """How a route refuses a body; `{n}` in the path is another number each time."""

    method: str
    path: str
    body: bytes
    status: int
    kind: str = "application/json"
    found: bytes = b""


def job(**members: object) -> bytes:
    return json.dumps({"model": "echo", "input": LONG, **members}).encode()


def chat(**members: object) -> bytes:
    message = {"role": "user", "content": LONG}
    return json.dumps({"model": "echo", "messages": [message], **members}).encode()


def form(*parts: tuple[str, bytes], end: bytes = b"--") -> bytes:
    head = b'--b\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
    found = [
        head % (name.encode(), b'; filename="a"' if name in ("file", "data") else b"", body)
        for name, body in parts
    ]
    return b"".join(found) + b"--b" + end + b"\r\n"


X: Final = LONG.encode()
ANY: Final = {
    "bad JSON": Way("POST", JOBS, job()[:-1], 400),
    "an unknown model": Way("POST", JOBS, job(model="none"), 404),
    "a bad option": Way("POST", JOBS, job(options={"priority": 99}), 400),
    "a bad id": Way("PUT", f"{JOBS}/a%20b", job(), 422),
    "two ids": Way("PUT", f"{JOBS}/a", job(id="b"), 400),
    "an input that does not fit": Way("POST", JOBS, job(model="numbers"), 422),
    "an input_ref beside it": Way("POST", JOBS, job(input_ref="file:/a"), 400),
    "a body that is too large": Way("POST", ECHO, X * 2, 413, "text/plain"),
    "a bad form": Way("POST", ECHO, form(("data", X), end=b""), 400, FORM),
    "a form with a broken part": Way("POST", ECHO, b"--b\r\n" + b"!" + X, 400, FORM),
    "a form of two bad parts": Way("POST", ECHO, form(("", X), ("b", b"1")), 400, FORM),
    "text that is no UTF-8": Way("POST", ECHO, b"[" + b"\xff" * BODY_BYTES + b"]", 400),
    "bad lines": Way("POST", f"{JOBS}/bulk", job(no=1), 200, NDJSON, b"invalid-request"),
    "lines of an unknown model": Way(
        "POST", f"{JOBS}/bulk", job(model="none"), 200, NDJSON, b"model-not-found"
    ),
    "a file without a purpose": Way("POST", "/v1/files", form(("file", X)), 400, FORM),
    "a form without a file": Way("POST", "/v1/files", form(("data", X)), 400, FORM),
    "a bad chat": Way("POST", "/v1/chat/completions", chat(tempratur=1), 400),
    "a chat of an unknown model": Way("POST", "/v1/chat/completions", chat(model="none"), 404),
    "too many answers": Way("POST", "/v1/chat/completions", chat(n=128), 413),
    "a response of an unknown model": Way(
        "POST", "/v1/responses", json.dumps({"model": "none", "input": LONG}).encode(), 404
    ),
}  # fmt: skip
#: By who has an id already, a queue that is full, a key at its limit, and a worker.
WITH_ROOM: Final = {
    "an id of another request": Way("PUT", f"{JOBS}/taken", job(), 409),
    "a full queue": Way("POST", "/api/v1/models/full/jobs", X, 429, "text/plain"),
    "lines for a full queue": Way(
        "POST", f"{JOBS}/bulk?hold=0", job(model="full"), 200, NDJSON, b"queue-full"
    ),
    "a chat for a full queue": Way("POST", "/v1/chat/completions", chat(model="full"), 429),
    "a stream for a full queue": Way(
        "POST", "/v1/chat/completions", chat(model="full", stream=True), 429
    ),
    "a response for a full queue": Way(
        "POST", "/v1/responses", json.dumps({"model": "full", "input": LONG}).encode(), 429
    ),
    "a chat that fails": Way("POST", "/v1/chat/completions", chat(model="failing"), 400),
    "a stream that fails": Way(
        "POST", "/v1/chat/completions", chat(model="failing", stream=True), 400
    ),
    "a chat of a model without text": Way("POST", "/v1/chat/completions", chat(), 400),
    "a vector that fails": Way(
        "POST", "/v1/embeddings", json.dumps({"model": "failing", "input": [LONG]}).encode(), 400
    ),
}  # fmt: skip
FULL_STORE: Final = {
    "no room": Way("POST", ECHO, X, 507, "text/plain"),
    "no room for JSON": Way("POST", JOBS, job(), 507),
    "no room under an id": Way("PUT", f"{JOBS}/new", job(), 507),
    "no room, and the id is taken": Way("PUT", f"{JOBS}/taken", job(), 409),
    "no room for a form": Way("POST", ECHO, form(("data", X)), 507, FORM),
    "no room for two parts": Way("POST", ECHO, form(("a", X), ("b", b"1")), 507, FORM),
    "no room for lines": Way(
        "POST", f"{JOBS}/bulk?hold=0", job(), 200, NDJSON, b"payload-storage-full"
    ),
    "no room for a chat": Way("POST", "/v1/chat/completions", chat(), 507),
    "no room for a stream": Way("POST", "/v1/chat/completions", chat(stream=True), 507),
    "no room for a file": Way(
        "POST", "/v1/files", form(("purpose", b"batch"), ("file", X)), 507, FORM
    ),
}  # fmt: skip
TORCHSERVE: Final = {
    "a prediction of an unknown model": Way("POST", "/predictions/none", X, 404, "text/plain"),
    "a prediction that fails": Way("POST", "/predictions/failing", X, 400, "text/plain"),
    "a prediction for a full queue": Way("POST", "/predictions/full", X, 503, "text/plain"),
    "a prediction with a bad form": Way(
        "POST", "/predictions/echo", form(("data", X), end=b""), 400, FORM
    ),
    "a failure of an archive": Way("POST", "/predictions/mar", X, 400, "text/plain"),
    "a registration that is too large": Way("POST", "/models", X, 413),
}  # fmt: skip
#: A short text, so that the number of answers is what is wrong.
SHORT: Final = {"role": "user", "content": LONG[:9000]}
#: What is accepted leaves nothing behind either.
ACCEPTED: Final = {
    "bytes": Way("POST", f"{ECHO}?wait=60", X, 200, "text/plain"),
    "JSON": Way("POST", f"{JOBS}?wait=60", job(), 200),
    "a form": Way("POST", f"{ECHO}?wait=60", form(("data", X)), 200, FORM),
    "lines": Way("POST", f"{JOBS}/bulk", job(), 200, NDJSON, b"queued"),
    "a chat": Way("POST", "/v1/chat/completions", chat(), 200),
    "a stream": Way("POST", "/v1/chat/completions", chat(stream=True), 200),
    "a response": Way(
        "POST", "/v1/responses", json.dumps({"model": "echo", "input": LONG}).encode(), 200
    ),
    "a file": Way("POST", "/v1/files", form(("purpose", b"batch"), ("file", X)), 200, FORM),
}
LIMITED: Final = {
    "a key at its limit": Way("POST", ECHO, X, 429, "text/plain"),
    "a chat of a key at its limit": Way("POST", "/v1/chat/completions", chat(), 429),
    "several answers for a key": Way(
        "POST", "/v1/chat/completions", chat(messages=[SHORT], n=128), 400
    ),
    "lines of a key at its limit": Way(
        "POST", f"{JOBS}/bulk?hold=0", job(), 200, NDJSON, b"too-many-in-flight"
    ),
}

MODELS: Final = catalog(
    echo={},
    full={"max_queue_depth": 1},
    failing={},
    numbers={"inputs": InputSection(schema={"type": "integer"})},
    mar={"handler": "torchserve:handler.py"},
)


@pytest.fixture(autouse=True)
def no_collections(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The collector, which is only the second line, does not run."""
    gc.collect()
    gc.disable()
    monkeypatch.setattr(gc, "collect", lambda: 0)
    yield
    gc.enable()


def memory_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def refuse(api: ApiServer, way: Way, count: int, key: str) -> None:
    headers = {"content-type": way.kind, **(bearer(key) if key else {})}
    for _ in range(count):
        with closing(HTTPConnection("127.0.0.1", api.port, timeout=90)) as connection:
            # Some are refused before their end.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(way.method, way.path, way.body, headers)
            answer = connection.getresponse()
            text = answer.read()
        assert answer.status == way.status, text[:500]
        assert way.found in text, text[:500]


def kept(api: ApiServer, ways: dict[str, Way], key: str = "") -> dict[str, int]:
    """The megabytes that each way leaves behind."""
    found = {}
    for name, way in ways.items():
        refuse(api, way, 3, key)
        before = memory_bytes()
        refuse(api, way, COUNT, key)
        grown = memory_bytes() - before
        if grown > MOST_BYTES:
            found[name] = grown // 1_000_000
    return found


@contextmanager
def serving(server: RedisServer, **settings: Any) -> Iterator[ApiServer]:
    """An API whose jobs are gone at the end."""
    limits = {"body_limit_bytes": BODY_BYTES + 200_000, "file_limit_bytes": 2 * BODY_BYTES}
    try:
        with api_server(server.url, MODELS, **limits, **settings) as api:
            yield api
    finally:
        with server.client() as client:
            client.flushdb()


def refusing(_: object) -> Answer:
    return failure("input-error", "the input is bad")


def test_whatever_is_wrong_with_a_request(redis_db: RedisServer) -> None:
    with serving(redis_db) as api:
        assert kept(api, ANY) == {}


def test_a_job_that_cannot_be_queued_or_fails(redis_db: RedisServer) -> None:
    with (
        serving(redis_db) as api,
        FakeWorker(redis_db.url, "failing", refusing),
        FakeWorker(redis_db.url, "echo", lambda _: Answer(result=b"1")),
    ):
        for model, name in (("full", "first"), ("echo", "taken")):
            assert api.http.put(f"{JOBS}/{name}", json={"model": model, "input": 1}).is_success
        assert kept(api, WITH_ROOM) == {}


def test_a_request_that_is_accepted(redis_db: RedisServer) -> None:
    with (
        serving(redis_db) as api,
        FakeWorker(redis_db.url, "echo", lambda _: Answer(result=b'"text"')),
    ):
        assert kept(api, ACCEPTED) == {}


def test_a_payload_store_without_room(redis_db: RedisServer) -> None:
    with serving(redis_db, max_payload_memory_bytes=BODY_BYTES * 3 // 2) as api:
        for name, value in (("taken", 1), ("stored", LONG)):
            answer = api.http.put(f"{JOBS}/{name}", json={"model": "echo", "input": value})
            assert answer.status_code == 202, answer.text
        assert kept(api, FULL_STORE) == {}


def test_predictions(redis_db: RedisServer, tmp_path: Path) -> None:
    path = tmp_path / "config.properties"
    write_config(path, TorchServeConfig(disable_token_authorization=True, enable_model_api=True))
    with (
        serving(redis_db, torchserve=path) as api,
        FakeWorker(redis_db.url, "failing", refusing),
        FakeWorker(redis_db.url, "mar", refusing),
    ):
        assert api.http.post("/api/v1/models/full/jobs", json=1).is_success
        assert kept(api, TORCHSERVE) == {}


def test_an_api_key_at_its_limit(redis_db: RedisServer) -> None:
    _, key = make_key(redis_db, *USER, in_flight=1)
    with serving(redis_db, auth="on") as api:
        with http_as(api, key) as http:
            assert http.post(ECHO, json=1).is_success
        assert kept(api, LIMITED, key) == {}


def test_a_client_that_hangs_up(redis_db: RedisServer) -> None:
    """The wait of each job ends with the connection."""
    body = chat()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    with serving(redis_db) as api:

        def states() -> set[str]:
            return {one["status"] for one in api.http.get(JOBS).json()["jobs"]}

        def hang_up() -> None:
            with closing(api.connect()) as connection:
                connection.sendall(head + body)
                wait_until(lambda: "queued" in states(), "the job is queued")
            wait_until(lambda: "queued" not in states(), "the job is cancelled")

        hang_up()
        before = memory_bytes()
        for _ in range(COUNT):
            hang_up()
        assert memory_bytes() - before < MOST_BYTES
