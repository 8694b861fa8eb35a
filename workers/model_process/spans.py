"""The spans of a handler's verbs, in its model process: below the batch that they run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.trace import SpanKind, StatusCode

from headrace.jobs.trace_context import Trace
from headrace.observability.tracing import Tracing, context_of
from workers.model_process.context import TRACES


class VerbSpans:
    """Begins a span for each verb of a batch that is part of a trace.

    Args:
        tracing: sends them.
        model: the model's name.
    """

    def __init__(self, tracing: Tracing, model: str) -> None:
        self._tracing = tracing
        self._model = model

    @contextmanager
    def __call__(self, verb: str, size: int) -> Iterator[None]:
        """While it lasts, spans of the handler's own are children of the verb's."""
        traces = TRACES.get()
        if traces is None or not traces.batch:
            yield
            return
        told: dict[str, str | int] = {"headrace.model": self._model}
        told["messaging.batch.message_count"] = size
        parent = context_of(Trace(traces.batch))
        # What it raises may hold a part of the input, and is told in the job's record: so neither
        # its text nor its traceback is in the span.
        with self._tracing.tracer.start_as_current_span(
            verb,
            parent,
            SpanKind.INTERNAL,
            {**told},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except Exception as error:
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(StatusCode.ERROR)
                raise
