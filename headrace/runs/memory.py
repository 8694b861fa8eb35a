"""A sink that hands rows on and stores nothing, so that its run cannot resume."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from typing_extensions import override

from headrace.runs.interfaces import CheckpointStore, Mark, Row, Sink
from headrace.runs.range_set import RangeSet


class MemorySink(Sink):
    """Hands rows to a function, which may block: the run then waits with what is in flight."""

    def __init__(self, take: Callable[[Sequence[Row]], object]) -> None:
        self._take = take
        self.checkpoints = _NoCheckpoints()

    @override
    def describe(self) -> str:
        return "memory"

    @override
    def recover(self, mark: Mark | None) -> Iterable[tuple[int, bool]]:
        return ()

    @override
    def append(self, rows: Sequence[Row]) -> None:
        self._take(rows)

    @override
    def sync(self) -> Mark:
        return None

    @override
    def finish(self) -> Mark:
        return None

    @override
    def retract(self) -> RangeSet:
        return RangeSet()

    @override
    def close(self) -> None:
        pass


class _NoCheckpoints(CheckpointStore):
    @override
    def acquire(self) -> None:
        pass

    @override
    def release(self) -> None:
        pass

    @override
    def load(self) -> bytes | None:
        return None

    @override
    def save(self, data: bytes) -> None:
        pass
