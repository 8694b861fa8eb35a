"""uvicorn's HTTP protocol with limits, and `write_whole`, which writes a whole answer at once.

uvicorn and httptools do not limit a request's head, its trailers or the requests behind it. Nor do
they limit the time that a client takes to send a request or to read an answer. This protocol does:
it answers 431, 408 or 400 as problems, or closes the connection. One check per second covers the
timeouts of all connections, so that a request has no timer of its own.

Uses private parts of uvicorn, read from version 0.54: `HttpToolsProtocol` (its callbacks, `cycle`,
`pipeline`, `flow`, `_start_asgi_task`) and `RequestResponseCycle`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final

import httptools
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import (
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from api.http.problems import problem
from headrace.config.settings import Settings
from headrace.errors import HeaderTooLarge, HeadraceError, InvalidRequest, RequestTimeout

#: The most bytes of one read, which may contain more than one request, or a head and a body.
READ_MAX_BYTES: Final = 256 * 1024
#: Fewer bytes of a body, or of an answer, within the time limit count as no progress.
PROGRESS_BYTES: Final = 1024
#: The most requests that wait behind the one that is being answered.
PIPELINE_MAX: Final = 16
#: Seconds for which a refused connection is still read. Closing it with unread bytes would reset
#: it, and the client would lose the answer.
LINGER_S: Final = 2.0

#: What the server waits for: `Protocol._awaited`.
_NEXT_REQUEST, _REQUEST, _REST, _TAKEN = range(4)

#: Headers that decide how the body arrives.
_FRAMING: Final = frozenset({b"expect", b"transfer-encoding"})

logger = logging.getLogger("api")


class Protocol(HttpToolsProtocol):
    """One HTTP connection; the settings have its limits."""

    settings: ClassVar[Settings]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._requests = 0
        self._received = self._read_bytes = 0
        # The bytes of the read in which a head began.
        self._begin_bytes = 0
        # The bytes of the reads since the one in which a head began, or a body's last byte came.
        self._overhead_bytes = 0
        self._body_bytes = 0
        self._in_head = False
        self._upgrades = False
        self._keep_alive = True
        self._refused = False
        # The request in progress while others wait behind it.
        self._first: Any = None
        # Its last progress, and the time of that.
        self._progress: tuple[int, ...] = ()
        self._progress_at = 0.0

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
        self._read_bytes = size = len(data)
        self._received += size
        self._overhead_bytes += size
        limits = self.settings
        try:
            if self._overhead_bytes > limits.header_limit_bytes + READ_MAX_BYTES:
                raise _too_large(limits, "is longer" if self._in_head else "has long trailers")
            self.parser.feed_data(data)
            if self._in_head and len(self.headers) > limits.header_limit_count:
                raise _too_large(limits, "has too many headers")
        except httptools.HttpParserUpgrade as upgrade:
            end = upgrade.args[0]
        except httptools.HttpParserError as error:
            # The context is what a method below has raised.
            refusal = error.__context__
            self._refuse(refusal if isinstance(refusal, HeadraceError) else _invalid())
            return
        except HeadraceError as error:
            self._refuse(error)
            return
        else:
            return
        # httptools takes what follows for another protocol. A server may ignore the header
        # (RFC 9110, section 7.8), so the same request is parsed again without it.
        self.data_received(self._head_without_upgrade() + data[end:])

    def _head_without_upgrade(self) -> bytes:
        """Return the last head for a new parser."""
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._upgrades = False
        return b"\r\n".join([*lines, b"", b""])

    @override
    def on_message_begin(self) -> None:
        self._in_head = True
        self._requests += 1
        self._begin_bytes, self._overhead_bytes = self._read_bytes, 0
        super().on_message_begin()

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        # A trailer is no header: it could bring a key to a request that runs already.
        if not self._in_head:
            return
        name = name.lower()
        if name in _FRAMING:
            value = value.lower()
            if name == b"expect":
                self.expect_100_continue = value == b"100-continue"
            elif value != b"chunked":  # httptools reads `gzip, chunked` as if it were `chunked`
                shown = value[:64].decode("latin-1")
                raise InvalidRequest(
                    f"the transfer coding {shown!r} is not supported",
                    hint="Send chunks without it.",
                )
        self.headers.append((name, value))

    @override
    def on_headers_complete(self) -> None:
        limits = self.settings
        count = len(self.headers)
        if count > limits.header_limit_count:
            raise _too_large(limits, f"has {count} headers")
        # The bytes may include a body, so the head is measured only above the limit.
        if self._begin_bytes + self._overhead_bytes > limits.header_limit_bytes:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > limits.header_limit_bytes:
                raise _too_large(limits, f"has {size} bytes")
        if self.pipeline and len(self.pipeline) >= PIPELINE_MAX:
            raise InvalidRequest(
                "too many requests wait on this connection",
                hint=f"Send at most {PIPELINE_MAX} before their answers, or use more connections.",
            )
        version = self.parser.get_http_version()
        self._check_head(version)
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise _invalid()
            self._upgrades = True
            return
        self._in_head = False
        before, pipelined = self.cycle, bool(self.pipeline)
        super().on_headers_complete()
        if self.pipeline and not pipelined:
            self._first = before
        # Until the body was received the connection stays open, so that a client that still sends
        # it receives an answer that comes before. After `Expect` it may leave the body out.
        self._keep_alive = self.cycle.keep_alive
        self.cycle.keep_alive = not self.expect_100_continue
        if version == "1.0" and self.parser.should_keep_alive():
            self._keep_http_1_0(self.cycle)

    def _check_head(self, version: str) -> None:
        """Refuse other versions than HTTP/1.1 and 1.0, and other than one `Host` (RFC 9112, 3.2).

        A proxy in front may read these in another way.
        """
        names = [name for name, _ in self.headers]
        # A proxy of HTTP/1.0 ignores a transfer coding.
        if version != "1.1" and (version != "1.0" or b"transfer-encoding" in names):
            raise _invalid()
        hosts = names.count(b"host")
        if hosts > 1 or (not hosts and version == "1.1"):
            count = "several Host headers" if hosts else "no Host header"
            raise InvalidRequest(f"the request has {count}", hint="Send one Host header.")

    def _keep_http_1_0(self, cycle: Any) -> None:
        """Leave the connection of a client such as `ab -k` open, after an answer with a length.

        uvicorn closes all connections of HTTP/1.0. Their clients read no chunks.
        """
        send = cycle.send

        async def kept(message: Any) -> None:
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message["headers"]}
                whole = b"content-length" in names and b"connection" not in names
                if whole and not cycle.more_body and not self._refused:
                    headers = [*message["headers"], (b"connection", b"keep-alive")]
                    message = {**message, "headers": headers}
                    cycle.keep_alive = True
            await send(message)

        cycle.send = kept

    @override
    def on_body(self, body: bytes) -> None:
        self._overhead_bytes = 0
        self._body_bytes += len(body)
        if self.expect_100_continue and not self.cycle.response_started:
            self.expect_100_continue, self.cycle.keep_alive = False, True
        super().on_body(body)

    @override
    def on_message_complete(self) -> None:
        if self._upgrades:
            return
        cycle = self.cycle
        cycle.more_body = False
        cycle.keep_alive = cycle.keep_alive and self._keep_alive
        cycle.message_event.set()
        if cycle.response_complete and not cycle.keep_alive:
            self.transport.close()

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
        """End what makes no progress: a request, an answer, or an idle connection.

        It is called about once a second, with the time in seconds.
        """
        progress = self._awaited()
        if progress is None or progress != self._progress:
            self._progress, self._progress_at = progress or (), now
            return
        awaited = progress[0]
        limit_s = (
            self.timeout_keep_alive if awaited == _NEXT_REQUEST else self.settings.request_timeout_s
        )
        if now - self._progress_at < limit_s:
            return
        self._progress = ()
        if awaited == _TAKEN:
            self.transport.abort()
        elif awaited == _REQUEST and self._requests:
            what = "its headers have" if self._in_head else "more of its body has"
            self._refuse(_timed_out(self.settings, what))
        else:
            self.transport.close()

    def _awaited(self) -> tuple[int, ...] | None:
        """Return what the server waits for from the client, with its progress; None for nothing.

        The client must take an answer, or send a request or the rest of one. That includes the rest
        of a request that was answered already.
        """
        cycle: Any = self.cycle
        ends = self._refused or self.transport.is_closing()
        is_answered = cycle is None or cycle.response_complete
        # Until it has sent its body, a client need not read: a bulk request has its own limits.
        must_read = ends or is_answered or self.pipeline or not cycle.more_body
        if must_read and (unsent_bytes := self.transport.get_write_buffer_size()):
            return (_TAKEN, unsent_bytes // PROGRESS_BYTES)
        if ends or self.flow.read_paused:
            return None
        if self._in_head or self._requests == 0:
            return (_REQUEST, self._requests)
        if is_answered and not self.pipeline:
            return (_REST, self._requests) if cycle.more_body else (_NEXT_REQUEST, self._received)
        if not cycle.more_body or cycle.response_started or cycle.waiting_for_100_continue:
            return None
        return (_REQUEST, self._requests, self._body_bytes // PROGRESS_BYTES)

    def _refuse(self, error: HeadraceError) -> None:
        """Answer instead of the application, and read no more."""
        self._refused = True
        cycle: Any = self.cycle
        if cycle is not None and self._in_head and not cycle.response_complete:
            # The client would take this answer for the one in progress.
            cycle.keep_alive = False
            return
        if cycle is not None and not self._in_head:
            if cycle.response_started or self.pipeline:
                self.transport.close()
                return
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.write(_written(error))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.close)


def write_whole(
    send: Any,
    status: int,
    headers: Sequence[tuple[bytes, bytes]],
    body: bytes,
) -> bool:
    """Write a whole answer at once; return False, without any effect, if only `send` can do it.

    uvicorn's `send` takes two calls, two dicts and two searches of each header for an answer. This
    writes the same bytes, and sets the same fields of uvicorn's cycle. It exists for speed alone:
    without it, an answer is two messages of ASGI. It saves 11 % of the API's CPU for a submit
    (`python -m benchmarks.job_path.submit_cpu`).

    Args:
        send: ASGI's; wrapped, by the access log for example, it must receive the messages.
        status: of an answer with a body.
        headers: with lower-case names and the content-length, without `connection`.
    """
    cycle = getattr(send, "__self__", None)
    if not isinstance(cycle, RequestResponseCycle):
        return False
    if cycle.response_started or cycle.disconnected or cycle.flow.write_paused:
        return False
    if not cycle.keep_alive or cycle.access_log or cycle.scope["method"] == "HEAD":
        return False
    # uvicorn refuses such a header.
    if HEADER_VALUE_RE.search(b" ".join([value for _, value in headers])):
        return False
    lines = [b"%b: %b\r\n" % header for header in (*cycle.default_headers, *headers)]
    cycle.response_started = True
    cycle.waiting_for_100_continue = False
    cycle.chunked_encoding = False
    cycle.transport.write(b"%b%b\r\n%b" % (STATUS_LINE[status], b"".join(lines), body))
    cycle.response_complete = True
    cycle.message_event.set()
    cycle.on_response()
    return True


def protocol_with(settings: Settings) -> type[Protocol]:
    """Return the protocol class with the limits of the settings."""
    return type("Protocol", (Protocol,), {"settings": settings})


async def watch(connections: Iterable[Any], timeout_s: float) -> None:
    """Check all connections of a server about once a second, until cancelled.

    It also logs if the process has no file descriptor left. libuv then accepts new connections and
    closes them, without an error.
    """
    loop = asyncio.get_running_loop()
    interval_s = min(1.0, timeout_s / 4)
    last, now, exhausted = loop.time(), 0.0, False
    while True:
        await asyncio.sleep(interval_s)
        # After a pause of the whole process, the bytes that came meanwhile are not read yet.
        now += min(loop.time() - last, 2 * interval_s)
        last = loop.time()
        for connection in list(connections):
            connection.check(now)
        before, exhausted = exhausted, not _descriptor_left()
        if exhausted and not before:
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            logger.error(
                "no file descriptor left of %d: new connections are closed; raise ulimit -n", limit
            )


def _descriptor_left() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return False
    return True


def _too_large(limits: Settings, what: str) -> HeaderTooLarge:
    return HeaderTooLarge(
        f"the request {what}; the limit of its head is {limits.header_limit_bytes} bytes and "
        f"{limits.header_limit_count} headers",
        hint="Shorten the address or the headers, for example cookies.",
    )


def _invalid() -> InvalidRequest:
    return InvalidRequest(
        "this is not a valid HTTP/1.1 request", hint="Send one; is it perhaps TLS?"
    )


def _timed_out(limits: Settings, what: str) -> RequestTimeout:
    return RequestTimeout(
        f"the request is incomplete: {what} not arrived within {limits.request_timeout_s:g} s",
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
    lines = b"".join(b"%b: %b\r\n" % header for header in headers)
    return STATUS_LINE[reply.status] + lines + b"\r\n" + reply.body
