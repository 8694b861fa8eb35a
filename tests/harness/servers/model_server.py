"""A small HTTP server that answers as TorchServe or Triton would, after a time that is known.

It is a thread of its own, on asyncio. Its answers are `ok`, except where its fields say otherwise.
It is no Triton and no TorchServe: it only takes their requests.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from typing_extensions import override

from tests.harness.wait import wait_until

_METADATA = b'{"name": "m", "inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [-1, 1]}]}'


@dataclass
class ModelServer:
    """The server, and what has come.

    Attributes:
        service_s: how long it takes for a request; it runs one after the other.
        answers: the statuses of the next answers, from the end; 200 when there are none.
        stall: requests wait until it is set.
        holds_at: it answers nothing from this request on.
        requests: the requests that came, with their headers.
        closes: it closes the connection after each answer.
    """

    service_s: float = 0.0
    answers: list[int] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)
    closes: bool = False
    holds_at: int = 0
    port: int = 0
    connections: int = 0
    stall: asyncio.Event = field(default_factory=asyncio.Event)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    loop: asyncio.AbstractEventLoop | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    transports: set[asyncio.Transport] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def hold(self) -> None:
        """Answer nothing until `go` is called."""
        assert self.loop is not None
        self.loop.call_soon_threadsafe(self.stall.clear)

    def go(self) -> None:
        assert self.loop is not None
        self.loop.call_soon_threadsafe(self.stall.set)


class _Connection(asyncio.Protocol):
    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._buffer = b""

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.connections += 1
        self._server.transports.add(transport)

    @override
    def connection_lost(self, error: Exception | None) -> None:
        self._server.transports.discard(self._transport)

    @override
    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        lines = [line.lower() for line in head.split(b"\r\n")]
        length = next((int(one[15:]) for one in lines if one.startswith(b"content-length:")), 0)
        if not end or len(rest) < length:
            return
        self._buffer = rest[length:]
        self._server.requests.append(head + end + rest[:length])
        if len(self._server.requests) == self._server.holds_at:
            self._server.stall.clear()
        task = asyncio.ensure_future(self._answer(head))
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)

    async def _answer(self, head: bytes) -> None:
        server = self._server
        async with server.turn:
            await server.stall.wait()
            if server.service_s:
                await asyncio.sleep(server.service_s)
        status = server.answers.pop() if server.answers else 200
        body = _METADATA if head.startswith(b"GET /v2/models/") else b"ok"
        close = b"Connection: close\r\n" if server.closes else b""
        if self._transport.is_closing():
            return
        self._transport.write(
            b"HTTP/1.1 %d Status\r\n%bContent-Length: %d\r\n\r\n%b"
            % (status, close, len(body), body)
        )
        if server.closes:
            self._transport.close()


@contextmanager
def model_server(service_s: float = 0.0) -> Iterator[ModelServer]:
    """Serve until the context ends."""
    server = ModelServer(service_s)
    thread = threading.Thread(target=asyncio.run, args=(_serve(server),), daemon=True)
    thread.start()
    wait_until(lambda: server.port, "the model server listens")
    try:
        yield server
    finally:
        stop_model_server(server)
        thread.join(60)
        assert not thread.is_alive(), "the model server did not stop"


def stop_model_server(server: ModelServer) -> None:
    """End it, as if it had died: its connections break."""
    loop = server.loop
    if loop is None:
        return

    def cancel() -> None:
        for task in asyncio.all_tasks(loop):
            task.cancel()

    # It may have ended already.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(cancel)


async def _serve(server: ModelServer) -> None:
    server.loop = asyncio.get_running_loop()
    server.stall.set()
    listening = await server.loop.create_server(lambda: _Connection(server), "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        async with listening:
            await listening.serve_forever()
    except asyncio.CancelledError:
        # Each is closed in a later round of the loop, and one that is being accepted comes later.
        for _ in range(10):
            for transport in list(server.transports):
                transport.abort()
            await asyncio.sleep(0)
