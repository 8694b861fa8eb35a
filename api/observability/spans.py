"""The API's spans: one for each request, and one for each submit that it leads to."""

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

#: From this status on it was not the client's fault.
_SERVER_ERROR: Final = 500


def api_spans(environ: Mapping[str, str]) -> ApiSpans | None:
    """The spans of this process; None where none are wanted."""
    found = tracing("api", environ)
    return ApiSpans(found) if found is not None else None


class ApiSpans:
    """Begins the spans of one API process.

    Args:
        sent_by: sends them.
    """

    def __init__(self, sent_by: Tracing) -> None:
        self._tracing = sent_by

    @contextmanager
    def request(self, seen: RequestTrace) -> Iterator[None]:
        """The span of a request, while it lasts: below the caller's, where it names one."""
        from opentelemetry.trace import SpanKind, StatusCode, use_span

        scope = seen.scope
        method = scope["method"]
        told = {"http.request.method": method, "url.path": scope["path"]}
        told["url.scheme"] = scope.get("scheme", "http")
        if scope.get("client"):
            told["client.address"] = scope["client"][0]
        tracer = self._tracing.tracer
        span = tracer.start_span(
            method, context_of(trace_in(scope["headers"])), SpanKind.SERVER, told
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
        """The span of a submit, while it lasts, below that of its request.

        Args:
            queue: where to; "" where there may be several.
            job_id: what; "" where there may be several.
        """
        from opentelemetry.trace import SpanKind

        told: dict[str, Any] = {
            "messaging.system": "headrace",
            "messaging.operation.name": "submit",
            "messaging.operation.type": "send",
        }
        if queue:
            told["messaging.destination.name"] = queue
        if job_id:
            told["messaging.message.id"] = job_id
        name = f"submit {queue}" if queue else "submit"
        span = self._tracing.tracer.start_span(name, kind=SpanKind.PRODUCER, attributes=told)
        try:
            yield trace_of(span)
        finally:
            span.end()

    def close(self) -> None:
        """Send what is left."""
        self._tracing.close()


def _parent(span: Span) -> str:
    place = trace_of(span)
    return place.parent if place is not None else ""
