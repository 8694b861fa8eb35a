"""The request id, and the access log: one line for each request after its answer.

A line is formatted without `logging`, which saves 44 % of the API's CPU for a submit with this log
(`python -m benchmarks.job_path.submit_cpu`). The lines of one turn of the event loop are written
together. A line holds the request id, but nothing else of the query, the headers or the bodies.
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

from api.http.messages import REQUEST_TRACE, Message, Receive, Request, Scope, Send
from api.observability.spans import ApiSpans
from headrace.config.settings import Settings
from headrace.jobs.serialization import JOBS_PATH
from headrace.jobs.trace_context import Trace, trace_in
from headrace.observability import logs
from headrace.observability.log_format import plain, shown
from headrace.observability.log_output import LogOutput
from headrace.observability.redaction import Redaction

REQUEST_ID: Final = b"x-request-id"
LOGGER: Final = "access"
#: A request id of any other form is ignored.
_ID: Final = re.compile(rb"[A-Za-z0-9._:@/+=-]{1,128}")
#: Machines request these all the time: they are logged at `debug` only.
QUIET: Final = frozenset({"/live", "/ready", "/metrics"})
PATH_MAX_CHARS: Final = 512
JOB_MAX_CHARS: Final = 128
#: The status in the log if the client closed the connection before the answer.
CLIENT_GONE: Final = 499
_JOBS_PATH: Final = JOBS_PATH.encode()
_JOB_ROUTE: Final = "/api/v1/jobs/{job_id}"
#: Fields that the text of a console line has in its beginning, or that people do not need.
_IN_TEXT: Final = frozenset({"method", "path", "status", "duration_ms", "bytes", "route"})

App = Callable[[Scope, Receive, Send], Awaitable[None]]


class RequestTrace:
    """What the access log and the spans need of one request.

    Attributes:
        scope: the ASGI scope.
        id: the request id; empty for none.
        template: the template of its path; empty for an unknown path.
        request: the request as its operation receives it; None until it is routed.
        job: the job that the request creates, or that its path names.
        status: the answer's status; CLIENT_GONE until the answer begins.
        size: the bytes of the answer's body so far.
        began: `time.perf_counter()` at its beginning.
    """

    __slots__ = ("_send", "began", "id", "job", "request", "scope", "size", "status", "template")

    def __init__(self, scope: Scope, send: Send, request_id: bytes) -> None:
        self.scope = scope
        self.id = request_id
        self.template = ""
        self.request: Request | None = None
        self.job = ""
        self.status = CLIENT_GONE
        self.size = 0
        self.began = time.perf_counter()
        self._send = send

    def routed(self, template: str, parameter: str, request: Request) -> None:
        """Add the template of the path and the value of its first parameter."""
        self.template, self.request = template, request
        if template.startswith(_JOB_ROUTE):
            self.job = parameter

    async def send(self, message: Message) -> None:
        """Send an ASGI message, with the request id among the answer's headers."""
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


