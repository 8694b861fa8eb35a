"""Random clients at a real API process: framing, trailers, upgrades, pipelines, slow readers.

Clients that keep to HTTP must receive exactly the answers to their requests, and their jobs exactly
their inputs. After those that do not, the process answers, and it has not grown.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import socket
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple

import httpx2
import psutil
import pytest

from api.http.uvicorn_protocol import PIPELINE_MAX
from tests.harness.clients.access import make_key
from tests.harness.fakes.worker import Answer, claim, settle
from tests.harness.http.plain_http import PLAIN
from tests.harness.servers.api_process import ApiProcess, answers, api_process
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from tests.harness.workers.worker import write_models

pytestmark = pytest.mark.slow

SEEDS: Final = (1, 2)
#: Connections of each kind for one seed.
LAWFUL: Final = 150
LAWLESS: Final = 250
#: Connections that stay open until the memory is read.
HELD: Final = 60
#: Before its limits the API grew by 600 MB for one connection of these kinds.
GROWTH_MAX_BYTES: Final = 150 * 2**20
#: More than the API reads from a client that it has refused.
FLOOD_BYTES: Final = 8 * 2**20

JOBS: Final = b"/api/v1/models/echo/jobs"
LARGE: Final = b"/docs/static/swagger-ui/swagger-ui-bundle.js"
#: What every body of a lawful client contains: a request that must never be answered.
SMUGGLED: Final = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"


class Exchange(NamedTuple):
    """One lawful request: its bytes, its status, and the input of its job if it makes one."""

    request: bytes
    status: int
    input: bytes | None = None


def headers_of(*lines: bytes) -> bytes:
    return b"".join(line + b"\r\n" for line in (b"Host: x", *lines))


def chunked(dice: random.Random, body: bytes) -> bytes:
    """The body in chunks of any size, with extensions and trailers."""
    parts = []
    at = 0
    while at < len(body):
        size = dice.randint(1, len(body) - at)
        extension = dice.choice((b"", b"", b";a=b", b';a="' + b"x" * dice.randrange(2000) + b'"'))
        parts.append(b"%x%b\r\n%b\r\n" % (size, extension, body[at : at + size]))
        at += size
    trailers = b"".join(b"X-T%d: %d\r\n" % (n, n) for n in range(dice.choice((0, 0, 3, 300))))
    return b"".join([*parts, b"0\r\n", trailers, b"\r\n"])


def lawful(dice: random.Random, key: bytes, *, last: bool) -> Exchange:
    """A valid request of any kind; the last one ends the connection."""
    lines = []
    if last:
        lines.append(b"Connection: close")
    elif dice.random() < 0.4:
        upgrade = dice.choice((b"h2c", b"websocket", b"h2c, websocket", b"TLS/1.0"))
        lines += [b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: " + upgrade]
        lines.append(b"HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")
    kind = dice.randrange(4)
    if kind == 0:
        return Exchange(b"GET /live HTTP/1.1\r\n" + headers_of(*lines) + b"\r\n", 200)
    path, status = (b"/nothing", 401) if kind == 1 else (JOBS, 401 if kind == 2 else 202)
    if status == 202:
        lines.append(b"X-API-Key: " + key)
    body = SMUGGLED + dice.randbytes(dice.choice((0, 10, 3000, 100_000)))
    lines.append(b"Content-Type: application/octet-stream")
    dice.shuffle(lines)
    if dice.random() < 0.5:
        lines.append(b"Content-Length: %d" % len(body))
        sent = body
    else:
        lines.append(b"Transfer-Encoding: chunked")
        sent = chunked(dice, body)
    request = b"POST " + path + b" HTTP/1.1\r\n" + headers_of(*lines) + b"\r\n" + sent
    return Exchange(request, status, body if status == 202 else None)


def pieces(dice: random.Random, data: bytes) -> Iterator[bytes]:
    """The data in segments of any size, often in one."""
    cuts = sorted(dice.randrange(len(data) + 1) for _ in range(dice.choice((0, 0, 1, 5))))
    for begin, end in itertools.pairwise([0, *cuts, len(data)]):
        yield data[begin:end]


def lawless(dice: random.Random, key: bytes) -> bytes:
    """Anything else."""
    exchanges = [lawful(dice, key, last=False) for _ in range(dice.randint(1, 3))]
    data = bytearray(b"".join(one.request for one in exchanges))
    odd: tuple[Callable[[], bytes], ...] = (
        lambda: b"a:\r\n" * dice.randrange(300_000),
        lambda: b"a" * dice.randrange(1_000_000),
        lambda: b"0\r\n" + b"a: b\r\n" * dice.randrange(200_000),
        lambda: b"0;" + b"a" * dice.randrange(1_000_000),
        lambda: b"GET /live HTTP/1.1\r\n\r\n" * dice.randrange(20_000),
        lambda: b"\r\n" * dice.randrange(200_000),
        lambda: b"Transfer-Encoding: chunked\r\n",
        lambda: b"Content-Length: %d\r\n" % dice.choice((0, 5, 2**31, 2**64)),
        lambda: (
            b"Transfer-Encoding: " + dice.choice((b"gzip, chunked", b"identity", b"x")) + b"\r\n"
        ),
        lambda: b"Expect: 100-continue\r\n",
        lambda: b"Upgrade: h2c\r\nConnection: Upgrade\r\n",
        lambda: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        lambda: b"CONNECT x:1 HTTP/1.1\r\n\r\n",
        lambda: dice.randbytes(dice.randrange(100)),
    )
    ends = [match.end() for match in re.finditer(rb"\r\n", data)] or [0]
    for _ in range(dice.randint(1, 4)):
        what = dice.randrange(4)
        at = dice.choice((dice.choice(ends), dice.randrange(len(data) + 1)))
        if what == 0:
            data[at:at] = dice.choice(odd)()
        elif what == 1:
            del data[at : at + dice.choice((1, 2, 20))]
        elif what == 2:
            data[at : at + 1] = dice.choice((b"\r", b"\n", b"\0", b" ", b":", b"\xff"))
        else:
            del data[at:]
    return bytes(data[:FLOOD_BYTES])


def received(connection: socket.socket) -> bytes:
    data = b""
    with suppress(ConnectionError):
        while more := connection.recv(65_536):
            data += more
    return data


def statuses(data: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) [A-Z]", data)]


class Site(NamedTuple):
    api: ApiProcess
    redis: RedisServer
    key: bytes

    def connected(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.api.port), 120)

    def memory(self) -> int:
        return int(psutil.Process(self.api.pid).memory_info().rss)

    def connections(self) -> int:
        """How many clients the process is connected to."""
        found = psutil.Process(self.api.pid).net_connections("tcp")
        return sum(one.laddr.port == self.api.port and bool(one.raddr) for one in found)

    def inputs(self) -> Counter[bytes]:
        """The inputs of the queued jobs; they end."""
        found: Counter[bytes] = Counter()
        with self.redis.client() as client:
            while claimed := claim(client, "echo"):
                found.update(message.input for message, _ in claimed)
                settle(client, "echo", claimed, [Answer()] * len(claimed))
        return found


@pytest.fixture
def site(redis_db: RedisServer, tmp_path: Path) -> Iterator[Site]:
    models = write_models(tmp_path, echo={"handler": "echo"})
    settings = {"auth": "on", "request_timeout_s": "5", "inline_limit_bytes": "1000000"}
    key = make_key(redis_db)[1].encode()
    with api_process(redis_db.url, models, **settings) as api:
        yield Site(api, redis_db, key)


def expect_lawful_answers(site: Site, dice: random.Random) -> list[bytes]:
    """Send some lawful requests on one connection; return the inputs of their jobs."""
    count = dice.randint(1, PIPELINE_MAX)
    exchanges = [lawful(dice, site.key, last=n == count - 1) for n in range(count)]
    with site.connected() as connection:
        for piece in pieces(dice, b"".join(one.request for one in exchanges)):
            connection.sendall(piece)
        answer = received(connection)
    assert statuses(answer) == [one.status for one in exchanges]
    assert b"smuggled" not in answer
    return [one.input for one in exchanges if one.input is not None]


def be_lawless(site: Site, dice: random.Random) -> None:
    """Send something and stop; whatever is answered is an answer to a client's mistake."""
    with site.connected() as connection:
        with suppress(OSError):
            for piece in pieces(dice, lawless(dice, site.key)):
                connection.sendall(piece)
            connection.shutdown(socket.SHUT_WR)
        for status in statuses(received(connection)):
            assert status < 500


