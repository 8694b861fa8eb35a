"""What a request may take: a head that is too long, what stands still, what is no HTTP; CORS."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx2
import pytest

from api.extension import operations
from api.http.uvicorn_protocol import READ_MAX_BYTES
from api.routes.jobs import bulk_submit
from tests.harness.servers.api_server import ApiServer, api_server, catalog
from tests.harness.servers.redis_servers import RedisServer

HEADER_BYTES = 8 * 1024
HEADERS = 20
LINES = 3
HOST = b"Host: localhost\r\n"
GET = b"GET /live HTTP/1.1\r\n" + HOST
ORIGIN = "https://pages.example"
JOBS = "/api/v1/jobs"


API_SETTINGS: dict[str, Any] = {
    "header_limit_bytes": HEADER_BYTES, "header_limit_count": HEADERS,
    "bulk_limit_lines": LINES, "cors_origins": (ORIGIN,),
}  # fmt: skip


def answered(connection: socket.socket) -> tuple[int, dict[str, str], dict[str, Any]]:
    """The last answer before the server closes: status, headers and problem."""
    received = b""
    while data := connection.recv(65_536):
        received += data
    head, _, body = received.rpartition(b"\r\n\r\n")
    lines = head.decode().splitlines()
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    assert headers["content-type"] == "application/problem+json"
    assert headers["connection"] == "close"
    return int(lines[0].split()[1]), headers, json.loads(body)


def exchange(api: ApiServer, *parts: bytes) -> tuple[int, str]:
    """What raw bytes are answered with: the status, and the problem's type."""
    with api.connect() as connection:
        for part in parts:
            connection.sendall(part)
        status, _, problem = answered(connection)
        assert problem["status"] == status
        return status, str(problem["type"])


def padded(size: int) -> bytes:
    return b"X-Padding: " + b"a" * size + b"\r\n"