class AccessLog:
    """Writes a line for each request whose path is not quiet."""

    def __init__(
        self,
        out: LogOutput | BinaryIO,
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
        self._second, self._second_text = 0, b""
        self._redaction = redaction
        self._format = self._json if as_json else self._text
        self._lines: list[bytes] = []
        self._id_prefix = f"{secrets.token_hex(6)}-"
        self._count = 0

    def new_id(self) -> bytes:
        """Return an id for a request without one."""
        self._count += 1
        return f"{self._id_prefix}{self._count:x}".encode()

    def write(self, trace: RequestTrace) -> None:
        """Write the line of a request that has ended, with the other lines of this turn."""
        scope = trace.scope
        if scope["path"] in self._quiet:
            return
        path = scope.get("raw_path") or scope["path"].encode()
        fields: dict[str, Any] = {
            "method": scope["method"],
            "route": trace.template,
            "path": path[:PATH_MAX_CHARS].decode("ascii", "backslashreplace"),
            "status": trace.status,
            "duration_ms": round((time.perf_counter() - trace.began) * 1000, 3),
            "bytes": trace.size,
            "request": trace.id.decode("ascii"),
        }
        if trace.job:
            fields["job"] = trace.job[:JOB_MAX_CHARS]
        if trace.request is not None and trace.request.caller.key_id:
            fields["key"] = trace.request.caller.key_id
        # The trace of the span; without spans, the trace that the request names.
        parent = logs.TRACE.get()
        if found := Trace(parent) if parent else trace_in(scope["headers"]):
            fields["trace_id"] = found.trace_id
        if client := scope.get("client"):
            fields["client"] = client[0]
        line = self._format(fields)
        if b"hr_" in line or b"://" in line:
            line = self._redaction.clean(line.decode()).encode()
        if not self._lines:
            asyncio.get_running_loop().call_soon(self._flush)
        self._lines.append(line)

    def _json(self, fields: dict[str, Any]) -> bytes:
        line = msgspec.json.encode(fields)
        if not line.isascii():
            # Some line separators are not ASCII, such as U+2028.
            line = json.dumps(fields).encode()
        stamp = self._stamp("%Y-%m-%dT%H:%M:%S", time.gmtime)
        return b'{"timestamp":"%sZ",%s,%s\n' % (stamp, self._constant, line[1:])

    def _text(self, fields: dict[str, Any]) -> bytes:
        stamp = self._stamp("%Y-%m-%d %H:%M:%S", time.localtime).decode()
        rest = " ".join(
            [f"{name}={shown(fields[name])}" for name in fields if name not in _IN_TEXT]
        )
        return (
            f"{stamp} INFO    {LOGGER}: {plain(fields['method'])} {plain(fields['path'])} "
            f"{fields['status']} {fields['duration_ms']:.1f} ms {fields['bytes']} B  {rest}\n"
        ).encode()

    def _stamp(self, form: str, parts_of: Callable[[float], time.struct_time]) -> bytes:
        """Return the time with milliseconds; a second is formatted once."""
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second, self._second_text = second, time.strftime(form, parts_of(now)).encode()
        return b"%s.%03d" % (self._second_text, int((now - second) * 1000))

    def _flush(self) -> None:
        data, self._lines = b"".join(self._lines), []
        self._out.write(data)


def access_log(settings: Settings, environ: Mapping[str, str]) -> AccessLog:
    """Return the access log of this process, on standard error."""
    stream = sys.__stderr__ or sys.stderr
    return AccessLog(
        logs.standard_error(),
        as_json=logs.format_of(settings.log_format, stream) == logs.JSON,
        fields={"part": "api", "pid": os.getpid()},
        redaction=Redaction.of(environ, settings.redis_url),
        quiet=frozenset() if settings.log_level == "debug" else QUIET,
    )


def incoming_request_id(scope: Scope) -> bytes:
    """Return the id that a request brings; empty if it has none or one of another form."""
    for name, value in scope["headers"]:
        if name == REQUEST_ID:
            return value if _ID.fullmatch(value) else b""
    return b""


async def observe_request(
    app: App, trace: RequestTrace, receive: Receive, log: AccessLog | None, spans: ApiSpans | None
) -> None:
    """Answer a request with a line in the access log, a span, or both."""
    if log is not None and not trace.id:
        trace.id = log.new_id()
    scope = trace.scope
    scope[REQUEST_TRACE] = trace
    line_fields = logs.LINE_FIELDS.set({"request": trace.id.decode("ascii")} if trace.id else {})
    span = spans.request(trace) if spans is not None and scope["path"] not in QUIET else None
    try:
        with span or contextlib.nullcontext():
            try:
                await app(scope, receive, trace.send)
            finally:
                if log is not None:
                    log.write(trace)
    finally:
        logs.LINE_FIELDS.reset(line_fields)
