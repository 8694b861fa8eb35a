"""The spans of jobs in a worker, for those that are part of a trace.

For each such job, below the span in which it was submitted: `wait` (from the submit until its batch
left) and `process` (until Redis has taken its end), with `settle` as its last part. For each batch
that has one: `batch`, with links to all of them. It stands below the `process` of its job where all
are of one trace, and in a trace of its own otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import Link, SpanKind, StatusCode, set_span_in_context

from headrace.jobs.job import State
from headrace.observability.tracing import NS_PER_S, Tracing, context_of, trace_of
from headrace.redis.keys import queue_name

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from workers.jobs.batch import Batch
    from workers.jobs.leased_job import LeasedJob
    from workers.jobs.settlement import Settlement


@dataclass(slots=True)
class _Job:
    process: Span
    settle: Span | None = None


class JobSpans:
    """The spans of one worker; all calls come from the consumer's thread.

    Args:
        tracing: sends them.
    """

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._jobs: dict[str, _Job] = {}
        self._batches: dict[int, Span] = {}

    def started(self, batch: Batch) -> None:
        """A batch is handed over; its span stands in it from now on."""
        now_ns = time.time_ns()
        processes = [self._process(job, now_ns) for job in batch.jobs if _trace(job)]
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
            [Link(one.get_span_context()) for one in processes],
            now_ns,
        )
        self._batches[batch.seq] = span
        place = trace_of(span)
        batch.span = place.parent if place is not None else ""

    def _process(self, job: LeasedJob, now_ns: int) -> Span:
        message = job.message
        assert message is not None  # noqa: S101 - one that is part of a trace has one
        queue, parent = queue_name(message.model), context_of(message.trace)
        told = {
            "messaging.system": "headrace",
            "messaging.destination.name": queue,
            "messaging.message.id": job.id,
        }
        waited_ns = int((job.dispatched_at - job.enqueued_at) * NS_PER_S)
        tracer = self._tracing.tracer
        wait = tracer.start_span(
            f"wait {queue}", parent, SpanKind.INTERNAL, told, start_time=now_ns - waited_ns
        )
        wait.end(now_ns)
        told |= {"messaging.operation.name": "process", "messaging.operation.type": "process"}
        span = tracer.start_span(
            f"process {queue}", parent, SpanKind.CONSUMER, told, start_time=now_ns
        )
        span.set_attribute("headrace.attempt", job.attempts)
        self._jobs[job.token] = _Job(span)
        return span

    def finished(self, batch: Batch) -> None:
        """A batch left its model process, or was lost with it."""
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
        """A batch came back, as another model's was to run first."""
        self.finished(batch)
        for job in batch.jobs:
            self._over(job.token, "")

    def settled(self, settlements: Sequence[Settlement]) -> None:
        """Redis has taken how these jobs have ended."""
        if self._jobs:
            for one in settlements:
                failed = one.retried or one.state != State.SUCCEEDED
                self._over(one.token, _error_of(one) if failed else "")

    def released(self, jobs: Sequence[LeasedJob]) -> None:
        """Redis has taken these jobs back."""
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
        """The worker ends: nothing more becomes of what is open."""
        for token in list(self._jobs):
            self._over(token, "")
        self._tracing.close()


def _trace(job: LeasedJob) -> bool:
    return job.message is not None and job.message.trace is not None


def _error_of(settlement: Settlement) -> str:
    """The code of its error; its text may hold a part of the input."""
    found: Any = settlement.value
    text = found if isinstance(found, bytes) else str(found).encode()
    head, _, rest = text.partition(b'{"type":"')
    return rest.partition(b'"')[0].decode() if not head and rest else str(settlement.state)
