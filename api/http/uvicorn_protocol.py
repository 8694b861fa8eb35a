"""uvicorn's HTTP protocol: one write a response where it makes two, and an end to what never ends.

Neither uvicorn nor httptools sets a limit for a request's head, or a time for it or its body. Here
a head that is too long is answered 431, what stands still 408, and what httptools cannot read 400,
as problems. None of it costs a request more than some counting: connections are looked at now and
then, all together, and not each by a timer of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from api.http.problems import problem
from headrace.config.settings import Settings
from headrace.errors import HeaderTooLarge, HeadraceError, InvalidRequest, RequestTimeout

_HEAD_END = b"\r\n\r\n"
_CONTINUE = b"HTTP/1.1 100"
#: The most that comes in one read, which may hold the end of what stood before a head.
READ_MAX_BYTES: Final = 256 * 1024
#: A body that comes more slowly than this within the time limit stands still.
PROGRESS_BYTES: Final = 1024
#: Whoever was refused is heard for so long, and nothing is done about it, so that he comes to read
#: why: a connection that is closed with bytes unread is reset, and the answer with it.
LINGER_S: Final = 2.0


#: In the place of a request's number where there is none under way.
_IDLE: Final = -1


class JoinedWrites:
    """A transport that keeps the head of a response back until its body comes, or the loop turns.

    uvicorn writes both by themselves, and each write is a system call here and a wake-up there.

    Args:
        transport: the connection's own; all but writing goes to it.
        loop: the connection's event loop.
    """

    __slots__ = ("_flush_soon", "_head", "_loop", "_transport", "_write", "is_closing")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._write = transport.write
        # Asked for each answer, and so not by way of __getattr__.
        self.is_closing = transport.is_closing
        self._loop = loop
        self._head: bytes | None = None
        self._flush_soon = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write, together with the head that was kept back; keep back what is only a head."""
        head = self._head
        if head is not None:
            self._head = None
            self._write(head + data)
        elif data.endswith(_HEAD_END) and not data.startswith(_CONTINUE):
            self._head = data
            if not self._flush_soon:
                self._flush_soon = True
                self._loop.call_soon(self._flush)
        else:
            self._write(data)

    def close(self) -> None:
        """Close once all is written."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        self._flush_soon = False
        head, self._head = self._head, None
        if head is not None and not self._transport.is_closing():
            self._write(head)


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What a request may take before anybody looks at it.

    Attributes:
        header_bytes: of its line and headers.
        header_count: of its headers.
        timeout_s: for its head as a whole, and for its body to move on.
    """

    header_bytes: int
    header_count: int
    timeout_s: float


class _Refused(Exception):
    """Ends the parsing of a request from within."""


