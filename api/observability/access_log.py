"""The id of each request, and a line in the access log once it is answered.

A line is formatted without `logging`, which would take ten times as long; the lines of one turn of
the event loop are written at once. Of query, headers and bodies a line has the request's id alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, BinaryIO, Final

import msgspec

from api.http.messages import SEEN, Message, Receive, Request, Scope, Send
from api.observability.spans import ApiSpans
from headrace.config.settings import Settings
from headrace.jobs.serialization import JOBS_PATH
from headrace.jobs.trace_context import Trace, trace_in
from headrace.observability import logs
from headrace.observability.log_format import plain, shown
from headrace.observability.redaction import Redaction

REQUEST_ID: Final = b"x-request-id"
LOGGER: Final = "access"
#: The form of a valid request id; an invalid one is replaced.
_ID: Final = re.compile(rb"[A-Za-z0-9._:@/+=-]{1,128}")
#: Polled by machines: logged at `debug` only.
QUIET: Final = frozenset({"/live", "/ready", "/metrics"})
PATH_MAX_CHARS: Final = 512
#: The status in the log of a request whose client hung up.
GONE: Final = 499
_JOBS_PATH: Final = JOBS_PATH.encode()
_JOB_ROUTE: Final = "/api/v1/jobs/{job_id}"
#: In a text line these fields are in the sentence, not behind it.
_IN_TEXT: Final = frozenset({"method", "path", "status", "duration_ms", "bytes", "event", "route"})

App = Callable[[Scope, Receive, Send], Awaitable[None]]


class RequestTrace:
    """What is known of one request, from its beginning to its end.

    Attributes:
        scope: ASGI's.
        id: the request's id; empty where it has none.
        template: the template of its path; empty for an unknown path.
        name: the model, the job or the file in the path.
        request: the request as the router sees it, with its caller.
        job: the job that it submitted.
        status: of the answer; GONE before it begins.
        size: the bytes of the answer's body so far.
    """

    __slots__ = (
        "_began", "_send", "id", "job", "name", "request", "scope", "size", "status", "template",
    )  # fmt: skip

    def __init__(self, scope: Scope, send: Send, request_id: bytes) -> None:
        self.scope = scope
        self.id = request_id
        self.template = ""
        self.name = ""
        self.request: Request | None = None
        self.job = ""
        self.status = GONE
        self.size = 0
        self._send = send
        self._began = time.perf_counter()

    def found(self, template: str, name: str, request: Request) -> None:
        """Set the operation of the request."""
        self.template, self.name, self.request = template, name, request

    async def send(self, message: Message) -> None:
        """Observe ASGI's `send` and add the request's id to the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = message.get("headers", ())
            for name, value in headers:
                if name == b"location" and value.startswith(_JOBS_PATH):
                    self.job = value[len(_JOBS_PATH) :].decode("latin-1")
            if self.id:
                message = {**message, "headers": [*headers, (REQUEST_ID, self.id)]}
        elif message["type"] == "http.response.body":
            self.size += len(message.get("body", b""))
        await self._send(message)

    @property
    def duration_ms(self) -> float:
        """The time since it began."""
        return (time.perf_counter() - self._began) * 1000

    @property
    def key(self) -> str:
        """The id of its API key."""
        return "" if self.request is None else self.request.caller.key_id

    @property
    def job_id(self) -> str:
        """The job that it submitted, or that its path names."""
        return self.job or (self.name if self.template.startswith(_JOB_ROUTE) else "")


