"""What replaces uvicorn's own methods, compared with them; and the checks once a second."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import itertools
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import uvicorn
from typing_extensions import override
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from api.http import uvicorn_protocol
from api.http.uvicorn_protocol import (
    PROGRESS_BYTES,
    READ_MAX_BYTES,
    protocol_with,
    watch,
    write_whole,
)
from headrace.config.settings import Settings

Headers = Sequence[tuple[bytes, bytes]]
HEADERS = (
    (b"content-type", b"application/json"), (b"content-length", b"8"), (b"location", b"/a/b%3A"),
)  # fmt: skip
BODY = b'{"x": 1}'
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = self.aborted = False
        self.unsent_bytes = 0

    @override
    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.written.append(bytes(data))

    @override
    def is_closing(self) -> bool:
        return self.closed

    @override
    def close(self) -> None:
        self.closed = True

    @override
    def can_write_eof(self) -> bool:
        return False

    @override
    def pause_reading(self) -> None:
        pass

    @override
    def resume_reading(self) -> None:
        pass

    @override
    def abort(self) -> None:
        self.closed = self.aborted = True

    @override
    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    @override
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


def cycle_of(method: str = "GET", *, keep_alive: bool = True) -> tuple[Any, Transport, list[str]]:
    """One request of uvicorn's, its transport, and a word for each time that it was answered."""
    transport, answered = Transport(), list[str]()
    cycle = RequestResponseCycle(
        scope={"type": "http", "method": method},  # type: ignore[typeddict-item]
        transport=transport,
        flow=FlowControl(transport),
        logger=logging.getLogger("uvicorn.error"),
        access_logger=logging.getLogger("uvicorn.access"),
        access_log=False,
        default_headers=[(b"date", b"Sat, 21 Nov 2026 12:00:00 GMT")],
        message_event=asyncio.Event(),
        expect_100_continue=True,
        keep_alive=keep_alive,
        on_response=lambda: answered.append("answered"),
    )
    return cycle, transport, answered


def state_of(cycle: Any) -> dict[str, Any]:
    kept = {name: value for name, value in vars(cycle).items() if isinstance(value, bool | int)}
    return {**kept, "notified": cycle.message_event.is_set()}


async def by_uvicorn(cycle: Any, status: int, headers: Headers, body: bytes) -> None:
    await cycle.send({"type": "http.response.start", "status": status, "headers": [*headers]})
    await cycle.send({"type": "http.response.body", "body": body})


@pytest.mark.parametrize("status", [200, 202, 404, 503])
@pytest.mark.parametrize(
    ("headers", "body"), [(HEADERS, BODY), (((b"content-length", b"0"),), b"")]
)
def test_a_whole_answer_is_what_uvicorn_makes_of_two_messages(
    status: int, headers: Headers, body: bytes
) -> None:
    ours, our_transport, our_end = cycle_of()
    theirs, their_transport, their_end = cycle_of()
    assert write_whole(ours.send, status, headers, body)
    asyncio.run(by_uvicorn(theirs, status, headers, body))
    assert b"".join(our_transport.written) == b"".join(their_transport.written)
    assert len(our_transport.written) == 1
    assert state_of(ours) == state_of(theirs)
    assert our_end == their_end == ["answered"]


def wrapped(send: Callable[[Any], Awaitable[None]]) -> Any:
    async def wrapped(message: Any) -> None:
        await send(message)

    return wrapped


def disconnected(cycle: Any) -> Any:
    cycle.disconnected = True
    return cycle.send


def paused(cycle: Any) -> Any:
    cycle.flow.pause_writing()
    return cycle.send


def begun(cycle: Any) -> Any:
    cycle.response_started = True
    return cycle.send


@pytest.mark.parametrize(
    ("made", "send_of"),
    [
        (cycle_of("HEAD"), lambda cycle: cycle.send),
        (cycle_of(keep_alive=False), lambda cycle: cycle.send),
        (cycle_of(), lambda cycle: wrapped(cycle.send)),
        (cycle_of(), disconnected),
        (cycle_of(), paused),
        (cycle_of(), begun),
    ],
    ids=["head", "closes", "wrapped", "disconnected", "paused", "begun"],
)
def test_what_is_not_plain_is_left_to_uvicorn(made: Any, send_of: Callable[[Any], Any]) -> None:
    cycle, transport, answered = made
    send = send_of(cycle)
    before = state_of(cycle)
    assert not write_whole(send, 200, HEADERS, BODY)
    assert (transport.written, answered, state_of(cycle)) == ([], [], before)


@pytest.mark.parametrize("bad", [b"a\r\nset-cookie: b", b"a\nb", b"\0"])
def test_no_header_makes_another(bad: bytes) -> None:
    cycle, transport, _ = cycle_of()
    headers = (*HEADERS, (b"etag", bad))
    assert not write_whole(cycle.send, 200, headers, BODY)
    with pytest.raises(RuntimeError, match="Invalid HTTP header value"):
        asyncio.run(by_uvicorn(cycle, 200, headers, BODY))
    assert transport.written == []


def connection(app: Any) -> tuple[Any, Transport, ServerState]:
    """A connection to an application, whose requests have 100 s; its transport and its server."""
    config = uvicorn.Config(
        app, lifespan="off", log_config=None, access_log=False, timeout_keep_alive=75
    )
    config.load()
    state, transport = ServerState(), Transport()
    protocol = protocol_with(Settings(request_timeout_s=100))(
        config=config, server_state=state, app_state={}, _loop=asyncio.get_running_loop()
    )
    protocol.connection_made(transport)
    return protocol, transport, state


