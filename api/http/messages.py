"""Requests and replies on bare ASGI, for the routes that must be fast. Knows no job, no Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

from api.http.fast_response import write_whole
from headrace.access.api_key import EVERYBODY, Caller
from headrace.config.suggestions import did_you_mean
from headrace.errors import InvalidRequest

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Header = tuple[bytes, bytes]

JSON: Final = b"application/json"
NO_CONTENT: Final = 204
NO_STORE: Final = (b"cache-control", b"no-store")
#: Where a scope keeps what is seen of its request, where somebody wants to see it.
SEEN: Final = "headrace.seen"
#: Where a scope says on whose behalf its request is.
CALLER: Final = "headrace.caller"
#: After a refused body so much more is read and dropped, in bytes and seconds, so that the client
#: comes to read the answer instead of a reset connection.
DRAIN_MAX_BYTES: Final = 4 * 1024 * 1024
DRAIN_MAX_S: Final = 2.0


class ClientGone(Exception):
    """The client hung up; there is nobody to answer."""


class ResponseCutShort(Exception):
    """An answer that has begun ends here, in its midst: the connection is cut, which says so."""


class Reply(NamedTuple):
    """What is answered."""

    status: int
    body: bytes
    content_type: bytes = JSON
    headers: tuple[Header, ...] = ()


class ChunkedReply(NamedTuple):
    """What is answered, where it is long: to put it together would cost more than to send it.

    Memory of half a megabyte comes from the kernel anew each time.
    """

    status: int
    parts: Sequence[bytes]
    content_type: bytes
    headers: tuple[Header, ...] = ()


Write = Callable[[bytes], Awaitable[None]]


class StreamingReply(NamedTuple):
    """An answer whose body is made while it is sent.

    Attributes:
        run: writes the body. Once it has begun, an error can only cut the connection.
    """

    status: int
    run: Callable[[Write], Awaitable[None]]
    content_type: bytes
    headers: tuple[Header, ...] = ()


class Request:
    """One request.

    Attributes:
        method: in capitals.
        path: decoded.
        receive: ASGI's.
        caller: on whose behalf it is; the door says otherwise where keys are asked for.
        drain: the body was refused before it had all come.
    """

    __slots__ = ("_headers", "caller", "drain", "method", "path", "query_string", "receive")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query_string: bytes = scope["query_string"]
        self.receive = receive
        self.drain = False
        self.caller: Caller = EVERYBODY
        headers: list[Header] = scope["headers"]
        self._headers = dict(headers)
        if len(self._headers) < len(headers):
            self._headers = _joined(headers)

    def header(self, name: bytes) -> bytes:
        """A header's value by its lower-case name; several are joined with commas."""
        return self._headers.get(name, b"")

    def has(self, name: bytes) -> bool:
        """Whether a header is there at all, be it empty."""
        return name in self._headers

    def query(self, known: frozenset[str]) -> dict[str, str]:
        """The query's parameters.

        Raises:
            InvalidRequest: a name is not among the known ones, or stands twice.
        """
        if not self.query_string:
            return {}
        try:
            pairs = parse_qsl(
                self.query_string.decode("ascii"),
                keep_blank_values=True,
                errors="strict",
                max_num_fields=100,
            )
        except ValueError as error:
            raise InvalidRequest(f"the query string cannot be read: {error}") from None
        found: dict[str, str] = {}
        for name, value in pairs:
            if name not in known:
                raise unknown_name("query parameter", name, known)
            if name in found:
                raise InvalidRequest(f"the query parameter {name} is given twice")
            found[name] = value
        return found


def _joined(headers: list[Header]) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        found[name] = found[name] + b"," + value if name in found else value
    return found


def unknown_name(what: str, name: str, known: frozenset[str]) -> InvalidRequest:
    """The error for a name that nobody knows, with the nearest right one."""
    shown = name[:64]
    takes = f"known here: {', '.join(sorted(known))}" if known else "this route takes none"
    return InvalidRequest(f"unknown {what} {shown!r}{did_you_mean(shown, known)}", hint=takes)


async def send_reply(send: Send, reply: Reply, request: Request) -> None:
    """Answer; where the body was refused, close the connection once the client can have read it."""
    body = reply.body
    if reply.status == NO_CONTENT:  # where a length and a type are not allowed
        headers = [*reply.headers]
    else:
        headers = [
            (b"content-type", reply.content_type),
            (b"content-length", b"%d" % len(body)),
            *reply.headers,
        ]
    if request.drain:
        headers.append((b"connection", b"close"))
    elif reply.status != NO_CONTENT and write_whole(send, reply.status, headers, body):
        return
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    if not request.drain:
        await send({"type": "http.response.body", "body": body})
        return
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await _drain(request.receive)
    await send({"type": "http.response.body", "body": b""})


async def send_parts(send: Send, reply: ChunkedReply) -> None:
    """Answer with a body that is there in parts."""
    first, *rest = reply.parts
    headers = [
        (b"content-type", reply.content_type),
        (b"content-length", b"%d" % sum(map(len, reply.parts))),
        *reply.headers,
    ]
    if write_whole(send, reply.status, headers, first, rest):
        return
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    for part in reply.parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def send_stream(send: Send, stream: StreamingReply) -> None:
    """Answer with a body of unknown length."""
    headers = [(b"content-type", stream.content_type), *stream.headers]
    await send({"type": "http.response.start", "status": stream.status, "headers": headers})

    async def write(data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})

    await stream.run(write)
    await send({"type": "http.response.body", "body": b""})


async def hung_up(receive: Receive) -> None:
    """Wait until the client is gone; whatever else comes of its request is passed over."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _drain(receive: Receive) -> None:
    left = DRAIN_MAX_BYTES
    try:
        async with asyncio.timeout(DRAIN_MAX_S):
            while left > 0:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body"):
                    return
                left -= len(message.get("body", b""))
    except TimeoutError:
        return
