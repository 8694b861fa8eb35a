"""The context of a handler whose verbs run in several threads, each with a batch of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from headrace.handler import Context
from headrace.observability import logs


class Traces(NamedTuple):
    """The traces of the batch at hand.

    Attributes:
        jobs: by the id of a job, where in a trace it was submitted (`traceparent`).
        batch: where in a trace the batch runs; "" for nowhere.
    """

    jobs: dict[str, str]
    batch: str = ""


#: Of the batch of this thread, where any job of it is part of a trace.
TRACES: Final[ContextVar[Traces | None]] = ContextVar("headrace_traces", default=None)


def begin(tag: str, seq: int, traces: Sequence[Sequence[Any]]) -> None:
    """This thread is at a verb of this batch from now on, for logs and for traces.

    Args:
        tag: how the names of the worker's batches begin.
        seq: the batch's number.
        traces: as in its frame: nothing, or the traces of its jobs and its own.
    """
    logs.CONCERN.set({"batch": logs.batch_name(tag, seq)})
    TRACES.set(Traces(*traces[0]) if traces else None)


def traces_of(ids: Sequence[str]) -> list[str]:
    """Where in a trace each of these jobs was submitted, whose verb begins in this thread."""
    traces = TRACES.get()
    parents = [traces.jobs.get(job_id, "") for job_id in ids] if traces else []
    logs.TRACE.set(parents[0] if len(parents) == 1 else "")
    return parents


#: What a verb runs in, by its name and how many items it has.
SpanOf = Callable[[str, int], AbstractContextManager[Any]]
_NOTHING: Final[AbstractContextManager[Any]] = nullcontext()


def no_span(verb: str, size: int) -> AbstractContextManager[Any]:
    """Where no spans are sent."""
    return _NOTHING


def overlaps(handler: Any) -> bool:
    """Whether a handler (or its class) lets its verbs run at the same time on different batches."""
    return bool(getattr(handler, "overlap", False))


class _AtHand(threading.local):
    request_ids: list[str]
    content_types: list[str]
    traceparents: list[str]


#: There is one context in a model process.
_at_hand: Final = _AtHand()


class ThreadContext(Context):
    """A context in which `request_ids` and `content_types` are those of the thread's own batch."""

    @property  # type: ignore[explicit-override] # it overrides a field
    def request_ids(self) -> list[str]:
        """The job ids of the batch at hand in this thread."""
        return getattr(_at_hand, "request_ids", [])

    @request_ids.setter
    def request_ids(self, ids: list[str]) -> None:
        _at_hand.request_ids = ids

    @property  # type: ignore[explicit-override] # it overrides a field
    def content_types(self) -> list[str]:
        """The content types of the batch at hand in this thread."""
        return getattr(_at_hand, "content_types", [])

    @content_types.setter
    def content_types(self, kinds: list[str]) -> None:
        _at_hand.content_types = kinds

    @property  # type: ignore[explicit-override] # it overrides a field
    def traceparents(self) -> list[str]:
        """Where in a trace each job of the batch at hand in this thread was submitted."""
        return getattr(_at_hand, "traceparents", [])

    @traceparents.setter
    def traceparents(self, parents: list[str]) -> None:
        _at_hand.traceparents = parents
