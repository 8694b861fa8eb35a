"""What the access log and the spans need of a request, and the spans."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from api.http.messages import REQUEST_ID, Message, Request, Scope, Send
from headrace.jobs.trace_context import Trace, trace_in
from headrace.observability import logs
from headrace.observability.tracing import Tracing, context_of, trace_of
from headrace.schema.serialization import JOBS_PATH

#: The status in the log if the client closed the connection before the answer.
CLIENT_GONE: Final = 499
_JOBS_PATH: Final = JOBS_PATH.encode()


class RequestTrace:
    """What the access log and the spans need of one request.

    Attributes:
        id: the request id; empty for none.
        template: the template of its path; empty for an unknown path.
        request: None until it is routed.
        job: the job that the request creates, or that its path names.
        status: the answer's status; CLIENT_GONE until the answer begins.
        size: the bytes of the answer's body so far.
        began: in seconds of `time.perf_counter()`.
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
        if template.startswith("/api/v1/jobs/{job_id}"):
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


class ApiSpans:
    """Begins the spans of one API process."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    @contextmanager
    def request(self, trace: RequestTrace) -> Iterator[None]:
        """Wrap a request in a span, below the span that its `traceparent` names, if any."""
        from opentelemetry.trace import SpanKind, StatusCode, use_span

        scope = trace.scope
        method = scope["method"]
        attributes = {
            "http.request.method": method,
            "url.path": scope["path"],
            "url.scheme": scope.get("scheme", "http"),
        }
        if scope.get("client"):
            attributes["client.address"] = scope["client"][0]
        span = self._tracing.tracer.start_span(
            method, context_of(trace_in(scope["headers"])), SpanKind.SERVER, attributes
        )
        own = trace_of(span)
        token = logs.TRACE.set(own.parent if own is not None else "")
        try:
            with use_span(span, record_exception=False, set_status_on_exception=False):
                yield
        finally:
            logs.TRACE.reset(token)
            if route := trace.template:
                span.update_name(f"{method} {route}")
                span.set_attribute("http.route", route)
            span.set_attribute("http.response.status_code", trace.status)
            span.set_attribute("http.response.body.size", trace.size)
            if trace.status >= 500:  # the server failed, not the client
                span.set_attribute("error.type", str(trace.status))
                span.set_status(StatusCode.ERROR)
            span.end()

    @contextmanager
    def submit(self, queue: str, job_id: str = "") -> Iterator[Trace | None]:
        """Wrap a submit in a span, below that of its request."""
        from opentelemetry.trace import SpanKind

        attributes: dict[str, Any] = {
            "messaging.system": "headrace",
            "messaging.operation.name": "submit",
            "messaging.operation.type": "send",
        }
        if queue:
            attributes["messaging.destination.name"] = queue
        if job_id:
            attributes["messaging.message.id"] = job_id
        name = f"submit {queue}" if queue else "submit"
        span = self._tracing.tracer.start_span(name, kind=SpanKind.PRODUCER, attributes=attributes)
        try:
            yield trace_of(span)
        finally:
            span.end()

    def close(self) -> None:
        """Send the spans that were not sent yet."""
        self._tracing.close()
