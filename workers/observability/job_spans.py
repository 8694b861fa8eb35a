"""Spans of the jobs in a worker that are part of a trace.

Each such job has two spans below the span of its submission. `wait` lasts until its batch is
dispatched. `process` lasts until Redis has confirmed its end, with `settle` as its last part. A
batch with such jobs has a span `batch` with links to all of them. Its parent is the `process` of
a job of it if all are part of the same trace; otherwise it starts a trace.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opentelemetry.trace import Link, SpanKind, StatusCode, set_span_in_context

from headrace.jobs.job import State
from headrace.observability.tracing import NS_PER_S, Tracing, context_of, trace_of
from headrace.redis.keys import queue_name
from workers.observability.failure_log import error_record

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from workers.jobs.leased_job import Batch, LeasedJob
    from workers.jobs.settlement import Settlement


@dataclass(slots=True)
class _Job:
    process: Span
    settle: Span | None = None


class JobSpans:
    """The spans of a worker, used by the consumer's thread only."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._jobs: dict[str, _Job] = {}
        self._batches: dict[int, Span] = {}

    def started(self, batch: Batch) -> None:
        """Start the spans of a dispatched batch, and set the batch's span."""
        now_ns = time.time_ns()
        free_at = batch.free_at
        processes = [self._process(job, free_at, now_ns) for job in batch.jobs if _trace(job)]
        if not processes:
            return
        traces = {span.get_span_context().trace_id for span in processes}
        below = set_span_in_context(processes[0]) if len(traces) == 1 else context_of(None)
        message = batch.jobs[0].message
        model = message.model if message is not None else ""
        span = self._tracing.tracer.start_span(
            f"batch {model}",
            below,
            SpanKind.INTERNAL,
            {
                "headrace.model": model,
                "headrace.batch.id": batch.id,
                "headrace.batch.reason": batch.reason,
                "messaging.batch.message_count": len(batch.jobs),
            },
            [Link(process.get_span_context()) for process in processes],
            now_ns,
        )
        self._batches[batch.seq] = span
        place = trace_of(span)
        batch.span = place.parent if place is not None else ""

    def _process(self, job: LeasedJob, free_at: float, now_ns: int) -> Span:
        message = job.message
        assert message is not None  # noqa: S101 - a job of a trace was read from its message
        queue, parent = queue_name(message.model), context_of(message.trace)
        attributes = {
            "messaging.system": "headrace",
            "messaging.destination.name": queue,
            "messaging.message.id": job.id,
        }
        waited_ns = int((job.dispatched_at - job.enqueued_at) * NS_PER_S)
        tracer = self._tracing.tracer
        wait = tracer.start_span(
            f"wait {queue}", parent, SpanKind.INTERNAL, attributes, start_time=now_ns - waited_ns
        )
        queued_s, hold_s = job.claimed_at - job.enqueued_at, job.hold_s(free_at)
        parts = {"queued": queued_s, "hold": hold_s}
        parts["device_wait"] = max(0.0, waited_ns / NS_PER_S - queued_s - hold_s)
        for name, took_s in parts.items():
            wait.set_attribute(f"headrace.{name}_ms", round(took_s * 1000, 3))
        wait.end(now_ns)
        attributes |= {"messaging.operation.name": "process", "messaging.operation.type": "process"}
        span = tracer.start_span(
            f"process {queue}", parent, SpanKind.CONSUMER, attributes, start_time=now_ns
        )
        span.set_attribute("headrace.attempt", job.attempts)
        self._jobs[job.token] = _Job(span)
        return span

    def finished(self, batch: Batch) -> None:
        """End the span of a batch that has ended, or was lost with its process."""
        span = self._batches.pop(batch.seq, None)
        if span is None:
            return
        span.end()
        for job in batch.jobs:
            spans = self._jobs.get(job.token)
            if spans is not None:
                context = set_span_in_context(spans.process)
                spans.settle = self._tracing.tracer.start_span("settle", context)

    def preempted(self, batch: Batch) -> None:
        """End the spans of a batch that was preempted by another model's."""
        self.finished(batch)
        for job in batch.jobs:
            self._over(job.token, "")

    def settled(self, settlements: Sequence[Settlement]) -> None:
        """End the spans of jobs that Redis has settled."""
        if self._jobs:
            for settlement in settlements:
                code = ""
                if settlement.retried or settlement.state != State.SUCCEEDED:
                    # The code alone: the text may contain a part of the input.
                    code = error_record(settlement).type if settlement.value else settlement.state
                self._over(settlement.token, code)

    def released(self, jobs: Sequence[LeasedJob]) -> None:
        """End the spans of jobs that were released."""
        if self._jobs:
            for job in jobs:
                self._over(job.token, "replica-lost")

    def _over(self, token: str, error: str) -> None:
        job = self._jobs.pop(token, None)
        if job is None:
            return
        if job.settle is not None:
            job.settle.end()
        if error:
            job.process.set_attribute("error.type", error)
            job.process.set_status(StatusCode.ERROR)
        job.process.end()

    def close(self) -> None:
        """End all open spans, as the worker ends."""
        for token in list(self._jobs):
            self._over(token, "")
        self._tracing.close()


def _trace(job: LeasedJob) -> bool:
    return job.message is not None and job.message.trace is not None
