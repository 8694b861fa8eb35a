"""OpenTelemetry in this process, if its extra is installed and an endpoint is configured.

The standard variables configure it (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME,
OTEL_TRACES_SAMPLER and so on). Without an endpoint it is not imported.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from headrace._version import __version__
from headrace.jobs.trace_context import Trace, read_trace

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

logger = logging.getLogger(__name__)

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
#: A process that stops discards the spans that it could not send within this time.
CLOSE_MAX_S: Final = 1.0
#: Seconds between two log lines about a receiver that does not answer.
AWAY_S: Final = 60.0
NS_PER_S: Final = 1_000_000_000


def wanted(environ: Mapping[str, str]) -> bool:
    """Return whether the environment configures an endpoint for spans."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() == "none":
        return False
    return any(environ.get(name) for name in _ENDPOINTS)


class Tracing:
    """The spans of this process."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self.tracer: Tracer = provider.get_tracer("headrace", __version__)

    def close(self) -> None:
        """Send the remaining spans, for at most one second."""
        # force_flush ignores its timeout while it retries.
        last = threading.Thread(target=self._provider.force_flush, daemon=True)
        last.start()
        last.join(CLOSE_MAX_S)


class _ThrottledErrors(logging.Filter):
    """Lets one error pass per minute: without a receiver there are several per second."""

    _next_at = 0.0

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if record.levelno < logging.ERROR or now < self._next_at:
            return False
        self._next_at = now + AWAY_S
        return True


def tracing(part: str, environ: Mapping[str, str], *, for_all: bool = False) -> Tracing | None:
    """Return the tracing of this process; None if no endpoint is configured.

    Args:
        part: the component, for the service name unless OTEL_SERVICE_NAME is set.
        for_all: whether the instrumentation of users' code uses it too.
    """
    if not wanted(environ):
        return None
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        logger.warning("no spans are sent: install headrace[otel] (%s)", error)
        return None
    own: dict[str, str | int] = {SERVICE_VERSION: __version__, "process.pid": os.getpid()}
    if not environ.get("OTEL_SERVICE_NAME"):
        own[SERVICE_NAME] = f"headrace-{part}"
    # Without this the process waits for the exporter at its end.
    provider = TracerProvider(resource=Resource.create({**own}), shutdown_on_exit=False)
    logging.getLogger(OTLPSpanExporter.__module__).addFilter(_ThrottledErrors())
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    if for_all:
        trace.set_tracer_provider(provider)
    return Tracing(provider)


def context_of(parent: Trace | None) -> Context:
    """Return a context in which spans are children of `parent`, or have no parent."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if parent is None:
        return Context()
    carrier = {"traceparent": parent.parent, "tracestate": parent.state}
    return TraceContextTextMapPropagator().extract(carrier, Context())


def trace_of(span: Span) -> Trace | None:
    """Return the trace context of a span; None if it has none."""
    from opentelemetry.context import Context
    from opentelemetry.trace import set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, set_span_in_context(span, Context()))
    return read_trace(carrier.get("traceparent"), carrier.get("tracestate", ""))