def test_a_head_that_is_too_long_is_431(api: ApiServer, redis_db: RedisServer) -> None:
    too_long = (431, "/problems/header-too-large")
    assert exchange(api, GET + padded(HEADER_BYTES) + b"\r\n") == too_long
    assert (
        exchange(api, GET, padded(HEADER_BYTES // 2), padded(HEADER_BYTES // 2), b"\r\n")
        == too_long
    )
    target = b"GET /live?" + b"a" * HEADER_BYTES + b" HTTP/1.1\r\n" + HOST + b"\r\n"
    assert exchange(api, target) == too_long
    assert (
        exchange(api, GET + b"".join(b"X-%d: 1\r\n" % n for n in range(HEADERS)) + b"\r\n")
        == too_long
    )
    ok = {"x-padding": "a" * (HEADER_BYTES - 400)}
    assert api.http.get("/live", headers=ok).status_code == 200
    large = {"model": "echo", "input": "x" * 500_000}
    assert api.http.post(JOBS, json=large, params={"wait": 0}).status_code == 202
    with redis_db.client() as client:
        client.flushall()


def test_a_head_without_an_end_is_431_before_it_takes_more_memory(api: ApiServer) -> None:
    with api.connect() as connection:
        connection.sendall(GET + b"X-Padding: ")
        # More than the limit beside the reads in which it begins and may end.
        connection.sendall(b"a" * (HEADER_BYTES + 2 * READ_MAX_BYTES))
        status, _, problem = answered(connection)
    assert (status, problem["type"]) == (431, "/problems/header-too-large")


def test_a_request_without_progress_is_408(hasty: ApiServer) -> None:
    post = (
        b"POST " + JOBS.encode() + b" HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
    )
    letters = b"POST /api/v1/models/echo/dead-letters/purge HTTP/1.1\r\n" + HOST
    begun: list[tuple[bytes, ...]] = [
        (b"G",),
        (GET,),
        (post + b"Content-Length: 100\r\n\r\n", b'{"model"'),
        (post + b"Transfer-Encoding: chunked\r\n\r\n", b"5\r\n{"),
        (letters + b"Content-Length: 9\r\n\r\n{",),
    ]
    with ThreadPoolExecutor(len(begun)) as pool:
        answers = list(pool.map(lambda parts: exchange(hasty, *parts), begun))
    assert answers == [(408, "/problems/request-timeout")] * len(begun)


def test_a_connection_that_sends_nothing_is_closed(hasty: ApiServer) -> None:
    with hasty.connect() as connection:
        assert connection.recv(1) == b""


def test_a_drip_is_no_progress(hasty: ApiServer) -> None:
    post = b"POST " + JOBS.encode() + b" HTTP/1.1\r\n" + HOST + b"Content-Length: 100000\r\n\r\n"
    with hasty.connect() as connection:
        connection.sendall(post)
        connection.settimeout(0.1)
        received = b""
        for _ in range(600):
            try:
                received = connection.recv(65_536)
                break
            except TimeoutError:
                # It may have answered and closed just now.
                with suppress(ConnectionError):
                    connection.sendall(b" ")
        assert received.startswith(b"HTTP/1.1 408 ")


def test_waiting_for_an_answer_or_between_requests_is_not_standing_still(
    hasty: ApiServer, redis_db: RedisServer
) -> None:
    with hasty.connect() as connection:
        for path in (b"/live", b"/api/v1/jobs?limit=1", b"/live"):
            connection.sendall(b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"\r\n")
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")
    job = hasty.http.post(JOBS, json={"model": "echo", "input": 1}).json()
    # Longer than the time limit for requests.
    assert hasty.http.get(f"{JOBS}/{job['id']}?wait=2.5").status_code == 202
    hasty.http.delete(f"{JOBS}/{job['id']}")
    with redis_db.client() as client:
        client.delete("headrace.echo")


@pytest.mark.parametrize(
    "bad",
    [
        b"nonsense\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /live HTTP/9.9\r\n\r\n",
        b"GET /live HTTP/1.1\r\nHost\r\n\r\n", GET + b"Content-Length: x\r\n\r\n",
        GET + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)  # fmt: skip
def test_what_is_no_http_is_a_problem(api: ApiServer, bad: bytes) -> None:
    assert exchange(api, bad) == (400, "/problems/invalid-request")


def test_a_broken_body_is_a_problem_too(api: ApiServer) -> None:
    post = (
        b"POST " + JOBS.encode() + b" HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    )
    assert exchange(api, post, b"no length\r\n") == (400, "/problems/invalid-request")


def test_an_answer_that_is_under_way_is_not_mixed_with_a_refusal(
    api: ApiServer, redis_db: RedisServer
) -> None:
    job = api.http.post(JOBS, json={"model": "echo", "input": 1}).json()
    with api.connect() as connection:
        waiting = (
            b"GET " + f"{JOBS}/{job['id']}?wait=1".encode() + b" HTTP/1.1\r\n" + HOST + b"\r\n"
        )
        connection.sendall(waiting + b"nonsense\r\n\r\n")
        received = b""
        while data := connection.recv(65_536):
            received += data
    assert received.startswith(b"HTTP/1.1 202 ")
    assert received.count(b"HTTP/1.1 ") == 1
    with redis_db.client() as client:
        client.flushall()


def test_a_bulk_request_has_so_many_lines(api: ApiServer, redis_db: RedisServer) -> None:
    line = json.dumps({"model": "echo", "input": 1}) + "\n"
    whole = api.http.post(f"{JOBS}/bulk", content=line * LINES)
    assert len(whole.text.splitlines()) == LINES
    received: list[Any] = []

    def read_on() -> None:
        body = line * (LINES + 50)
        with api.http.stream("POST", f"{JOBS}/bulk", content=body) as answer:
            received.extend(map(json.loads, answer.iter_lines()))

    with pytest.raises(httpx2.RemoteProtocolError):
        read_on()
    assert [("error" in one) for one in received] == [False] * LINES + [True]
    assert received[-1]["error"]["type"] == "/problems/payload-too-large"
    with redis_db.client() as client:
        assert client.llen("headrace.echo") == 2 * LINES
        client.flushall()


def test_a_bulk_body_of_which_nothing_more_comes_is_cut_off_and_its_lines_are_jobs(
    api: ApiServer, redis_db: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_submit, "IDLE_MAX_S", 0.2)
    line = json.dumps({"model": "echo", "input": 1}).encode() + b"\n"
    head = b"POST %s/bulk HTTP/1.1\r\n%s" % (JOBS.encode(), HOST)
    head += b"Content-Type: application/x-ndjson\r\nContent-Length: 1000\r\n\r\n"
    received = b""
    with api.connect() as connection:
        connection.sendall(head + line + b'{"model": ')
        while data := connection.recv(65_536):
            received += data
    assert received.startswith(b"HTTP/1.1 200 ")
    assert received.count(b'"status":"queued"') == 1, (
        "what had come whole is a job, and nothing else"
    )
    assert not received.endswith(b"0\r\n\r\n"), "the answer is cut off, and not ended"
    with redis_db.client() as client:
        assert client.llen("headrace.echo") == 1
        client.flushall()


def test_pages_of_named_origins_may_call_and_no_others(
    api: ApiServer, redis_db: RedisServer
) -> None:
    preflight = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization",
    }
    for path in (JOBS, "/api/v1/queues"):
        allowed = api.http.options(path, headers={"origin": ORIGIN, **preflight})
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == ORIGIN
        refused = api.http.options(path, headers={"origin": "https://evil.example", **preflight})
        assert refused.status_code == 400
        assert "access-control-allow-origin" not in refused.headers
    answer = api.http.get("/api/v1/models", headers={"origin": ORIGIN})
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "Location" in answer.headers["access-control-expose-headers"]
    unseen = api.http.get("/api/v1/models", headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in unseen.headers
    with api_server(redis_db.url, catalog(echo={})) as plain:
        answer = plain.http.options(JOBS, headers={"origin": ORIGIN, **preflight})
        assert answer.status_code == 405
        assert (
            "access-control-allow-origin"
            not in plain.http.get(JOBS, headers={"origin": ORIGIN}).headers
        )


def test_a_page_may_use_all_methods_and_send_the_headers_that_are_read(
    redis_db: RedisServer,
) -> None:
    models = catalog(echo={"headers": ["x-tenant"]}, plain={})
    with api_server(redis_db.url, models, cors_origins=(ORIGIN,)) as api:

        def preflight(method: str, headers: str) -> int:
            asked = {
                "access-control-request-method": method,
                "access-control-request-headers": headers,
            }
            answer = api.http.options(JOBS, headers={"origin": ORIGIN, **asked})
            allowed = answer.headers["access-control-allow-headers"].lower().split(", ")
            assert (answer.status_code == 200) == (set(headers.split(", ")) <= set(allowed))
            return answer.status_code

        for operation in operations():
            names = [header.name.lower() for header in operation.headers]
            assert preflight(operation.method, ", ".join(["authorization", *names])) == 200
        assert preflight("POST", "x-tenant, content-type, traceparent") == 200
        assert preflight("POST", "x-stainless-lang, openai-organization") == 200
        assert preflight("POST", "x-other") == 400
        exposed = api.http.get("/live", headers={"origin": ORIGIN}).headers
        assert {"ETag", "Location", "Content-Range", "Retry-After", "X-Request-ID"} <= set(
            exposed["access-control-expose-headers"].split(", ")
        )


def test_pages_have_security_headers(api: ApiServer) -> None:
    page = api.http.get("/docs")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert page.headers["referrer-policy"] == "no-referrer"
    for path in ("/docs", "/docs/static/docs.css", "/docs/static/docs.js"):
        assert api.http.get(path).headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
def test_a_page_of_another_origin_changes_nothing_without_keys(
    api: ApiServer, redis_db: RedisServer, origin: str
) -> None:
    foreign = {"origin": origin, "content-type": "text/plain"}
    for method, path in (
        ("POST", "/api/v1/queues/headrace.echo/pause"),
        ("POST", "/api/v1/models/echo/jobs"),
        ("DELETE", f"{JOBS}/x"),
        ("POST", "/api/v1/models/echo/dead-letters/purge"),
    ):
        refused = api.http.request(method, path, headers=foreign)
        assert refused.status_code == 403, path
        assert refused.json()["type"] == "/problems/forbidden"
    assert api.http.get("/api/v1/models", headers=foreign).status_code == 200
    for own in (api.url, ORIGIN):
        answer = api.http.post("/api/v1/queues/headrace.echo/resume", headers={"origin": own})
        assert answer.status_code == 200
    with redis_db.client() as client:
        assert client.dbsize() == 0 or not client.exists("headrace.echo", "hr:paused")