def test_a_connection_without_a_request_is_closed_once_its_time_is_up() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        assert write_whole(send, 200, HEADERS, BODY)

    async def work() -> None:
        protocol, transport, state = connection(app)

        async def answered(count: int) -> None:
            while state.tasks:
                await asyncio.gather(*state.tasks)
            assert len(transport.written) == count

        protocol.data_received(GET)
        await answered(1)
        protocol.check(1000)
        protocol.check(1074)
        protocol.data_received(GET[:9])
        protocol.check(1076)
        protocol.check(1160)
        assert not transport.closed
        protocol.data_received(GET[9:] + GET)
        await answered(3)
        assert state.total_requests == 3
        assert all(written.endswith(BODY) for written in transport.written)
        protocol.check(1161)
        protocol.check(1235.9)
        assert not transport.closed
        protocol.check(1236)
        assert transport.closed

    asyncio.run(asyncio.wait_for(work(), 30))


def test_a_head_may_begin_and_end_in_full_reads() -> None:
    sizes = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        size = 0
        while (message := await receive())["type"] == "http.request":
            size += len(message["body"])
            if not message["more_body"]:
                break
        sizes.append(size)
        assert write_whole(send, 200, HEADERS, BODY)

    async def work() -> None:
        protocol, transport, state = connection(app)
        length = READ_MAX_BYTES
        head = GET[:-2].replace(b"GET", b"POST") + b"Content-Length: %d\r\n\r\n" % length
        data = (head + bytes(length)) * 2
        for at in range(0, len(data), READ_MAX_BYTES):
            protocol.data_received(data[at : at + READ_MAX_BYTES])
        while state.tasks:
            await asyncio.gather(*state.tasks)
        assert sizes == [length, length]
        assert len(transport.written) == 2

    asyncio.run(asyncio.wait_for(work(), 30))


@pytest.mark.parametrize("last", [1, 2, 3, 1500])
def test_a_head_that_is_too_long_is_refused_wherever_its_reads_end(last: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("it was refused")

    async def work() -> None:
        limit = Settings().header_limit_bytes
        protocol, transport, _ = connection(app)
        head = GET[:-2] + b"X-Padding: " + b"a" * limit + b"\r\n\r\n"
        for part in (head[:-last], head[-last:]):
            protocol.data_received(part)
        assert transport.written[0].startswith(b"HTTP/1.1 431 ")

    asyncio.run(asyncio.wait_for(work(), 30))


def test_an_answer_has_to_be_read_once_the_request_was_sent() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        begun.set()
        await ended.wait()

    async def work() -> None:
        protocol, transport, state = connection(app)
        protocol.data_received(GET[:-2] + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        await begun.wait()
        transport.unsent_bytes = 100_000
        for now in (1000, 1200, 1400):
            protocol.check(now)
        assert not transport.closed, "it may read after it has sent the body"
        protocol.data_received(b"0\r\n\r\n")
        protocol.check(1400)
        protocol.check(1499)
        transport.unsent_bytes -= PROGRESS_BYTES
        protocol.check(1501)
        protocol.check(1600)
        assert not transport.closed, "it reads slowly"
        protocol.check(1601)
        assert transport.aborted
        ended.set()
        await asyncio.gather(*state.tasks)

    asyncio.run(asyncio.wait_for(work(), 30))


class Connection:
    """Keeps the times of its checks; the process stands still during the second one."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def check(self, now: float) -> None:
        self.times.append(now)
        if len(self.times) == 2:
            time.sleep(0.5)


def watched(connections: list[Connection], done: Callable[[], bool]) -> None:
    """Watch connections with a timeout of 0.1 s until `done`."""

    async def work() -> None:
        watching = asyncio.create_task(watch(connections, 0.1))
        while not done():
            await asyncio.wait([watching], timeout=0.01)
        watching.cancel()

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_process_that_stood_still_takes_no_time_from_its_clients() -> None:
    connection = Connection()
    watched([connection], lambda: len(connection.times) > 3)
    steps = [after - before for before, after in itertools.pairwise(connection.times)]
    assert max(steps) <= 0.051, "no step is longer than two intervals"


def test_running_out_of_file_descriptors_is_logged_once_until_it_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    left, own = [True, False, False, True, False], threading.get_ident()

    def descriptor_left() -> bool:
        # Another test's server may still run in a thread of this process.
        return threading.get_ident() != own or bool(left and left.pop(0))

    monkeypatch.setattr(uvicorn_protocol, "_descriptor_left", descriptor_left)
    watched([], lambda: not left)
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert "ulimit -n" in caplog.text


#: What ours replaces, as it was when ours was written.
_READ = {
    RequestResponseCycle.send: "abdd8601b326a8da",
    HttpToolsProtocol.data_received: "010a7ae59a5d3b1a",
    HttpToolsProtocol.on_headers_complete: "1ea8589acfad92d8",
    HttpToolsProtocol.on_body: "dba9c32aeba35b6a",
    HttpToolsProtocol.on_message_complete: "1fbad42dc31fc01f",
    HttpToolsProtocol.on_response_complete: "64e254f28e389e76",
}


@pytest.mark.parametrize("method", _READ, ids=lambda method: method.__qualname__)
def test_uvicorns_own_is_as_it_was_when_ours_was_written(method: Any) -> None:
    found = hashlib.sha256(inspect.getsource(method).encode()).hexdigest()[:16]
    assert found == _READ[method], (
        f"uvicorn has changed {method.__qualname__}: compare api/http/uvicorn_protocol.py with "
        "it, then write its new digest here"
    )
