"""What is done past uvicorn's own methods: held against them."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import uvicorn
from typing_extensions import override
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from api.http.fast_response import write_whole
from api.http.uvicorn_protocol import protocol_with
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
        self.closed = False

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
    def pause_reading(self) -> None:
        pass

    @override
    def resume_reading(self) -> None:
        pass

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


def test_parts_are_written_as_one_answer() -> None:
    ours, our_transport, our_end = cycle_of()
    theirs, their_transport, _ = cycle_of()
    assert write_whole(ours.send, 200, HEADERS, BODY[:1], [BODY[1:2], BODY[2:]])
    asyncio.run(by_uvicorn(theirs, 200, HEADERS, BODY))
    assert b"".join(our_transport.written) == b"".join(their_transport.written)
    assert (state_of(ours), our_end) == (state_of(theirs), ["answered"])


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


def test_a_connection_without_a_request_is_closed_once_its_time_is_up() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        assert write_whole(send, 200, HEADERS, BODY)

    async def work() -> None:
        config = uvicorn.Config(
            app, lifespan="off", log_config=None, access_log=False, timeout_keep_alive=75
        )
        config.load()
        state, transport = ServerState(), Transport()
        protocol = protocol_with(Settings(request_timeout_s=100))(
            config=config, server_state=state, app_state={}, _loop=asyncio.get_running_loop()
        )
        protocol.connection_made(transport)

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


#: The modules that read each field; they were read when our replacement was written.
_READ = {
    RequestResponseCycle.send: "abdd8601b326a8da",
    HttpToolsProtocol.on_response_complete: "64e254f28e389e76",
}


@pytest.mark.parametrize("method", _READ, ids=lambda method: method.__qualname__)
def test_uvicorns_own_is_as_it_was_when_ours_was_written(method: Any) -> None:
    found = hashlib.sha256(inspect.getsource(method).encode()).hexdigest()[:16]
    assert found == _READ[method], (
        f"uvicorn has changed {method.__qualname__}: compare api/http/fast_response.py and "
        "api/http/uvicorn_protocol.py with it, then write its new digest here"
    )
