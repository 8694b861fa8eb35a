"""uvicorn's HTTP protocol with limits, and with one write per answer instead of two.

uvicorn and httptools limit neither the size of a request's head nor the time for head and body.
This protocol answers 431 if the head is too long, 408 if a request makes no progress, and 400 if
httptools cannot parse it, as problems. One check per second covers the timeouts of all connections,
so that a request has no timer of its own.

Uses private parts of uvicorn, read from version 0.54: `HttpToolsProtocol` (its callbacks, `cycle`,
`pipeline`, `flow`, `_start_asgi_task`) and `RequestResponseCycle`; see also `fast_response.py`.
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
#: The most bytes of one read, which may contain the end of the previous request.
READ_MAX_BYTES: Final = 256 * 1024
#: Fewer bytes of a body within the time limit count as no progress.
PROGRESS_BYTES: Final = 1024
#: Seconds for which a refused connection is still read. Closing it with unread bytes would reset
#: it, and the client would lose the answer.
LINGER_S: Final = 2.0


#: Replaces the number of the request while none is in progress.
_IDLE: Final = -1


class JoinedWrites:
    """A transport that holds the head of an answer back until its body or the loop's next turn.

    uvicorn writes head and body separately, and each write is a system call. It exists for speed
    alone: without it, `connection_made` passes the transport on.

    Args:
        transport: the connection's transport, which does everything else.
        loop: the connection's event loop.
    """

    __slots__ = ("_flush_soon", "_head", "_loop", "_transport", "_write", "is_closing")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._write = transport.write
        # Called for each answer, so not through __getattr__.
        self.is_closing = transport.is_closing
        self._loop = loop
        self._head: bytes | None = None
        self._flush_soon = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write, together with a head that was held back; hold back a head alone."""
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
        """Write what is held back, then close."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        self._flush_soon = False
        head, self._head = self._head, None
        if head is not None and not self._transport.is_closing():
            self._write(head)


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The limits of a request before an endpoint reads it.

    Attributes:
        header_bytes: the most bytes of its line and headers.
        header_count: the most headers.
        timeout_s: seconds for the whole head, and for progress of the body.
    """

    header_bytes: int
    header_count: int
    timeout_s: float


class _Refused(Exception):
    """Stops httptools from parsing a request."""


class Protocol(HttpToolsProtocol):
    """One HTTP connection; `protocol_with` sets its limits."""

    limits: ClassVar[RequestLimits]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._requests = 0
        self._received = 0
        self._chunk_bytes = 0
        self._head_bytes = 0
        self._in_head = False
        self._refused = False
        self._error: HeadraceError | None = None
        # The request in progress while others wait behind it.
        self._first: Any = None
        # Its last progress, and the time of that.
        self._progress: tuple[int, ...] = ()
        self._progress_at = 0.0

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        joined: Any = JoinedWrites(transport, self.loop)
        super().connection_made(joined)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        # uvicorn notifies the last request alone; the one in progress would wait on.
        first = self._first
        if first is not None and not first.response_complete:
            first.disconnected = True
            first.message_event.set()
        self.pipeline.clear()

    @override
    def data_received(self, data: bytes) -> None:
        if self._refused:
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
        # The bytes may include a body, so the head is measured only above the limit.
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
            "this is not a valid HTTP/1.1 request", hint="Send one; is it perhaps TLS?"
        )
        self._refuse(error)

    @override
    def on_response_complete(self) -> None:
        # As uvicorn's own without its timer: `check` closes idle connections.
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._first, app = self.pipeline.pop()
            self._start_asgi_task(self._first, app)

    def check(self, now: float) -> None:
        """End a request without progress, or an idle connection; called about once a second."""
        progress = self._awaited()
        if progress is None or progress != self._progress:
            self._progress, self._progress_at = progress or (), now
        elif progress[0] == _IDLE:
            if now - self._progress_at >= self.timeout_keep_alive:
                self.transport.close()
        elif now - self._progress_at >= self.limits.timeout_s:
            self._progress = ()
            if self._requests == 0:
                # No byte was received, so there is nothing to answer.
                self.transport.close()
            else:
                what = "its headers have" if self._in_head else "more of its body has"
                self._refuse(_timed_out(self.limits, what))

    def _awaited(self) -> tuple[int, ...] | None:
        """Return what the server waits for from the client; None for nothing.

        That is the next request (_IDLE), the head of this one, or PROGRESS_BYTES of its body.
        """
        if self._refused or self.transport.is_closing():
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
        """Answer instead of the application, and read no more."""
        self._refused = True
        cycle: Any = self.cycle
        answering = cycle is not None and not cycle.response_complete
        if answering and (self._in_head or self.pipeline or cycle.response_started):
            # The client would take this answer for a part of the one in progress.
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
    """Return the protocol class with the limits of the settings."""
    limits = RequestLimits(
        settings.header_limit_bytes, settings.header_limit_count, settings.request_timeout_s
    )
    return type("Protocol", (Protocol,), {"limits": limits})


async def watch(connections: Iterable[Any], timeout_s: float) -> None:
    """Check all connections of a server about once a second, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(min(1.0, timeout_s / 4))
        now = loop.time()
        for connection in list(connections):
            connection.check(now)


def _too_large(limits: RequestLimits, what: str) -> HeaderTooLarge:
    return HeaderTooLarge(
        f"the head of the request {what}; the limit is {limits.header_bytes} bytes and "
        f"{limits.header_count} headers",
        hint="Shorten the address or the headers, for example cookies.",
    )


def _timed_out(limits: RequestLimits, what: str) -> RequestTimeout:
    return RequestTimeout(
        f"the request is incomplete: {what} not arrived within {limits.timeout_s:g} s",
        hint="Send it faster, or raise request_timeout_s (HEADRACE_REQUEST_TIMEOUT_S).",
    )


def _written(error: HeadraceError) -> bytes:
    """Return a problem as the bytes of an answer; the path is unknown at this point."""
    reply = problem(error, "")
    headers = [
        (b"content-type", reply.content_type),
        (b"content-length", b"%d" % len(reply.body)),
        (b"connection", b"close"),
        *reply.headers,
    ]
    lines = b"".join(b"%s: %s\r\n" % header for header in headers)
    return STATUS_LINE[reply.status] + lines + b"\r\n" + reply.body
