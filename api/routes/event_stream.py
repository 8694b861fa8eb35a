"""Streams of events: what all of them do from their first byte to their last.

A stream sends a heartbeat in a silence. It ends with its source, with its time or with its API key,
and also if the client hangs up or reads nothing for STALLED_S.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractContextManager
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from api.http.messages import (
    NO_STORE,
    ClientGone,
    HangUp,
    Header,
    Receive,
    Request,
    StreamingReply,
    Write,
    write_nothing,
)
from api.services import Services
from headrace.jobs.values.encoding import without_line_ends

#: Seconds of silence before a heartbeat: proxies close connections that are silent for long.
HEARTBEAT_S: Final = 15.0
#: Seconds after which a client that reads nothing is disconnected.
STALLED_S: Final = 60.0
#: A comment, which keeps an otherwise silent connection open.
HEARTBEAT: Final = b":\n\n"
#: Milliseconds for which a client waits before it reconnects.
HEAD: Final = b"retry: 1000\n\n"

EVENT_STREAM: Final = b"text/event-stream"
_LINES: Final = re.compile(rb"\r\n|\r|\n")
#: Without the second one nginx buffers the answer.
STREAM_HEADERS: Final = (NO_STORE, (b"x-accel-buffering", b"no"))

Event = TypeVar("Event")
Event_co = TypeVar("Event_co", covariant=True)
Event_contra = TypeVar("Event_contra", contravariant=True)


class Source(Protocol[Event_co]):
    """Where the events of a stream come from."""

    @property
    def over(self) -> bool:
        """Whether no event comes any more: all were returned, or this process stops."""

    async def look(self) -> Sequence[Event_co]:
        """Return the events since the last look."""

    async def woken(self, seconds: float) -> None:
        """Wait until there may be events since the last look, or the time has passed."""

    def wake(self) -> None:
        """End the wait."""


class Writer(Protocol[Event_contra]):
    """How a stream's events are written, after a `head`; a `heartbeat` fills a silence."""

    head: bytes
    heartbeat: bytes

    async def text(self, events: Sequence[Event_contra]) -> bytes:
        """Return what the client gets for these events; a silence has no events."""

    def end(self) -> None:
        """Note that no event comes any more. It raises where the client misses something."""


class EventStream(Generic[Event]):
    """One stream.

    Args:
        source: the stream enters it when it begins.
        receive: receives the hang-up, for a request with several streams.
        most_s: the seconds after which it ends.
    """

    def __init__(
        self,
        services: Services,
        request: Request,
        source: AbstractContextManager[Source[Event]],
        writer: Writer[Event],
        *,
        receive: Receive | None = None,
        most_s: float = math.inf,
    ) -> None:
        self._services = services
        self._caller = request.caller
        self._receive = receive or request.receive
        self._writer = writer
        self._most_s = most_s
        self._following = self._follow(source)
        self._first: Sequence[Event] | None = None

    def reply(
        self, content_type: bytes = EVENT_STREAM, headers: tuple[Header, ...] = ()
    ) -> StreamingReply:
        """Return the answer; `take_stream` has counted it."""
        return StreamingReply(200, self._send, content_type, (*STREAM_HEADERS, *headers))

    async def begin(self) -> Sequence[Event] | None:
        """Wait for the first events, which `run` writes; raise ClientGone if the client hangs up.

        It returns no events after a silence, and None if there will be none.
        """
        self._first = await anext(self._following, None)
        return self._first

    async def run(self, write: Write) -> None:
        """Write all events; raise ClientGone if the client hangs up, or reads nothing."""
        writer = self._writer
        await put(write, writer.head)
        if self._first:
            await put(write, await writer.text(self._first) or writer.heartbeat)
        async for events in self._following:
            await put(write, await writer.text(events) or writer.heartbeat)
        writer.end()

    async def close(self) -> None:
        """Leave the source."""
        await self._following.aclose()

    async def _send(self, write: Write) -> None:
        try:
            await self.run(write)
        finally:
            self._services.stream_limit.leave(self._caller.key_id)
            await self.close()

    async def _follow(
        self, source: AbstractContextManager[Source[Event]]
    ) -> AsyncGenerator[Sequence[Event], None]:
        """Yield events as they come; none after a silence."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._most_s
        beat_at = loop.time() + HEARTBEAT_S
        with source as opened, HangUp(self._receive, opened.wake) as client:
            # Checked before each look: a stream with many events has no heartbeats.
            while not client.gone and await self._still_admitted():
                events = await opened.look()
                if events:
                    yield events
                    beat_at = loop.time() + HEARTBEAT_S
                if opened.over or loop.time() >= until:
                    return
                if events or client.gone:
                    continue
                await opened.woken(max(0.0, min(beat_at, until) - loop.time()))
                if loop.time() >= beat_at and not client.gone:
                    yield ()
                    beat_at = loop.time() + HEARTBEAT_S
            if client.gone:
                raise ClientGone

    async def _still_admitted(self) -> bool:
        authenticator = self._services.authenticator
        return authenticator is None or await authenticator.still_admits(self._caller)


def stream_events(
    services: Services,
    request: Request,
    source: AbstractContextManager[Source[Event]],
    writer: Writer[Event],
    content_type: bytes = EVENT_STREAM,
) -> StreamingReply:
    """Return the answer to a request for a stream; `HEAD` begins none. Raise TooManyStreams."""
    if request.method == "HEAD":
        return StreamingReply(200, write_nothing, content_type, STREAM_HEADERS)
    take_stream(services, request)
    most_s = services.settings.event_stream_max_s
    return EventStream(services, request, source, writer, most_s=most_s).reply(content_type)


def take_stream(services: Services, request: Request, count: int = 1) -> None:
    """Count streams, for which `stream_limit.leave` is due; or raise TooManyStreams."""
    keyed = services.authenticator is not None
    services.stream_limit.take(request.caller.key_id, keyed=keyed, count=count)


async def put(write: Write, data: bytes) -> None:
    """Write; raise ClientGone if the client has read nothing for STALLED_S seconds."""
    try:
        async with asyncio.timeout(STALLED_S):
            await write(data)
    except TimeoutError:
        raise ClientGone from None


class StreamEvent(NamedTuple):
    """A server-sent event; its data are JSON."""

    id: str
    name: str
    data: bytes


class EventWriter:
    """Writes server-sent events."""

    heartbeat = HEARTBEAT

    def __init__(self, head: bytes = HEAD) -> None:
        self.head = head

    async def text(self, events: Sequence[StreamEvent]) -> bytes:
        """Return the events as they are sent."""
        return b"".join(frame(*event) for event in events)

    def end(self) -> None:
        """Do nothing: the client reconnects, and continues behind the last event."""


def frame(event_id: str, name: str, data: bytes) -> bytes:
    """Return an event as it is sent.

    Line breaks in the user's JSON are between tokens only; the client joins the lines.
    """
    lines = b"".join(b"data: %s\n" % line for line in _LINES.split(without_line_ends(data)))
    return b"id: %s\nevent: %s\n%s\n" % (event_id.encode(), name.encode(), lines)
