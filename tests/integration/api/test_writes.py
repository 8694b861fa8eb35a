"""What a client of the real protocol class receives, and in how many writes."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn

from api.http.uvicorn_protocol import JoinedWrites, protocol_with
from headrace.config.settings import Settings
from tests.harness.wait import wait_until

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
START = {"type": "http.response.start", "status": 200}
SIZED = {**START, "headers": [(b"content-length", b"2")]}


class App:
    """Answers by path; what waits goes on once `go` is set."""

    def __init__(self) -> None:
        self.go = threading.Event()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await getattr(self, scope["path"].strip("/"))(receive, send)

    async def plain(self, _: Receive, send: Send) -> None:
        await send(SIZED)
        await send({"type": "http.response.body", "body": b"ok"})

    async def late(self, _: Receive, send: Send) -> None:
        await send(START)
        await asyncio.to_thread(self.go.wait, 30)
        await send({"type": "http.response.body", "body": b"ok"})

    async def echo(self, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        await send({**START, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    async def empty(self, _: Receive, send: Send) -> None:
        await send({**START, "status": 204})
        await send({"type": "http.response.body"})


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Every write that reaches the event loop's transport."""
    seen: list[bytes] = []
    made = JoinedWrites.__init__

    def init(self: JoinedWrites, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        made(self, transport, loop)

        def write(data: bytes | bytearray | memoryview[Any]) -> None:
            seen.append(bytes(data))
            transport.write(data)

        self._write = write

    monkeypatch.setattr(JoinedWrites, "__init__", init)
    return seen


@pytest.fixture
def address(app: App, writes: list[bytes]) -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=protocol_with(Settings()),
                loop="uvloop",
                lifespan="off",
                log_config=None,
            )
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            wait_until(lambda: server.started, "the server has started")
            yield listener.getsockname()
        finally:
            app.go.set()
            server.should_exit = True
            thread.join(60)


@contextmanager
def connected(address: tuple[str, int]) -> Iterator[socket.socket]:
    with socket.create_connection(address, timeout=20) as client:
        yield client


def request(path: str, extra: str = "") -> bytes:
    return f"GET /{path} HTTP/1.1\r\nHost: x\r\n{extra}\r\n".encode()


def read_until(client: socket.socket, end: bytes) -> bytes:
    got = b""
    while not got.endswith(end):
        data = client.recv(65536)
        assert data, got
        got += data
    return got


def test_head_and_body_leave_in_one_write(address: tuple[str, int], writes: list[bytes]) -> None:
    with connected(address) as client:
        for _ in range(3):
            client.sendall(request("plain"))
            read_until(client, b"\r\n\r\nok")
    assert len(writes) == 3


def test_a_head_whose_body_is_late_does_not_wait_for_it(address: tuple[str, int], app: App) -> None:
    with connected(address) as client:
        client.sendall(request("late"))
        assert read_until(client, b"\r\n\r\n").startswith(b"HTTP/1.1 200")
        app.go.set()
        read_until(client, b"0\r\n\r\n")


def test_pipelined_requests_are_answered_in_order(address: tuple[str, int]) -> None:
    with connected(address) as client:
        client.sendall(
            request("empty") + request("plain") + request("empty", "Connection: close\r\n")
        )
        got = b""
        while data := client.recv(65536):
            got += data
    heads = re.findall(rb"HTTP/1\.1 (\d+)", got)
    assert heads == [b"204", b"200", b"204"]


def test_expect_100_continue_is_answered_before_the_body_is_sent(address: tuple[str, int]) -> None:
    with connected(address) as client:
        client.sendall(request("echo", "Expect: 100-continue\r\nContent-Length: 3\r\n"))
        assert read_until(client, b"\r\n\r\n").startswith(b"HTTP/1.1 100")
        client.sendall(b"abc")
        read_until(client, b"\r\n\r\nabc")
