"""The batch that each thread works on: its items, for the handler's context, logs and traces."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from headrace.handler import Context
from headrace.observability import logs
from workers.protocol.frames import Traces, batch_name


class ItemDetails(NamedTuple):
    """What the handler gets with an input.

    Attributes:
        parameters: a value for each parameter that the model declares.
        headers: the headers of the request that the model has chosen.
        metadata: the client's own data.
        part_types: the content type of each part of the input that became bytes or text.
    """

    parameters: dict[str, Any]
    headers: dict[str, str]
    metadata: dict[str, Any]
    part_types: dict[str, str]


#: A job's id, its input as the handler gets it, its content type, and what comes with it, if
#: anything does.
Input = tuple[str, Any, str, ItemDetails | None]


#: The traces of this thread's batch; None if no job of it is part of a trace.
TRACES: Final[ContextVar[Traces | None]] = ContextVar("headrace_traces", default=None)


def begin(tag: str, seq: int, traces: Traces | None) -> None:
    """Set this thread's batch, for logs and traces; `tag` begins this worker's batch names."""
    logs.LINE_FIELDS.set({"batch": batch_name(tag, seq)})
    TRACES.set(traces)


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


def set_items(context: Context, inputs: Sequence[Input]) -> list[str]:
    """Set the items of a verb in a handler's context; return the ids of their jobs."""
    ids = context.request_ids = [item[0] for item in inputs]
    context.content_types = [item[2] for item in inputs]
    details = [item[3] for item in inputs]
    if any(details):
        given = [item or ItemDetails({}, {}, {}, {}) for item in details]
        context.parameters = [item.parameters for item in given]
        context.headers = [item.headers for item in given]
        context.metadata = [item.metadata for item in given]
        context.part_types = [item.part_types for item in given]
        return ids
    # Most batches have nothing of this: then the same list is good for many, unless a handler
    # wrote into it.
    nothing = context.parameters
    if nothing is not context.part_types or len(nothing) != len(ids) or any(nothing):
        context.parameters = context.part_types = nothing = [{} for _ in ids]
        context.headers = context.metadata = nothing
    return ids


def overlaps(handler: Any) -> bool:
    """Return whether a handler's verbs may run at the same time on different batches."""
    return bool(getattr(handler, "overlap", False))


#: Of the whole process, as a model process has a single context.
_current: Final = threading.local()


def _of_thread(name: str) -> property:
    """Return a property that has a list for each thread, empty until it is set."""
    return property(
        lambda _: getattr(_current, name, []), lambda _, value: setattr(_current, name, value)
    )


class ThreadContext(Context):
    """A handler's context whose per-batch fields are those of the calling thread's batch."""

    # They override fields.
    request_ids: list[str] = _of_thread("request_ids")  # type: ignore[assignment]
    content_types: list[str] = _of_thread("content_types")  # type: ignore[assignment]
    traceparents: list[str] = _of_thread("traceparents")  # type: ignore[assignment]
    parameters: list[dict[str, Any]] = _of_thread("parameters")  # type: ignore[assignment]
    headers: list[dict[str, str]] = _of_thread("headers")  # type: ignore[assignment]
    metadata: list[dict[str, Any]] = _of_thread("metadata")  # type: ignore[assignment]
    part_types: list[dict[str, str]] = _of_thread("part_types")  # type: ignore[assignment]
