"""What a client without a key may send and leave unread: trailers, upgrades, pipelines, bodies."""

from __future__ import annotations

import json
import re
import socket
import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from api.http.uvicorn_protocol import PIPELINE_MAX, Protocol
from tests.harness.clients.access import ALL, make_key
from tests.harness.fakes.worker import Answer, claim, settle
from tests.harness.servers.api_server import ApiServer, api_server, catalog
from tests.harness.servers.certificates import Authority
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until

GET = b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /api/v1/models/echo/jobs HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
TEXT = b"Content-Type: text/plain\r\n"
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAA\r\n"
#: A large file that needs no key.
LARGE = b"GET /docs/static/swagger-ui/swagger-ui-bundle.js HTTP/1.1\r\nHost: x\r\n\r\n"
#: More than the buffers of both sockets and a read have room for.
FLOOD_BYTES = 64 * 2**20
API_SETTINGS = {"auth": "on"}


def received(connection: socket.socket) -> bytes:
    """Everything until the server closes."""
    data = b""
    with suppress(ConnectionResetError):
        while more := connection.recv(65_536):
            data += more
    return data


def statuses(received: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", received)]


def sent(api: ApiServer, *parts: bytes) -> bytes:
    """What raw bytes are answered with until the server closes."""
    with api.connect() as connection:
        for part in parts:
            connection.sendall(part)
        return received(connection)


def key_line(redis: RedisServer) -> bytes:
    return b"X-API-Key: %s\r\n" % make_key(redis)[1].encode()


def queued_inputs(redis: RedisServer) -> list[bytes]:
    """The inputs of the jobs that are queued; they end."""
    with redis.client() as client:
        claimed = claim(client, "echo")
        if claimed:
            settle(client, "echo", claimed, [Answer()] * len(claimed))
    return [message.input for message, _ in claimed]


@pytest.mark.parametrize(
    ("first", "endless"),
    [
        (b"0\r\n", b"a:\r\n" * 16_384),
        (b"0\r\na:", b"a" * 65_536),
        (b"0;", b"a" * 65_536),
    ],
    ids=["trailers", "one trailer", "chunk extension"],
)
def test_bytes_behind_the_head_that_bring_no_body_have_an_end(
    api: ApiServer, first: bytes, endless: bytes
) -> None:
    with api.connect() as connection:
        connection.sendall(POST + CHUNKED + b"\r\n" + first)
        answer = connection.recv(65_536)
        with pytest.raises(ConnectionError):
            connection.sendall(endless * (FLOOD_BYTES // len(endless)))
        assert statuses(answer + received(connection)) == [401], "there is no second answer"


OLD_GET = b"GET /live HTTP/1.0\r\nHost: x\r\n"
KEEP = b"Connection: Keep-Alive\r\n"


def test_a_connection_of_http_1_0_stays_open_if_its_client_requests_that(api: ApiServer) -> None:
    answer = sent(api, (OLD_GET + KEEP + b"\r\n") * 2 + OLD_GET + b"\r\n")
    assert statuses(answer) == [200, 200, 200]
    assert answer.count(b"connection: keep-alive") == 2
    assert answer.count(b"connection: close") == 1


def test_without_that_request_it_closes_after_one_answer(api: ApiServer) -> None:
    assert statuses(sent(api, (OLD_GET + b"\r\n") * 2)) == [200]


def test_a_bad_request_behind_one_of_http_1_0_ends_the_connection(api: ApiServer) -> None:
    answer = sent(api, OLD_GET + KEEP + b"\r\n", b"nonsense\r\n\r\n")
    assert statuses(answer)[0] == 200


def test_a_trailer_is_no_header(api: ApiServer, redis_db: RedisServer) -> None:
    trailer = b"1\r\n1\r\n0\r\n" + key_line(redis_db) + b"\r\n"
    answer = sent(
        api,
        POST + CHUNKED + b"\r\n" + trailer + GET.replace(b"x\r\n", b"x\r\nConnection: close\r\n"),
    )
    assert statuses(answer) == [401, 200]
    assert queued_inputs(redis_db) == []


@pytest.mark.parametrize(
    ("framing", "body"),
    [
        (b"Content-Length: 31\r\n", GET),
        (CHUNKED, b"1f\r\n" + GET + b"\r\n0\r\n\r\n"),
    ],
    ids=["length", "chunks"],
)
@pytest.mark.parametrize("together", [True, False], ids=["in one segment", "in two"])
@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
def test_an_upgrade_is_ignored_and_the_body_is_the_input(
    api: ApiServer,
    redis_db: RedisServer,
    framing: bytes,
    body: bytes,
    together: bool,
    protocol: bytes,
) -> None:
    upgrade = H2C.replace(b"h2c", protocol)
    head = POST + key_line(redis_db) + TEXT + upgrade + framing + b"\r\n"
    with api.connect() as connection:
        connection.sendall(head + body if together else head)
        if not together:
            wait_until(lambda: in_progress(api), "the head was read")
            connection.sendall(body)
        # The next request on the connection; it ends it.
        connection.sendall(GET[:-2] + b"Connection: close\r\n\r\n")
        assert statuses(received(connection)) == [202, 200]
    assert [json.loads(queued) for queued in queued_inputs(redis_db)] == [
        {"content_type": "text/plain", "base64": "R0VUIC9saXZlIEhUVFAvMS4xDQpIb3N0OiB4DQoNCg=="}
    ]


def connections(api: ApiServer) -> list[Protocol]:
    found = [*api.server.server_state.connections]
    return [one for one in found if isinstance(one, Protocol)]


def clients(api: ApiServer) -> list[tuple[str, int] | None]:
    return [one.client for one in connections(api)]


def in_progress(api: ApiServer) -> bool:
    """Whether a request waits for its body."""
    cycles = [one.cycle for one in connections(api) if one.cycle is not None]
    return any(not cycle.response_complete for cycle in cycles)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /live HTTP/1.1\r\n", 400),
        (b"GET /live HTTP/1.1\r\nHost: x\r\nHost: x\r\n", 400),
        (b"GET /live HTTP/1.1\r\nHost: x\r\nhost: y\r\n", 400),
        (b"GET /live HTTP/1.0\r\nHost: x\r\nHost: y\r\n", 400),
        (b"GET /live HTTP/1.1\r\nHost:\r\n", 200),
        (b"GET /live HTTP/1.0\r\n", 200),
    ],
)
def test_a_request_has_one_host(api: ApiServer, head: bytes, status: int) -> None:
    assert statuses(sent(api, head + b"Connection: close\r\n\r\n")) == [status]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (b"/api%2fv1/queues", 404),
        (b"/api%2Fv1%2Fqueues", 404),
        (b"/v1%2fmodels", 404),
        (b"/docs%2fstatic/docs.css", 404),
        (b"/%61pi/v1/que%75es", 200),
        (b"/api/v1/queues", 200),
    ],
)
def test_an_encoded_slash_is_not_a_slash(
    api: ApiServer, redis_db: RedisServer, path: bytes, status: int
) -> None:
    key = b"X-API-Key: %s\r\n" % make_key(redis_db, *ALL)[1].encode()
    head = b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    assert statuses(sent(api, head + key + b"\r\n")) == [status]


