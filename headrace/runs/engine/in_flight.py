"""What of a run is under way: taken from the source, and without a row yet.

The feeder's thread puts in, the engine's takes out; each by the hundred, under one lock. Of what
has its row no more is kept than ranges of numbers: as much memory as there are gaps.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import islice
from typing import Final

import msgspec

from headrace.runs.interfaces import Cursor, Entry
from headrace.runs.range_set import RangeSet

#: Inputs that are under way have so many bytes together at the most, unless one alone has more.
MOST_BYTES: Final = 64 * 1024 * 1024


class PendingInput(msgspec.Struct, gc=False):
    """An entry on its way.

    Attributes:
        entry: itself.
        job_id: the id of its job.
        before: the cursor of the entry before it.
        size: bytes of its line, and of what its row carries.
        lost: how often the server did not know its job any more.
    """

    entry: Entry
    job_id: str
    before: Cursor | None
    size: int = 0
    lost: int = 0


class InFlight:
    """What is under way.

    Args:
        most: how many at the most.
        cursor: behind which the source goes on.
        n: the number of the entry there.
        done: numbers from there on that have their row.
    """

    def __init__(self, most: int, cursor: Cursor | None, n: int, done: RangeSet) -> None:
        self.most = most
        self.done = done
        self.changed = threading.Condition()
        self.stopping = False
        self.all_taken = False
        # By number, which is their order in the source.
        self._open: dict[int, PendingInput] = {}
        self._bytes = 0
        self._fresh: dict[int, PendingInput] = {}
        self._overtaken: dict[int, PendingInput] = {}
        self._cursor, self._n = cursor, n

    def take(self, items: Sequence[PendingInput], cursor: Cursor, n: int) -> bool:
        """Take these in once there is room for them; False where the run stops.

        Args:
            items: in order; those that had their row already are left out.
            cursor: of the last entry that was read.
            n: the number behind it.
        """
        size = sum(item.size for item in items)
        with self.changed:
            while not self.stopping and self._open and self._is_full(len(items), size):
                self.changed.wait()
            if self.stopping:
                return False
            self._open.update([(item.entry.n, item) for item in items])
            self._bytes += size
            self._cursor, self._n = cursor, n
            return True

    def sent(self, items: Sequence[PendingInput]) -> None:
        """The server has their jobs."""
        with self.changed:
            self._fresh.update([(item.entry.n, item) for item in items])
            self.changed.notify_all()

    def end_taking(self) -> None:
        """Nothing more comes from the source."""
        with self.changed:
            self.all_taken = True
            self.changed.notify_all()

    def stop(self) -> None:
        """Take nothing more in; who waits for room is told."""
        with self.changed:
            self.stopping = True
            self.changed.notify_all()

    def oldest(self, count: int) -> list[PendingInput]:
        """So many of those that have been sent longest, and were not overtaken."""
        with self.changed:
            return list(islice((self._fresh or self._overtaken).values(), count))

    def all_sent(self) -> list[PendingInput]:
        """All jobs that the server has."""
        with self.changed:
            return [*self._fresh.values(), *self._overtaken.values()]

    def overtake(self, items: Sequence[PendingInput]) -> None:
        """Younger ones have ended: these are looked at seldom."""
        with self.changed:
            for item in items:
                if self._fresh.pop(item.entry.n, None) is not None:
                    self._overtaken[item.entry.n] = item

    def unsend(self, items: Sequence[PendingInput]) -> None:
        """The server has lost their jobs."""
        with self.changed:
            self._unsend(items)

    def end(self, items: Sequence[PendingInput]) -> None:
        """They have their row."""
        with self.changed:
            self._unsend(items)
            numbers = [item.entry.n for item in items]
            for n in numbers:
                del self._open[n]
            self._bytes -= sum([item.size for item in items])
            self.done.update(numbers)
            self.changed.notify_all()

    def position(self) -> tuple[Cursor | None, int, list[tuple[int, int]]]:
        """Before which all have their row: cursor and number; and which behind it have too."""
        with self.changed:
            first = next(iter(self._open.values()), None)
            cursor, n = (self._cursor, self._n) if first is None else (first.before, first.entry.n)
            self.done.drop_below(n)
            return cursor, n, self.done.ranges()

    def wait(self, seconds: float) -> None:
        """Let so much time pass, or less where something changes."""
        with self.changed:
            if not (self.stopping or (self.all_taken and not self._open) or self._fresh):
                self.changed.wait(seconds)

    @property
    def open(self) -> int:
        """How many are taken and have no row."""
        return len(self._open)

    @property
    def finished(self) -> bool:
        """Whether every entry of the source has its row."""
        with self.changed:
            return self.all_taken and not self._open

    def _is_full(self, count: int, size: int) -> bool:
        return len(self._open) + count > self.most or self._bytes + size > MOST_BYTES

    def _unsend(self, items: Sequence[PendingInput]) -> None:
        fresh, overtaken = self._fresh, self._overtaken
        for item in items:
            n = item.entry.n
            if fresh.pop(n, None) is None:
                overtaken.pop(n, None)
