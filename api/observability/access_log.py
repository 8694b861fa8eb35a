"""The access log: one line for each request after its answer.

A line is formatted without `logging`, which saves 44 % of the API's CPU for a submit with this log
(`python -m benchmarks.job_path.submit_cpu`). The lines of one turn of the event loop are written
together. A line holds the request id, but nothing else of the query, the headers or the bodies.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, BinaryIO, Final

import msgspec

from api.http.messages import REQUEST_TRACE, Receive, Scope, Send
from api.observability.request_trace import ApiSpans, RequestTrace
from headrace.config.settings import Settings
from headrace.jobs.trace_context import Trace, trace_in
from headrace.observability import logs
from headrace.observability.log_format import shown
from headrace.observability.log_output import LogOutput
from headrace.observability.redaction import Redaction
from headrace.text import printable

LOGGER: Final = "access"
#: Machines request these all the time: they are logged at `debug` only.
QUIET: Final = frozenset({"/live", "/ready", "/metrics"})
PATH_MAX_CHARS: Final = 512
JOB_MAX_CHARS: Final = 128
#: Fields that the text of a console line has in its beginning, or that people do not need.
_IN_TEXT: Final = frozenset({"method", "path", "status", "duration_ms", "bytes", "route"})

App = Callable[[Scope, Receive, Send], Awaitable[None]]


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
        if context := Trace(parent) if parent else trace_in(scope["headers"]):
            fields["trace_id"] = context.trace_id
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
            f"{stamp} INFO    {LOGGER}: {printable(fields['method'])} {printable(fields['path'])} "
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
