"""What a stream of events does besides its events."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest

from api.http.messages import ClientGone, Message, Request
from api.routes import event_stream
from api.routes.event_stream import HEAD, HEARTBEAT, EventStream, EventWriter, StreamEvent, frame
from headrace.access.api_key import Caller

ONE = StreamEvent("1", "said", b"{}")
TWO = StreamEvent("2", "said", b"[\n]")


class Said:
    """A source whose looks find what the test gives, and which is over after the last."""

    def __init__(self, *looks: list[StreamEvent], endless: bool = False) -> None:
        self._looks = list(looks)
        self._endless = endless
        self._woken = asyncio.Event()
        self.wake = self._woken.set

    @property
    def over(self) -> bool:
        return not self._looks and not self._endless

    async def look(self) -> Sequence[StreamEvent]:
        return self._looks.pop(0) if self._looks else []

    async def woken(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass


class Keys:
    """Admits a caller so many times."""

    def __init__(self, times: int) -> None:
        self._times = times

    async def still_admits(self, _: Caller) -> bool:
        self._times -= 1
        return self._times >= 0


class Client:
    """Reads a stream; it hangs up after so many writes."""

    def __init__(self, writes: int) -> None:
        self.written: list[bytes] = []
        self._left = writes
        self._leaves = asyncio.Event()

    async def receive(self) -> Message:
        await self._leaves.wait()
        return {"type": "http.disconnect"}

    async def write(self, data: bytes) -> None:
        self.written.append(data)
        self._left -= 1
        if not self._left:
            self._leaves.set()


def read(
    source: Said, *, keys: Keys | None = None, writes: int = 99, **options: Any
) -> list[bytes]:
    """Return what a client gets of a stream."""

    class Services:
        authenticator = keys

    async def run() -> list[bytes]:
        client = Client(writes)
        scope = {"method": "GET", "path": "/", "query_string": b"", "headers": []}
        services: Any = Services()
        request = Request(scope, client.receive)
        writer = EventWriter()
        stream = EventStream(services, request, nullcontext(source), writer, **options)
        try:
            await stream.run(client.write)
        except ClientGone:
            client.written.append(b"gone")
        await stream.close()
        return client.written

    return asyncio.run(run())


def test_events_are_written_to_the_end_of_the_source() -> None:
    assert read(Said([ONE], [TWO, ONE])) == [HEAD, frame(*ONE), frame(*TWO) + frame(*ONE)]
    assert frame(*TWO) == b"id: 2\nevent: said\ndata: [\ndata: ]\n\n"


def test_a_silence_has_heartbeats_until_the_client_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "HEARTBEAT_S", 0.0)
    assert read(Said(endless=True), writes=3) == [HEAD, HEARTBEAT, HEARTBEAT, b"gone"]


def test_a_stream_has_a_time() -> None:
    assert read(Said([ONE], [TWO]), most_s=0) == [HEAD, frame(*ONE)]


def test_the_key_is_checked_before_each_look() -> None:
    assert read(Said([ONE], [TWO]), keys=Keys(1)) == [HEAD, frame(*ONE)]


def test_a_client_that_reads_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def write(_: bytes) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(event_stream, "STALLED_S", 0.0)
    with pytest.raises(ClientGone):
        asyncio.run(event_stream.put(write, b"x"))
