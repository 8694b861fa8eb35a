"""Requests and answers on plain ASGI, which is faster than a framework's. Independent of jobs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, NamedTuple, Self
from urllib.parse import parse_qsl, unquote

import msgspec

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
#: Answers with these statuses have no body: 204 and 304 (RFC 9110, 15.3.5 and 15.4.5).
BODILESS: Final = frozenset({NO_CONTENT, 304})
NO_STORE: Final = (b"cache-control", b"no-store")
REQUEST_ID: Final = b"x-request-id"
#: A request id of any other form is ignored.
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:@/+=-]{1,128}")
#: The key of the `RequestTrace` in the scope of a request that is logged or has a span.
REQUEST_TRACE: Final = "headrace.request_trace"


class ClientGone(Exception):
    """The client hung up; no answer can be sent."""


class ResponseCutShort(Exception):
    """An answer that has begun cannot be completed: the connection is closed."""


class Reply(NamedTuple):
    """An answer with its whole body."""

    status: int
    body: bytes
    content_type: bytes = JSON
    headers: tuple[Header, ...] = ()


def json_reply(document: Any, status: int = 200) -> Reply:
    """Return a JSON answer that must not be cached."""
    return Reply(status, msgspec.json.encode(document), headers=(NO_STORE,))


Write = Callable[[bytes], Awaitable[None]]


class StreamingReply(NamedTuple):
    """An answer whose body `run` writes; an error of it can only close the connection."""

    status: int
    run: Callable[[Write], Awaitable[None]]
    content_type: bytes
    headers: tuple[Header, ...] = ()


async def write_nothing(_: Write) -> None:
    """Write no body: the answer to HEAD."""


class Delegated(NamedTuple):
    """The answer is left to the FastAPI application, which has the mounted files."""


Answer = Reply | StreamingReply | Delegated


def segments_of(scope: Scope) -> list[str]:
    """Return the decoded segments of a request's path, the first of which is empty.

    An encoded slash stays in its segment: a proxy that has rules for paths does not see it as one.
    """
    raw: bytes = scope.get("raw_path") or b""
    if b"%" not in raw:
        path: str = scope["path"]
        return path.split("/")
    return [unquote(segment) for segment in raw.decode("latin-1").split("/")]


def incoming_request_id(scope: Scope) -> bytes:
    """Return the id that a request brings; empty if it has none or one of another form."""
    for name, value in scope["headers"]:
        if name == REQUEST_ID:
            return value if _REQUEST_ID.fullmatch(value) else b""
    return b""


class Request:
    """One request.

    Attributes:
        path: decoded.
        caller: the API key that makes it; everybody where no keys are required.
        drain: the body was refused before all of it was received.
        target: what was changed, for the audit log, if the path does not name it.
        noted: the detail of a change in the audit log, besides its operation and target; None if
            the log needs no entry.
        body_bytes: the length of the body, if it was read as a whole.
        headers: as they were sent, with names in lower case.
    """

    __slots__ = (
        "_headers", "body_bytes", "caller", "drain", "headers", "method", "noted", "path",
        "query_string", "receive", "target",
    )  # fmt: skip

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query_string: bytes = scope["query_string"]
        self.receive = receive
        self.drain = False
        self.target = ""
        self.noted: str | None = ""
        self.body_bytes = 0
        self.caller: Caller = EVERYBODY
        self.headers: list[Header] = scope["headers"]
        self._headers: dict[bytes, bytes] = dict(self.headers)
        if len(self._headers) < len(self.headers):
            self._headers = _joined(self.headers)

    def header(self, name: bytes) -> bytes:
        """Return a header's value by its lower-case name; several values are joined with commas."""
        return self._headers.get(name, b"")

    def has(self, name: bytes) -> bool:
        """Return whether a header is present, even if it is empty."""
        return name in self._headers

    def query(
        self, known: frozenset[str] = frozenset(), *, ignore_unknown: bool = False
    ) -> dict[str, str]:
        """Return the query's parameters; raise InvalidRequest for an unknown or a repeated name."""
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
            raise InvalidRequest(
                f"the query string cannot be read: {error}",
                hint="Send up to 100 names and values, percent-encoded in UTF-8: ?name=value&…",
            ) from None
        values: dict[str, str] = {}
        for name, value in pairs:
            if name not in known:
                if ignore_unknown:
                    continue
                raise unknown_name("query parameter", name, known)
            if name in values:
                raise InvalidRequest(
                    f"the query parameter {name} is given twice", hint="Give it once."
                )
            values[name] = value
        return values


def _joined(headers: list[Header]) -> dict[bytes, bytes]:
    joined: dict[bytes, bytes] = {}
    for name, value in headers:
        joined[name] = joined[name] + b"," + value if name in joined else value
    return joined


def unknown_name(what: str, name: str, known: frozenset[str]) -> InvalidRequest:
    """Return the error for an unknown name, with the nearest known one."""
    shown = name[:64]
    takes = f"known here: {', '.join(sorted(known))}" if known else "this route takes none"
    return InvalidRequest(f"unknown {what} {shown!r}{did_you_mean(shown, known)}", hint=takes)


class HangUp:
    """Notices while it is entered that a client hangs up; the rest of its request is ignored.

    Args:
        receive: that of the request. Nothing else may receive meanwhile.
        then: called once the client is gone.

    Attributes:
        gone: the client has hung up.
    """

    __slots__ = ("_over", "_receive", "_then", "_watcher", "gone")

    def __init__(self, receive: Receive, then: Callable[[], object] = lambda: None) -> None:
        self.gone = False
        self._receive = receive
        self._then = then
        self._over = asyncio.Event()

    def __enter__(self) -> Self:
        self._watcher = asyncio.create_task(self._watch())
        return self

    def __exit__(self, *_: object) -> None:
        self._watcher.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        self.end_waits()
        self._then()

    async def receive(self) -> Message:
        """Wait until the client hangs up. Several waits may do so at the same time."""
        await self._over.wait()
        return {"type": "http.disconnect"}

    def end_waits(self) -> None:
        """Let all that `receive` end as if the client had hung up."""
        self._over.set()


_ONE_RANGE: Final = re.compile(rb"bytes[ \t]*=[ \t]*(\d{0,19})[ \t]*-[ \t]*(\d{0,19})[ \t]*")


class ByteRange(NamedTuple):
    """The bytes from `start` to before `end`."""

    start: int
    end: int


class UnsatisfiableRange(Exception):
    """The requested range has no byte of the content."""


def requested_range(
    range_header: bytes, if_range: bytes, etag: bytes, size: int
) -> ByteRange | None:
    """Return the range that a request wants; None for all bytes.

    Several ranges, other units and invalid headers are ignored, as the RFC allows. So is a range
    whose If-Range names another version of the content.

    Raises:
        UnsatisfiableRange: the range begins after the end.
    """
    if not range_header or (if_range and if_range.strip() != etag):
        return None
    bounds = _ONE_RANGE.fullmatch(range_header.strip())
    if bounds is None or not (bounds[1] or bounds[2]):
        return None
    if not bounds[1]:
        length = int(bounds[2])
        if not length or not size:
            raise UnsatisfiableRange
        return ByteRange(max(0, size - length), size)
    start = int(bounds[1])
    last = int(bounds[2]) if bounds[2] else size - 1
    if bounds[2] and last < start:
        return None
    if start >= size:
        raise UnsatisfiableRange
    return ByteRange(start, min(last, size - 1) + 1)