class Protocol(HttpToolsProtocol):
    """One connection; see `protocol_with`."""

    limits: ClassVar[RequestLimits]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._requests = 0
        self._received = 0
        self._chunk_bytes = 0
        self._head_bytes = 0
        self._in_head = False
        self._deaf = False
        self._error: HeadraceError | None = None
        # The request that is answered while others wait behind it.
        self._first: Any = None
        # What was seen of it last, and since when nothing else was.
        self._seen: tuple[int, ...] = ()
        self._seen_at = 0.0

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        joined: Any = JoinedWrites(transport, self.loop)
        super().connection_made(joined)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        # uvicorn has told the last request alone, and the one that is answered would wait on.
        first = self._first
        if first is not None and not first.response_complete:
            first.disconnected = True
            first.message_event.set()
        self.pipeline.clear()

    @override
    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        size = len(data)
        self._received += size
        self._chunk_bytes = size
        if self._in_head:
            self._head_bytes += size
            if self._head_bytes > self.limits.header_bytes + READ_MAX_BYTES:
                self._refuse(_too_large(self.limits, "is longer"))
                return
        super().data_received(data)

    @override
    def on_message_begin(self) -> None:
        self._in_head = True
        self._requests += 1
        self._head_bytes = self._chunk_bytes
        super().on_message_begin()

    @override
    def on_headers_complete(self) -> None:
        limits = self.limits
        count = len(self.headers)
        if count > limits.header_count:
            self._error = _too_large(limits, f"has {count} headers")
            raise _Refused
        # What came with the head may be a body; only then is counted what the head has.
        if self._head_bytes > limits.header_bytes:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > limits.header_bytes:
                self._error = _too_large(limits, f"has {size} bytes")
                raise _Refused
        self._in_head = False
        before, pipelined = self.cycle, bool(self.pipeline)
        super().on_headers_complete()
        if self.pipeline and not pipelined:
            self._first = before

    @override
    def send_400_response(self, msg: str) -> None:
        error = self._error or InvalidRequest(
            "this is no HTTP/1.1 request that can be read", hint="Send one; is it TLS, perhaps?"
        )
        self._refuse(error)

    @override
    def on_response_complete(self) -> None:
        # As uvicorn's own, but for its timer: `look` ends what is kept alive for too long.
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._first, app = self.pipeline.pop()
            self._start_asgi_task(self._first, app)

    def look(self, now: float) -> None:
        """End a request that stands still, or a connection without one; called now and then."""
        seen = self._standing()
        if seen is None or seen != self._seen:
            self._seen, self._seen_at = seen or (), now
        elif seen[0] == _IDLE:
            if now - self._seen_at >= self.timeout_keep_alive:
                self.transport.close()
        elif now - self._seen_at >= self.limits.timeout_s:
            self._seen = ()
            if self._requests == 0:
                # Nothing was ever said, so that there is nothing to be answered.
                self.transport.close()
            else:
                what = "its headers have" if self._in_head else "more of its body has"
                self._refuse(_timed_out(self.limits, what))

    def _standing(self) -> tuple[int, ...] | None:
        """What the client is waited for; None: for nothing.

        That is its next request (_IDLE), the head of this one, or so much more of its body.
        """
        if self._deaf or self.transport.is_closing():
            return None
        if self._in_head or self._requests == 0:
            return (self._requests,)
        cycle: Any = self.cycle
        if cycle is None:
            return None
        if cycle.response_complete and not self.pipeline:
            return (_IDLE, self._received)
        waits = cycle.more_body and not cycle.response_started
        if not waits or cycle.waiting_for_100_continue or self.flow.read_paused:
            return None
        return (self._requests, self._received // PROGRESS_BYTES)

    def _refuse(self, error: HeadraceError) -> None:
        """Answer in the place of the application, and hear no more."""
        self._deaf = True
        cycle: Any = self.cycle
        answering = cycle is not None and not cycle.response_complete
        if answering and (self._in_head or self.pipeline or cycle.response_started):
            # Whoever reads the answer that is under way would take ours for a part of it.
            if self._in_head:
                cycle.keep_alive = False
            else:
                self.transport.close()
            return
        if answering:
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.write(_written(error))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.close)


def protocol_with(settings: Settings) -> type[Protocol]:
    """The protocol with the limits of these settings."""
    limits = RequestLimits(
        settings.header_limit_bytes, settings.header_limit_count, settings.request_timeout_s
    )
    return type("Protocol", (Protocol,), {"limits": limits})


async def watch(connections: Iterable[Any], timeout_s: float) -> None:
    """Look at all connections of a server now and then, for ever."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(min(1.0, timeout_s / 4))
        now = loop.time()
        for connection in list(connections):
            connection.look(now)


def _too_large(limits: RequestLimits, what: str) -> HeaderTooLarge:
    return HeaderTooLarge(
        f"the head of the request {what}; it may have {limits.header_bytes} bytes and "
        f"{limits.header_count} headers",
        hint="Send less in the address and the headers, such as cookies.",
    )


def _timed_out(limits: RequestLimits, what: str) -> RequestTimeout:
    return RequestTimeout(
        f"the request did not come to its end: {what} not come within {limits.timeout_s:g} s",
        hint="Send it faster, or raise request_timeout_s (HEADRACE_REQUEST_TIMEOUT_S).",
    )


def _written(error: HeadraceError) -> bytes:
    """A problem as bytes; the path is not known, or is what could not be read."""
    reply = problem(error, "")
    headers = [
        (b"content-type", reply.content_type),
        (b"content-length", b"%d" % len(reply.body)),
        (b"connection", b"close"),
        *reply.headers,
    ]
    lines = b"".join(b"%s: %s\r\n" % header for header in headers)
    return STATUS_LINE[reply.status] + lines + b"\r\n" + reply.body
