"""The API's spans: one for each request, and one for each submit within it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from headrace.jobs.trace_context import Trace, trace_in
from headrace.observability import logs
from headrace.observability.tracing import Tracing, context_of, trace_of, tracing

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from api.observability.access_log import RequestTrace

#: From this status on it is an error of the server.
_SERVER_ERROR: Final = 500


def api_spans(environ: Mapping[str, str]) -> ApiSpans | None:
    """Return the spans of this process; None where tracing is off."""
    found = tracing("api", environ)
    return ApiSpans(found) if found is not None else None


class ApiSpans:
    """Starts the spans of one API process.

    Args:
        exporter: sends them.
    """

    def __init__(self, exporter: Tracing) -> None:
        self._tracing = exporter

    @contextmanager
    def request(self, seen: RequestTrace) -> Iterator[None]:
        """Record the span of a request, as a child of the client's span if it names one."""
        from opentelemetry.trace import SpanKind, StatusCode, use_span

        scope = seen.scope
        method = scope["method"]
        attributes = {"http.request.method": method, "url.path": scope["path"]}
        attributes["url.scheme"] = scope.get("scheme", "http")
        if scope.get("client"):
            attributes["client.address"] = scope["client"][0]
        tracer = self._tracing.tracer
        span = tracer.start_span(
            method, context_of(trace_in(scope["headers"])), SpanKind.SERVER, attributes
        )
        token = logs.TRACE.set(_parent(span))
        try:
            with use_span(span, record_exception=False, set_status_on_exception=False):
                yield
        finally:
            logs.TRACE.reset(token)
            if route := seen.template:
                span.update_name(f"{method} {route}")
                span.set_attribute("http.route", route)
            span.set_attribute("http.response.status_code", seen.status)
            span.set_attribute("http.response.body.size", seen.size)
            if seen.status >= _SERVER_ERROR:
                span.set_attribute("error.type", str(seen.status))
                span.set_status(StatusCode.ERROR)
            span.end()

    @contextmanager
    def submit(self, queue: str, job_id: str = "") -> Iterator[Trace | None]:
        """Record the span of a submit, as a child of the request's span.

        Args:
            queue: the queue; "" for several.
            job_id: the job; "" for several.
        """
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
        """Send the remaining spans."""
        self._tracing.close()


def _parent(span: Span) -> str:
    place = trace_of(span)
    return place.parent if place is not None else ""
