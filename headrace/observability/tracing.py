"""OpenTelemetry in this process, where its extra is installed and an endpoint is configured.

Everything is configured by the standard variables (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME,
OTEL_TRACES_SAMPLER and so on). Without an endpoint nothing of it is imported.
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
#: A process that is to stop gives up what it could not send by then.
CLOSE_MAX_S: Final = 1.0
#: That the receiver is away is said so often.
AWAY_S: Final = 60.0
NS_PER_S: Final = 1_000_000_000


def wanted(environ: Mapping[str, str]) -> bool:
    """Whether spans are to be sent anywhere."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() == "none":
        return False
    return any(environ.get(name) for name in _ENDPOINTS)


class Tracing:
    """The spans of this process.

    Attributes:
        tracer: begins them.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self.tracer: Tracer = provider.get_tracer("headrace", __version__)

    def close(self) -> None:
        """Send what is left, for a second at the most."""
        # It waits as long as it tries again, whatever time limit it is given.
        last = threading.Thread(target=self._provider.force_flush, daemon=True)
        last.start()
        last.join(CLOSE_MAX_S)


class _NowAndThen(logging.Filter):
    """Lets a line pass now and then: of a receiver that is away there would be several a second."""

    _next_at = 0.0

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if record.levelno < logging.ERROR or now < self._next_at:
            return False
        self._next_at = now + AWAY_S
        return True


def tracing(part: str, environ: Mapping[str, str], *, for_all: bool = False) -> Tracing | None:
    """What this process sends its spans by; None where none are wanted.

    Args:
        part: names the service, where OTEL_SERVICE_NAME does not.
        environ: the environment of this process.
        for_all: whether the instrumentation of users' code, too, is to send by it.
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
        logger.warning(
            "an OTLP endpoint is configured, but no spans are sent: %s; install headrace[otel]",
            error,
        )
        return None
    own: dict[str, str | int] = {SERVICE_VERSION: __version__, "process.pid": os.getpid()}
    if not environ.get("OTEL_SERVICE_NAME"):
        own[SERVICE_NAME] = f"headrace-{part}"
    # A thread of its own waits for the exporter at the end of the process otherwise.
    provider = TracerProvider(resource=Resource.create({**own}), shutdown_on_exit=False)
    logging.getLogger(OTLPSpanExporter.__module__).addFilter(_NowAndThen())
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    if for_all:
        trace.set_tracer_provider(provider)
    return Tracing(provider)


def context_of(parent: Trace | None) -> Context:
    """A context in which spans are children of this; without it, spans without a parent."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if parent is None:
        return Context()
    carrier = {"traceparent": parent.parent, "tracestate": parent.state}
    return TraceContextTextMapPropagator().extract(carrier, Context())


def trace_of(span: Span) -> Trace | None:
    """The span as a trace's place; None where it is none."""
    from opentelemetry.context import Context
    from opentelemetry.trace import set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, set_span_in_context(span, Context()))
    return read_trace(carrier.get("traceparent"), carrier.get("tracestate", ""))