@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_a_client_that_sends_all_before_it_reads_gets_its_413(
    api: ApiServer, redis_db: RedisServer, framing: str
) -> None:
    size = api.app.settings.body_limit_bytes + 3 * FLOOD_BYTES
    body = bytes(size)
    head = POST + key_line(redis_db) + TEXT + b"Connection: close\r\n"
    if framing == "length":
        answer = sent(api, head + b"Content-Length: %d\r\n\r\n" % size, body)
    else:
        chunks = (b"%x\r\n" % size, body, b"\r\n0\r\n\r\n")
        answer = sent(api, head + CHUNKED + b"\r\n", *chunks)
    assert statuses(answer) == [413]
    assert b"payload-too-large" in answer


def test_a_tunnel_is_refused(api: ApiServer) -> None:
    for target in (b"example.com:80", b"/live"):
        assert statuses(sent(api, b"CONNECT " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")) == [400]


def test_pipelined_requests_are_answered_in_their_order(api: ApiServer) -> None:
    codes = [
        "conflict",
        "queue-full",
        "unauthorized",
        "conflict",
        "job-not-found",
    ]
    asked = b"".join(b"GET /problems/%b HTTP/1.1\r\nHost: x\r\n\r\n" % c.encode() for c in codes)
    with api.connect() as connection:
        connection.sendall(asked)
        answers = b""
        while len(statuses(answers)) < len(codes) or not answers.endswith(b"}"):
            answers += connection.recv(65_536)
    assert re.findall(rb'"type":"/problems/([a-z-]+)"', answers) == [c.encode() for c in codes]


def test_a_pipeline_has_an_end(api: ApiServer) -> None:
    answers = sent(api, GET * 10_000)
    assert statuses(answers) == [200] * (PIPELINE_MAX + 1)
    assert answers.count(b"connection: close") == 1
    with api.connect() as connection:
        connection.sendall(GET * (PIPELINE_MAX + 1))
        answers = b""
        while len(statuses(answers)) <= PIPELINE_MAX:
            answers += connection.recv(65_536)
        connection.sendall(GET)
        assert statuses(connection.recv(65_536)) == [200], "the connection is open"


@pytest.mark.parametrize(
    "behind",
    [b"", b"nonsense\r\n\r\n", POST + b"Content-Length: 1000\r\n\r\n"],
    ids=["asks", "is refused", "owes a body"],
)
def test_a_client_that_never_reads_is_cut_off(hasty: ApiServer, behind: bytes) -> None:
    with socket.socket() as connection:
        never_reads(hasty, connection)
        connection.sendall(LARGE * PIPELINE_MAX + behind)
        own = connection.getsockname()
        wait_until(lambda: own in clients(hasty), "it is connected")
        wait_until(lambda: own not in clients(hasty), "it is cut off")


def test_a_client_that_never_reads_is_cut_off_over_tls(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    own = Authority(tmp_path).sign()
    files = {"tls_cert_file": own.cert_file, "tls_key_file": own.key_file}
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    with (
        api_server(redis_db.url, catalog(echo={}), request_timeout_s=1.0, **files) as api,
        socket.socket() as plain,
    ):
        never_reads(api, plain)
        with anybody.wrap_socket(plain) as connection:
            connection.sendall(LARGE * PIPELINE_MAX)
            address = connection.getsockname()
            wait_until(lambda: address in clients(api), "it is connected")
            wait_until(lambda: address not in clients(api), "it is cut off")


def never_reads(api: ApiServer, connection: socket.socket) -> None:
    """Connect with room for little."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", api.port))


def test_the_rest_of_an_answered_request_has_a_deadline(hasty: ApiServer) -> None:
    with hasty.connect() as connection:
        connection.sendall(POST + b"Content-Length: 1000000\r\n\r\n")
        connection.settimeout(0.1)
        answer = b""
        for _ in range(600):
            try:
                if not (more := connection.recv(65_536)):
                    break
                answer += more
            except TimeoutError:
                # Another byte is not the rest.
                connection.sendall(b"a")
            except ConnectionError:
                break
        else:
            raise AssertionError("it is still connected")
        assert statuses(answer) == [401]


@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"], ids=["stays", "ends"])
def test_an_answer_that_comes_before_the_body_is_not_lost(api: ApiServer, close: bytes) -> None:
    state = api.server.server_state
    before = state.total_requests
    with api.connect() as connection:
        connection.sendall(POST + close + b"Content-Length: 1000000\r\n\r\n")
        wait_until(lambda: state.total_requests > before, "it is answered")
        connection.sendall(bytes(1_000_000))
        if close:
            assert statuses(received(connection)) == [401]
            return
        assert statuses(connection.recv(65_536)) == [401]
        connection.sendall(GET)
        assert statuses(connection.recv(65_536)) == [200]


def test_a_refusal_before_the_body_of_expect_100_continue_ends_the_connection(
    api: ApiServer, redis_db: RedisServer
) -> None:
    expect = b"Expect: 100-continue\r\nContent-Length: 31\r\n\r\n"
    with api.connect() as connection:
        connection.sendall(POST + expect)
        answer = received(connection)
    assert statuses(answer) == [401]
    assert b"\r\nconnection: close\r\n" in answer
    with api.connect() as connection:
        connection.sendall(POST + key_line(redis_db) + TEXT + expect)
        assert connection.recv(65_536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(GET)
        answer = connection.recv(65_536)
        assert statuses(answer) == [202]
        assert b"connection: close" not in answer
        connection.sendall(GET)
        assert statuses(connection.recv(65_536)) == [200]
    assert len(queued_inputs(redis_db)) == 1


@pytest.mark.parametrize(
    "head",
    [
        POST.replace(b"/1.1", b"/2.0"),
        POST.replace(b"/1.1", b"/0.9"),
        POST + b"Transfer-Encoding: gzip, chunked\r\n",
        POST + b"Transfer-Encoding: gzip\r\n" + CHUNKED,
        POST + CHUNKED + CHUNKED,
        POST.replace(b"/1.1", b"/1.0") + CHUNKED,
    ],
    ids=["2.0", "0.9", "gzip, chunked", "gzip and chunked", "chunked twice", "chunks of 1.0"],
)
def test_what_another_server_may_read_differently_is_refused(
    api: ApiServer, redis_db: RedisServer, head: bytes
) -> None:
    body = b"" if CHUNKED not in head and b"chunked" not in head else b"1\r\n1\r\n0\r\n\r\n"
    answer = sent(api, head + key_line(redis_db) + b"\r\n" + body)
    assert statuses(answer) == [400]
    assert b"/problems/invalid-request" in answer
    assert queued_inputs(redis_db) == []


def test_no_second_answer_follows_a_body_that_breaks_after_its_answer(api: ApiServer) -> None:
    with api.connect() as connection:
        connection.sendall(POST + CHUNKED + b"\r\n")
        answer = connection.recv(65_536)
        connection.sendall(b"no length\r\n")
        assert statuses(answer + received(connection)) == [401]
