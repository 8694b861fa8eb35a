"""Spans for a handler's verbs, in its model process. Their parent is the batch's span."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.trace import SpanKind, StatusCode

from headrace.jobs.trace_context import Trace
from headrace.observability.tracing import Tracing, context_of
from workers.model_process.context import TRACES


class VerbSpans:
    """Starts a span for each verb of a batch that is part of a trace."""

    def __init__(self, tracing: Tracing, model: str) -> None:
        self._tracing = tracing
        self._model = model

    @contextmanager
    def __call__(self, verb: str, size: int) -> Iterator[None]:
        """Run a verb in a span. Spans that the handler starts are its children."""
        traces = TRACES.get()
        if traces is None or not traces.batch:
            yield
            return
        parent = context_of(Trace(traces.batch))
        # An error's text may hold a part of the input, and the job's record has it anyway. So the
        # span has neither the text nor the traceback.
        with self._tracing.tracer.start_as_current_span(
            verb,
            parent,
            SpanKind.INTERNAL,
            {"headrace.model": self._model, "messaging.batch.message_count": size},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except Exception as error:
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(StatusCode.ERROR)
                raise
