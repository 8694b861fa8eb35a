"""Rows for the sinks of runs, and steps that every sink supports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from headrace.jobs.job import JobFailure
from headrace.runs.interfaces import Row, Sink


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def row(n: int, *, well: bool = True, result: Any = None, **carried: Any) -> Row:
    """Return a row; the default result contains its number."""
    brought = {name: raw(value) for name, value in carried.items()}
    if not well:
        failure = JobFailure(type="input-error", message=f"bad {n}")
        return Row(n, f"k{n}", "failed", 2, error=failure, carried=brought)
    answer = raw({"label": f"l{n}", "score": n / 2} if result is None else result)
    return Row(n, f"k{n}", "succeeded", 1, raw({"total": 1.5}), answer, None, brought)


def begun(open_sink: Callable[[], Sink]) -> Sink:
    """Return a new sink with a run that has begun."""
    sink = open_sink()
    assert list(sink.recover(None)) == []
    sink.checkpoints.save(b"begun")
    return sink


def ended(sink: Sink) -> Any:
    """End a run on a sink as the engine does; return the mark."""
    mark = sink.finish()
    sink.checkpoints.save(msgspec.json.encode(mark))
    sink.close()
    return mark


def recovered(sink: Sink, mark: Any) -> set[int]:
    """Return the rows behind a mark, as it is after a checkpoint."""
    found = [n for n, _ in sink.recover(msgspec.json.decode(msgspec.json.encode(mark)))]
    assert len(set(found)) == len(found)
    return set(found)
