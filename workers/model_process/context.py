"""The batch that each thread works on: for the handler's context, logs and traces."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from headrace.handler import Context
from headrace.observability import logs


class Traces(NamedTuple):
    """The traces of the thread's batch.

    Attributes:
        jobs: the `traceparent` of each job that has one, by its id.
        batch: the `traceparent` of the batch's span; "" without one.
    """

    jobs: dict[str, str]
    batch: str = ""


#: The traces of this thread's batch; None if no job of it is part of a trace.
TRACES: Final[ContextVar[Traces | None]] = ContextVar("headrace_traces", default=None)


def begin(tag: str, seq: int, traces: Sequence[Sequence[Any]]) -> None:
    """Set this thread's batch, for logs and traces.

    Args:
        tag: the prefix of this worker's batch names.
        seq: the batch's number.
        traces: as in the batch's frame: empty, or the fields of its `Traces`.
    """
    logs.LINE_FIELDS.set({"batch": logs.batch_name(tag, seq)})
    TRACES.set(Traces(*traces[0]) if traces else None)


def traces_of(ids: Sequence[str]) -> list[str]:
    """Return the `traceparent` of each job, and set the trace of this thread's log lines."""
    traces = TRACES.get()
    parents = [traces.jobs.get(job_id, "") for job_id in ids] if traces else []
    logs.TRACE.set(parents[0] if len(parents) == 1 else "")
    return parents


#: Returns the context manager that a verb runs in, by the verb's name and its number of items.
SpanOf = Callable[[str, int], AbstractContextManager[Any]]
_NO_SPAN: Final[AbstractContextManager[Any]] = nullcontext()


def no_span(verb: str, size: int) -> AbstractContextManager[Any]:
    """Return a context manager that does nothing, where no spans are sent."""
    return _NO_SPAN


def overlaps(handler: Any) -> bool:
    """Return whether a handler's verbs may run at the same time on different batches."""
    return bool(getattr(handler, "overlap", False))


class _Current(threading.local):
    request_ids: list[str]
    content_types: list[str]
    traceparents: list[str]


#: One for the process, as a model process has one context.
_current: Final = _Current()


class ThreadContext(Context):
    """A handler's context whose per-batch fields are those of the calling thread's batch."""

    @property  # type: ignore[explicit-override] # it overrides a field
    def request_ids(self) -> list[str]:
        """The job ids of this thread's batch."""
        return getattr(_current, "request_ids", [])

    @request_ids.setter
    def request_ids(self, ids: list[str]) -> None:
        _current.request_ids = ids

    @property  # type: ignore[explicit-override] # it overrides a field
    def content_types(self) -> list[str]:
        """The content types of this thread's batch."""
        return getattr(_current, "content_types", [])

    @content_types.setter
    def content_types(self, kinds: list[str]) -> None:
        _current.content_types = kinds

    @property  # type: ignore[explicit-override] # it overrides a field
    def traceparents(self) -> list[str]:
        """The `traceparent` of each job of this thread's batch."""
        return getattr(_current, "traceparents", [])

    @traceparents.setter
    def traceparents(self, parents: list[str]) -> None:
        _current.traceparents = parents
