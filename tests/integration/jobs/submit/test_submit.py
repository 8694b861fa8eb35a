"""Submit: what bodies become, which options are taken, and what is refused."""

from __future__ import annotations

import base64
import json
import re
import socket
from typing import Any
from urllib.parse import quote

import pytest

from headrace.client.sync_client import Client
from headrace.jobs.message import Message
from headrace.jobs.options import JobOptions
from headrace.jobs.values.encoding import decode_input
from headrace.redis import keys
from headrace.redis.fields import JobField
from tests.harness.fakes.worker import FakeWorker, claim, settle
from tests.harness.fakes.worker import echo as echoed
from tests.harness.servers.api_server import ApiServer
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from tests.integration.conftest import BODY_LIMIT_BYTES

ECHO_JOBS = "/api/v1/models/echo/jobs"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(16)
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def taken(server: RedisServer, model: str = "echo") -> Message:
    """Claim and end the one job that waits."""
    with server.client() as client:
        claimed = claim(client, model)
        assert len(claimed) == 1
        settle(client, model, claimed, [echoed(message) for message, _ in claimed])
    return claimed[0][0]


def refused(response: Any, status: int, code: str) -> dict[str, Any]:
    """The problem that a response must be."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert problem["type"] == f"/problems/{code}"
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    return problem


def test_no_json_at_all_is_called_empty(api: ApiServer) -> None:
    for path in ("/api/v1/models/echo/jobs", "/api/v1/jobs"):
        response = api.http.post(path, headers={"content-type": "application/json"})
        assert (response.status_code, response.json()["detail"]) == (400, "the body is empty")


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_the_body_is_the_input(api: ApiServer, redis_db: RedisServer, method: str) -> None:
    response = api.http.request(method, ECHO_JOBS, json={"x": [1, {}, []]})
    assert response.status_code == 202
    job = response.json()
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-.{12}", job["id"])
    assert response.headers["location"] == job["urls"]["self"] == f"/api/v1/jobs/{job['id']}"
    assert response.headers["retry-after"] == "1"
    assert (job["model"], job["version"], job["status"]) == ("echo", "1.0", "queued")
    message = taken(redis_db)
    assert message.id == job["id"]
    assert message.timeout_s == 60
    assert decode_input(message.input) == ({"x": [1, {}, []]}, "application/json")


def test_json_is_not_written_anew(api: ApiServer, redis_db: RedisServer) -> None:
    text = (
        b'{"big":123456789012345678901, "f":1.0,"e":[],"o":{}, "u":"\\u00e9\xc3\xa9", "a":1,"a":2}'
    )
    headers = {"Content-Type": "application/json"}
    api.http.post(ECHO_JOBS, content=b"  " + text + b"\n", headers=headers)
    assert taken(redis_db).input == text
    body = b'{"model":"echo","input":%s}' % text
    api.http.post("/api/v1/jobs", content=body, headers=headers)
    assert taken(redis_db).input == text


@pytest.mark.parametrize(
    ("body", "content_type", "becomes"),
    [
        (PNG, "image/png", (PNG, "image/png")),
        (PNG, None, (PNG, "image/png")),
        (PNG, FORM["Content-Type"], (PNG, "image/png")),
        (b"\xff\xd8\xff\xe0rest", None, (b"\xff\xd8\xff\xe0rest", "image/jpeg")),
        (b"GIF89a...", None, (b"GIF89a...", "image/gif")),
        (b"RIFF\1\2\3\4WEBPVP8 ", None, (b"RIFF\1\2\3\4WEBPVP8 ", "image/webp")),
        (b'{"a":1}', None, ({"a": 1}, "application/json")),
        (b" [1]\n", FORM["Content-Type"], ([1], "application/json")),
        (b'{"a":1}', "application/vnd.x+json; charset=utf-8", ({"a": 1}, "application/json")),
        ("größe".encode(), None, ("größe", "text/plain")),
        ("größe".encode(), "text/csv; charset=UTF-8", ("größe", "text/csv; charset=UTF-8")),
        (b"{not json", None, ("{not json", "text/plain")),
        (b"\xfe\xff\0", None, (b"\xfe\xff\0", "application/octet-stream")),
        (b"", None, (b"", "application/octet-stream")),
        (b"", "image/png", (b"", "image/png")),
    ],
)
def test_bytes_are_what_they_say_or_what_they_look_like(
    api: ApiServer, redis_db: RedisServer, body: bytes, content_type: str | None, becomes: object
) -> None:
    headers = {"Content-Type": content_type} if content_type else {}
    response = api.http.post(ECHO_JOBS, content=body, headers=headers)
    assert response.status_code == 202, response.text
    assert decode_input(taken(redis_db).input) == becomes


@pytest.mark.parametrize(
    ("files", "becomes"),
    [
        ({"data": ("x.png", PNG, "image/png")}, (PNG, "image/png")),
        ({"body": ("x", b'{"a":1}', "application/json")}, ({"a": 1}, "application/json")),
        # None of several parts is left out: test_parameters.py.
        ({"data": (None, b"1"), "body": ("x", b'{"a":1}', "application/json")},
         ({"data": "1", "body": {"a": 1}}, "application/json")),
        ({"anything": ("x", PNG, "")}, (PNG, "image/png")),
        ({"upload": ("x.bin", b"\0\1", "application/octet-stream")},
         (b"\0\1", "application/octet-stream")),
    ],
)  # fmt: skip
def test_a_form_holds_the_input(
    api: ApiServer, redis_db: RedisServer, files: dict[str, Any], becomes: object
) -> None:
    response = api.http.post(ECHO_JOBS, files=files)
    assert response.status_code == 202, response.text
    assert decode_input(taken(redis_db).input) == becomes


def test_a_form_that_cannot_be_read(api: ApiServer) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    cut = b'--x\r\nContent-Disposition: form-data; name="data"\r\n\r\nabc'
    for body in (cut, b"", b"nonsense"):
        refused(api.http.post(ECHO_JOBS, content=body, headers=headers), 400, "invalid-request")
    headers = {"Content-Type": "multipart/form-data"}
    refused(api.http.post(ECHO_JOBS, content=cut, headers=headers), 400, "invalid-request")
    many = b"".join(b"--x\r\nContent-Disposition: form-data\r\n\r\n\r\n" for _ in range(101))
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    problem = refused(
        api.http.post(ECHO_JOBS, content=many, headers=headers), 400, "invalid-request"
    )
    assert "100 parts" in problem["detail"]


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"Content-Type": "image"}, b"x"),
        ({"Content-Type": "multipart/mixed; boundary=x"}, b"x"),
        ({"Content-Type": "text/plain; charset=utf-16"}, b"x"),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, b"1"),
        ({"Content-Type": "image/png", "Content-Encoding": "br"}, b"1"),
        ({"Content-Type": "a/" + "b" * 300}, b"x"),
    ],
)
def test_a_type_that_cannot_be_read(api: ApiServer, headers: dict[str, str], body: bytes) -> None:
    refused(api.http.post(ECHO_JOBS, content=body, headers=headers), 415, "unsupported-media")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"NaN", b'{"a":1,}', b"[1] 2", b'"\xff"', b"[" * 5000 + b"]" * 5000]
)
def test_what_says_that_it_is_json_and_is_not(api: ApiServer, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    for path in (ECHO_JOBS, "/api/v1/jobs"):
        sent = body if path == ECHO_JOBS else b'{"model":"echo","input":%s}' % body
        refused(api.http.post(path, content=sent, headers=headers), 400, "invalid-request")


def test_bytes_in_json(api: ApiServer, redis_db: RedisServer) -> None:
    value = {"content_type": "image/png", "base64": base64.b64encode(PNG).decode()}
    response = api.http.post(
        "/api/v1/jobs", json={"model": "tiny", "version": "2.1", "input": value}
    )
    assert response.status_code == 202
    assert response.json()["version"] == "2.1"
    assert decode_input(taken(redis_db, "tiny@2.1").input) == (PNG, "image/png")


def test_a_mark_of_the_byte_order_before_json_is_left_out(
    api: ApiServer, redis_db: RedisServer
) -> None:
    mark = b"\xef\xbb\xbf"
    request = mark + b'{"model":"echo","input":{"a":1}}'
    for path, body in (
        (ECHO_JOBS, mark + b'{"a":1}'),
        ("/api/v1/jobs", request),
        ("/api/v1/jobs/bulk", request + b"\n"),
    ):
        kind = "application/x-ndjson" if path.endswith("bulk") else "application/json"
        answer = api.http.post(path, content=body, headers={"content-type": kind})
        assert answer.is_success, answer.text
        assert json.loads(taken(redis_db).input) == {"a": 1}
    chat = mark + b'{"model":"none","messages":[{"role":"user","content":"a"}]}'
    assert api.http.post("/v1/chat/completions", content=chat).status_code == 404
    half = {"model": "echo", "input": "\ud83d"}
    problem = refused(
        api.http.post("/api/v1/jobs", content=json.dumps(half)), 400, "invalid-request"
    )
    assert "half of a surrogate pair" in problem["detail"]


def test_every_option_arrives(api: ApiServer, redis_db: RedisServer) -> None:
    options = {
        "priority": 4, "expires": 100, "timeout": 7.5, "result_ttl": 321, "max_retries": 2,
        "retry_backoff": 0.5, "retry_backoff_max": 12, "metadata": {"batch": "é", "n": [1.5]},
    }  # fmt: skip
    # A countdown and webhooks have tests of their own.
    others = {"countdown", "webhook", "webhook_events"}
    assert options.keys() | others == set(JobOptions.__struct_fields__)
    query = "&".join(
        f"{name}={quote(json.dumps(value) if name == 'metadata' else str(value))}"
        for name, value in options.items()
    )
    body = {"model": "echo", "input": 1, "options": options}
    for path, sent in ((f"{ECHO_JOBS}?{query}", 1), ("/api/v1/jobs", body)):
        response = api.http.post(path, json=sent)
        assert response.status_code == 202, response.text
        job = response.json()
        assert job["metadata"] == options["metadata"]
        assert api.http.get(job["urls"]["self"]).json()["metadata"] == options["metadata"]
        with redis_db.client() as client:
            assert client.llen(keys.step_key("headrace.echo", 3)) == 1
        message = taken(redis_db)
        assert message.timeout_s == 7.5
        assert message.max_retries == 2
        assert (message.retry_backoff_s, message.retry_backoff_max_s) == (0.5, 12)
        assert message.expires_s is not None
        with redis_db.client() as client:
            created_s = int(client.hget(keys.job(job["id"]), JobField.CREATED) or 0) / 1e6
            assert message.expires_s == pytest.approx(created_s + 100, abs=50)
            assert 0 < client.ttl(keys.job(job["id"])) <= 321


@pytest.mark.leaves_keys
def test_a_countdown_schedules(api: ApiServer) -> None:
    response = api.http.post(f"{ECHO_JOBS}?countdown=60", json=1)
    assert response.json()["status"] == "scheduled"
    job = api.http.get(response.headers["location"])
    assert (job.status_code, job.json()["status"]) == (202, "scheduled")


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("priorty=1", "did you mean priority?"),
        ("priority=10", "priority"),
        ("priority=x", "priority"),
        ("priority=1&priority=2", "twice"),
        ("expires=0", "expires"),
        ("expires=nan", "expires"),
        ("timeout=inf", "timeout"),
        ("timeout=null", "timeout: null is not a value"),
        ("metadata=NULL", "metadata: null is not a value"),
        ("countdown=-1", "countdown"),
        ("result_ttl=0", "result_ttl"),
        ("max_retries=1.5", "max_retries"),
        ("metadata={", "metadata"),
        ("metadata=1", "metadata"),
        ("metadata=" + quote(json.dumps({"x": "y" * 4100})), "metadata"),
        ("wait=soon", "wait"),
        ("wait=-1", "wait"),
        ("%ff=1", "query"),
    ],
)
def test_an_option_that_does_not_fit(api: ApiServer, query: str, says: str) -> None:
    problem = refused(api.http.post(f"{ECHO_JOBS}?{query}", json=1), 400, "invalid-request")
    assert says in problem["detail"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"model": "echo"}, "input"),
        ({"input": 1}, "model"),
        ({"model": 1, "input": 1}, "model"),
        ({"model": "echo", "inptu": 1}, "did you mean input?"),
        ({"model": "echo", "input": 1, "options": {"priorty": 1}}, "did you mean priority?"),
        ({"model": "echo", "input": 1, "options": {"priority": 11}}, "options.priority"),
        ({"model": "echo", "input": 1, "options": {"priority": "1"}}, "options.priority"),
        ({"model": "echo", "input": 1, "options": {"metadata": {"x": "y" * 4100}}}, "metadata"),
        ([], "object"),
    ],
)
def test_a_request_that_does_not_fit(api: ApiServer, body: object, says: str) -> None:
    problem = refused(api.http.post("/api/v1/jobs", json=body), 400, "invalid-request")
    assert says in problem["detail"]


@pytest.mark.parametrize("name", ["metadata", "priority", "timeout"])
def test_an_option_beside_the_input_is_told_where_it_goes(api: ApiServer, name: str) -> None:
    body = {"model": "echo", "input": 1, name: {"a": 1}}
    line = api.http.post("/api/v1/jobs/bulk", content=json.dumps(body).encode()).json()["error"]
    for problem in (
        refused(api.http.post("/api/v1/jobs", json=body), 400, "invalid-request"),
        line,
    ):
        assert problem["detail"] == f"unknown member '{name}': it is an option of the job"
        assert problem["remedy"] == f'Put it into options: {{"options": {{"{name}": VALUE}}}}.'


def test_a_job_request_is_json(api: ApiServer) -> None:
    headers = {"Content-Type": "text/csv"}
    refused(api.http.post("/api/v1/jobs", content=b"1", headers=headers), 415, "unsupported-media")
    headers = {"Content-Encoding": "gzip"}
    refused(api.http.post("/api/v1/jobs", content=b"1", headers=headers), 415, "unsupported-media")


def test_a_model_that_is_not_registered(api: ApiServer) -> None:
    problem = refused(api.http.post("/api/v1/models/ecko/jobs", json=1), 404, "model-not-found")
    assert "did you mean echo?" in problem["detail"]
    body = {"model": "nope", "input": 1}
    refused(api.http.post("/api/v1/jobs", json=body), 404, "model-not-found")
    body = {"model": "tiny", "version": "1.0", "input": 1}
    problem = refused(api.http.post("/api/v1/jobs", json=body), 404, "model-not-found")
    assert "2.1" in problem["remedy"]


@pytest.mark.leaves_keys
@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_the_route_of_a_version_is_a_submit_that_names_it(
    api: ApiServer, redis_db: RedisServer, method: str
) -> None:
    path = "/api/v1/models/tiny/versions/2.1/jobs?priority=3"
    by_route = api.http.request(method, path, json={"x": 1})
    assert (by_route.status_code, by_route.json()["requested_version"]) == (202, "2.1")
    options = {"priority": 3}
    body = {"model": "tiny", "version": "2.1", "input": {"x": 1}, "options": options}
    api.http.post("/api/v1/jobs", json=body)
    with Client(api.url) as client:
        client.submit("tiny", {"x": 1}, version="2.1", priority=3)
    with redis_db.client() as redis:
        queue = keys.version_queue("tiny", "2.1")
        messages = redis.lrange(keys.step_key(queue, 3), 0, -1)
    bodies = [{**json.loads(one), "properties": {}, "headers": {}} for one in messages]
    assert len(messages) == 3
    assert bodies[0] == bodies[1] == bodies[2]


@pytest.mark.leaves_keys
def test_the_route_of_a_version_takes_what_the_route_of_its_model_takes(
    api: ApiServer, redis_db: RedisServer
) -> None:
    path = "/api/v1/models/tiny/versions/2.1/jobs"
    key = {"Idempotency-Key": "once"}
    first = api.http.post(path, content=PNG, headers=key)
    again = api.http.post(path, content=PNG, headers={**key, "Prefer": "wait=0"})
    assert first.json()["id"] == again.json()["id"]
    assert again.headers["preference-applied"] == "wait=0"
    # The same key for any version is another request.
    refused(api.http.post("/api/v1/models/tiny/jobs", content=PNG, headers=key), 409, "conflict")
    problem = refused(
        api.http.post("/api/v1/models/tiny/versions/1.0/jobs", json=1), 404, "model-not-found"
    )
    assert "2.1" in problem["remedy"]
    refused(api.http.post(f"{path}?priority=x", json=1), 400, "invalid-request")


def test_curl_forms_of_a_submit(api: ApiServer, redis_db: RedisServer) -> None:
    body = b'{"model":"echo","input":2}'
    assert api.http.post("/api/v1/jobs", content=body, headers=FORM).status_code == 202
    assert taken(redis_db).input == b"2"


def test_a_body_over_the_limit(api: ApiServer, redis_db: RedisServer) -> None:
    at_limit = b"x" * BODY_LIMIT_BYTES
    assert api.http.post(ECHO_JOBS, content=at_limit).status_code == 202
    taken(redis_db)
    problem = refused(api.http.post(ECHO_JOBS, content=at_limit + b"x"), 413, "payload-too-large")
    assert str(BODY_LIMIT_BYTES) in problem["detail"]
    chunks = (b"x" * 65536 for _ in range(BODY_LIMIT_BYTES // 65536 + 4))
    refused(api.http.post(ECHO_JOBS, content=chunks), 413, "payload-too-large")
    assert api.http.post(ECHO_JOBS, json=1).status_code == 202
    taken(redis_db)


def _read_all(connection: socket.socket) -> bytes:
    received = b""
    while chunk := connection.recv(65536):
        received += chunk
    return received


def test_a_body_over_the_limit_is_refused_while_it_streams_in(api: ApiServer) -> None:
    head = b"POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % ECHO_JOBS.encode()
    chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
    with api.connect() as connection:
        connection.sendall(head + chunk * (BODY_LIMIT_BYTES // 0x10000 + 1))
        # The body has not ended; the answer is there all the same, and then the connection's end.
        answer = _read_all(connection)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer
    assert b"/problems/payload-too-large" in answer


def test_a_client_that_sends_all_before_it_reads_is_not_reset(api: ApiServer) -> None:
    head = f"POST {ECHO_JOBS} HTTP/1.1\r\nHost: x\r\nContent-Length: {3 * 2**20}\r\n\r\n"
    with api.connect() as connection:
        connection.sendall(head.encode() + bytes(3 * 2**20))
        assert _read_all(connection).startswith(b"HTTP/1.1 413 ")


def test_a_body_over_the_limit_is_refused_before_it_is_sent(api: ApiServer) -> None:
    head = (
        f"POST {ECHO_JOBS} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
        f"Content-Length: {BODY_LIMIT_BYTES + 1}\r\n\r\n"
    )
    with api.connect() as connection:
        connection.sendall(head.encode())
        assert connection.recv(12) == b"HTTP/1.1 413"


def test_a_client_that_hangs_up_in_the_midst_of_its_body(
    api: ApiServer, redis_db: RedisServer
) -> None:
    head = f"POST {ECHO_JOBS} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc"
    with api.connect() as connection:
        connection.sendall(head.encode())
    assert api.http.post(ECHO_JOBS, json="after").status_code == 202
    assert taken(redis_db).input == b'"after"'


def test_a_full_queue_refuses_and_enqueues_nothing(api: ApiServer, redis_db: RedisServer) -> None:
    for n in range(100):
        assert api.http.post("/api/v1/models/tiny/jobs", json=n).status_code == 202
    response = api.http.post("/api/v1/models/tiny/jobs", json=100)
    problem = refused(response, 429, "queue-full")
    assert "100 jobs" in problem["detail"]
    assert problem["remedy"]
    assert int(response.headers["retry-after"]) >= 1
    with redis_db.client() as client:
        assert client.llen("headrace.tiny") == 100
        settled = claim(client, "tiny", 1)
        settle(client, "tiny", settled, [echoed(message) for message, _ in settled])
        assert api.http.post("/api/v1/models/tiny/jobs", json=100).status_code == 202
    with FakeWorker(redis_db.url, "tiny") as worker:
        wait_until(lambda: len(worker.served) == 100, "all that was admitted has ended")