def hold(site: Site, dice: random.Random) -> socket.socket:
    """Leave a connection in the midst of something, and read nothing of it."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(120)
    connection.connect(("127.0.0.1", site.api.port))
    large = b"GET " + LARGE + b" HTTP/1.1\r\n" + headers_of() + b"\r\n"
    post = b"POST " + JOBS + b" HTTP/1.1\r\n" + headers_of(b"Transfer-Encoding: chunked")
    begun = dice.choice((
        large * PIPELINE_MAX,
        large + b"GET / HTTP/1.1\r\n\r\n" * 60_000,
        post + b"\r\n0\r\n" + b"a:\r\n" * 250_000,
        post + b"\r\n0;" + b"a" * 1_000_000,
        post + b"a:\r\n" * 60_000,
        post + b"\r\n10000\r\n" + bytes(0x8000),
        post[: dice.randrange(len(post))],
        b"",
    ))  # fmt: skip
    connection.setblocking(False)
    with suppress(OSError):
        connection.send(begun)
    return connection


@pytest.mark.parametrize("seed", SEEDS)
def test_lawful_clients_are_answered_and_no_others_do_harm(site: Site, seed: int) -> None:
    dice = random.Random(seed)
    # The first requests import and cache.
    for _ in range(20):
        be_lawless(site, dice)
    site.inputs()
    before = site.memory()
    expected: Counter[bytes] = Counter()
    for _ in range(LAWFUL):
        expected.update(expect_lawful_answers(site, dice))
    found = site.inputs()
    assert found == Counter({wire(body): count for body, count in expected.items()})
    with ExitStack() as stack:
        for _ in range(HELD):
            stack.enter_context(hold(site, dice))
        for _ in range(LAWLESS):
            be_lawless(site, dice)
        grown = site.memory() - before
        wait_until(lambda: site.connections() == 0, "the API has ended what stood still")
    assert grown < GROWTH_MAX_BYTES, f"grown by {grown / 2**20:.0f} MiB"
    with httpx2.Client(base_url=site.api.url, timeout=60, verify=PLAIN) as http:
        assert answers(http, "/live")
    expect_lawful_answers(site, dice)
    site.inputs()


def wire(body: bytes) -> bytes:
    """The wire form of an input of bytes."""
    encoded = {"content_type": "application/octet-stream", "base64": b64encode(body).decode()}
    return json.dumps(encoded, separators=(",", ":")).encode()
