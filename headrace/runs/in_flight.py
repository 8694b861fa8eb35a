"""The inputs of a run that are in flight: read from the source, and without a row yet.

The submitter's threads add to it and the engine removes from it, a page at a time under one lock.
Of inputs that have their row only ranges of numbers are kept: memory grows with the gaps.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import islice
from typing import Final

import msgspec

from headrace.runs.interfaces import Cursor, Entry
from headrace.runs.range_set import RangeSet

#: The most bytes of all inputs in flight, unless a single page has more.
MOST_BYTES: Final = 64 * 1024 * 1024


class PendingInput(msgspec.Struct):
    """An entry in flight; tracked by the garbage collector, as its entry is.

    Attributes:
        before: the cursor of the entry before it.
        size: bytes of its line and of what its row carries.
        lost: how often the server had lost its job.
    """

    entry: Entry
    job_id: str
    before: Cursor | None
    size: int = 0
    lost: int = 0


class InFlight:
    """The inputs in flight.

    Args:
        cursor: where the source continues.
        n: the number of the entry there.
        done: the numbers from there on that have their row.
    """

    def __init__(self, most: int, cursor: Cursor | None, n: int, done: RangeSet) -> None:
        self.most = most
        self.done = done
        self.changed = threading.Condition()
        self.stopping = False
        self.all_added = False
        # By number, which is their order in the source.
        self._open: dict[int, PendingInput] = {}
        self._bytes = 0
        # The inputs that were sent; those behind which younger ones have ended are overtaken.
        self._sent: dict[int, PendingInput] = {}
        self._overtaken: dict[int, PendingInput] = {}
        self._cursor, self._n = cursor, n

    def add(self, inputs: Sequence[PendingInput], cursor: Cursor, n: int) -> bool:
        """Add inputs once there is room; return False if the run stops.

        Args:
            inputs: in order, without those that have their row.
            cursor: the cursor of the last entry that was read.
            n: the number behind it.
        """
        size = sum(one.size for one in inputs)
        with self.changed:
            while not self.stopping and self._open and self._is_full(len(inputs), size):
                self.changed.wait()
            if self.stopping:
                return False
            self._open.update([(one.entry.n, one) for one in inputs])
            self._bytes += size
            self._cursor, self._n = cursor, n
            return True

    def mark_sent(self, inputs: Sequence[PendingInput]) -> None:
        """Note that the server has their jobs."""
        with self.changed:
            self._sent.update([(one.entry.n, one) for one in inputs])
            self.changed.notify_all()

    def end_adding(self) -> None:
        """Note that the source has no more inputs."""
        with self.changed:
            self.all_added = True
            self.changed.notify_all()

    def stop(self) -> None:
        """Add nothing more, and wake the threads that wait for room."""
        with self.changed:
            self.stopping = True
            self.changed.notify_all()

    def oldest(self, count: int) -> list[PendingInput]:
        """Return up to `count` inputs: those sent first that were not overtaken."""
        with self.changed:
            return list(islice((self._sent or self._overtaken).values(), count))

    def all_sent(self) -> list[PendingInput]:
        """Return all inputs whose jobs the server has."""
        with self.changed:
            return [*self._sent.values(), *self._overtaken.values()]

    def mark_overtaken(self, inputs: Sequence[PendingInput]) -> None:
        """Note that younger inputs have ended; these are then looked up less often."""
        with self.changed:
            for one in inputs:
                if self._sent.pop(one.entry.n, None) is not None:
                    self._overtaken[one.entry.n] = one

    def mark_lost(self, inputs: Sequence[PendingInput]) -> None:
        """Note that the server has lost their jobs."""
        with self.changed:
            self._unsend(inputs)

    def remove(self, inputs: Sequence[PendingInput]) -> None:
        """Remove inputs that have their row."""
        with self.changed:
            self._unsend(inputs)
            numbers = [one.entry.n for one in inputs]
            for n in numbers:
                del self._open[n]
            self._bytes -= sum([one.size for one in inputs])
            self.done.update(numbers)
            self.changed.notify_all()

    def position(self) -> tuple[Cursor | None, int, list[tuple[int, int]]]:
        """Return cursor and number up to which all have their row, and the ranges behind it."""
        with self.changed:
            first = next(iter(self._open.values()), None)
            cursor, n = (self._cursor, self._n) if first is None else (first.before, first.entry.n)
            self.done.drop_below(n)
            return cursor, n, self.done.ranges()

    def wait(self, seconds: float) -> None:
        """Wait until something changes, at most `seconds`."""
        with self.changed:
            if not (self.stopping or (self.all_added and not self._open) or self._sent):
                self.changed.wait(seconds)

    @property
    def count(self) -> int:
        """The number of inputs in flight."""
        return len(self._open)

    @property
    def finished(self) -> bool:
        """Whether every entry of the source has its row."""
        with self.changed:
            return self.all_added and not self._open

    def _is_full(self, count: int, size: int) -> bool:
        return len(self._open) + count > self.most or self._bytes + size > MOST_BYTES

    def _unsend(self, inputs: Sequence[PendingInput]) -> None:
        sent, overtaken = self._sent, self._overtaken
        for one in inputs:
            n = one.entry.n
            if sent.pop(n, None) is None:
                overtaken.pop(n, None)