class AccessLog:
    """Writes a line for each request.

    Args:
        out: the stream.
        as_json: write JSON objects instead of text.
        fields: fields of every line.
        redaction: removes secrets.
        quiet: paths that are not logged.
    """

    def __init__(
        self,
        out: BinaryIO,
        *,
        as_json: bool,
        fields: Mapping[str, Any],
        redaction: Redaction,
        quiet: frozenset[str] = QUIET,
    ) -> None:
        self._out = out
        self._quiet = quiet
        head = {"level": "info", "logger": LOGGER, "event": "request", **fields}
        self._constant = msgspec.json.encode(head)[1:-1]
        self._second, self._whole = 0, b""
        self._redaction = redaction
        self._write = self._json if as_json else self._text
        self._lines: list[bytes] = []
        self._ids = f"{secrets.token_hex(6)}-"
        self._count = 0

    def new_id(self) -> bytes:
        """Return a new id for a request without one."""
        self._count += 1
        return f"{self._ids}{self._count:x}".encode()

    def record(self, seen: RequestTrace) -> None:
        """Write the line of a finished request."""
        scope = seen.scope
        if scope["path"] in self._quiet:
            return
        raw = scope.get("raw_path") or scope["path"].encode()
        fields: dict[str, Any] = {
            "method": scope["method"],
            "route": seen.template,
            "path": raw[:PATH_MAX_CHARS].decode("ascii", "backslashreplace"),
            "status": seen.status,
            "duration_ms": round(seen.duration_ms, 3),
            "bytes": seen.size,
            "request": seen.id.decode("ascii"),
        }
        if job := seen.job_id:
            fields["job"] = job[:128]
        if key := seen.key:
            fields["key"] = key
        if trace := _trace_of(scope):
            fields["trace_id"] = trace.trace_id
        client = scope.get("client")
        if client:
            fields["client"] = client[0]
        self.write(fields)

    def write(self, fields: dict[str, Any]) -> None:
        """Write a line with these fields, together with others of this turn of the loop."""
        line = self._write(fields)
        if not self._lines:
            asyncio.get_running_loop().call_soon(self._flush)
        self._lines.append(line)

    def _json(self, fields: dict[str, Any]) -> bytes:
        line = msgspec.json.encode(fields)
        if not line.isascii():
            # Escape line ends beyond ASCII, such as U+2028.
            line = json.dumps(fields).encode()
        stamp = self._stamp("%Y-%m-%dT%H:%M:%S", time.gmtime)
        return self._clean(b'{"timestamp":"%sZ",%s,%s\n' % (stamp, self._constant, line[1:]))

    def _text(self, fields: dict[str, Any]) -> bytes:
        stamp = self._stamp("%Y-%m-%d %H:%M:%S", time.localtime).decode()
        rest = " ".join(
            [f"{name}={shown(fields[name])}" for name in fields if name not in _IN_TEXT]
        )
        text = (
            f"{stamp} INFO    {LOGGER}: {plain(fields['method'])} {plain(fields['path'])} "
            f"{fields['status']} {fields['duration_ms']:.1f} ms {fields['bytes']} B  {rest}\n"
        )
        return self._clean(text.encode())

    def _stamp(self, form: str, broken: Callable[[float], time.struct_time]) -> bytes:
        """Return the time with milliseconds; the part up to the second is formatted once."""
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second, self._whole = second, time.strftime(form, broken(now)).encode()
        return b"%s.%03d" % (self._whole, int((now - second) * 1000))

    def _clean(self, line: bytes) -> bytes:
        if b"hr_" not in line and b"://" not in line:
            return line
        return self._redaction.clean(line.decode()).encode()

    def _flush(self) -> None:
        data, self._lines = b"".join(self._lines), []
        try:
            self._out.write(data)
            self._out.flush()
        except (OSError, ValueError):
            # The reader of the log is gone; requests are still answered.
            self._out = open(os.devnull, "wb")  # noqa: SIM115


def access_log(settings: Settings, environ: Mapping[str, str]) -> AccessLog:
    """Return the access log of this process, on standard error."""
    stream = sys.__stderr__ or sys.stderr
    return AccessLog(
        stream.buffer,
        as_json=logs.format_of(settings.log_format, stream) == logs.JSON,
        fields={"part": "api", "pid": os.getpid()},
        redaction=Redaction.of(environ, settings.redis_url),
        quiet=frozenset() if settings.log_level == "debug" else QUIET,
    )


def incoming_request_id(scope: Scope) -> bytes:
    """Return the valid id that a request has; empty without one."""
    for name, value in scope["headers"]:
        if name == REQUEST_ID:
            return value if _ID.fullmatch(value) else b""
    return b""


async def observe_request(
    app: App, seen: RequestTrace, receive: Receive, log: AccessLog | None, spans: ApiSpans | None
) -> None:
    """Answer a request, with a line in the log and a span.

    Args:
        app: answers.
        seen: the request.
        receive: ASGI's.
        log: writes the line; None for none.
        spans: records the span; None for none.
    """
    if log is not None and not seen.id:
        seen.id = log.new_id()
    scope = seen.scope
    scope[SEEN] = seen
    fields = {"request": seen.id.decode("ascii")} if seen.id else {}
    concern = logs.CONCERN.set(fields)
    span = spans.request(seen) if spans is not None and scope["path"] not in QUIET else None
    try:
        with span or contextlib.nullcontext():
            try:
                await app(scope, receive, seen.send)
            finally:
                if log is not None:
                    log.record(seen)
    finally:
        logs.CONCERN.reset(concern)


def _trace_of(scope: Scope) -> Trace | None:
    """Return the trace of a request: that of its span, or without spans the one it names."""
    if parent := logs.TRACE.get():
        return Trace(parent)
    return trace_in(scope["headers"])
