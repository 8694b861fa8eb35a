"""The API's spans: one for each request, and one for each submit within it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from api.observability.request_trace import RequestTrace
from headrace.jobs.trace_context import Trace, trace_in
from headrace.observability import logs
from headrace.observability.tracing import Tracing, context_of, trace_of, tracing

#: From this status on the server failed, not the client.
_SERVER_ERROR: Final = 500


def api_spans(environ: Mapping[str, str]) -> ApiSpans | None:
    """Return the spans of this process; None if tracing is off."""
    enabled = tracing("api", environ)
    return ApiSpans(enabled) if enabled is not None else None


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
            if trace.status >= _SERVER_ERROR:
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
