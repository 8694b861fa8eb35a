"""A set of numbers that are added almost in order, stored as ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from headrace.errors import ConfigError


class RangeSet:
    """A set of numbers from 0; its memory grows with its gaps, not with its numbers.

    Args:
        ranges: first and last of each range, as `ranges` returns them.

    Raises:
        ConfigError: they are not in order.
    """

    def __init__(self, ranges: Iterable[Sequence[int]] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in ranges:
            if not (self._lasts[-1] + 1 if self._lasts else -1) < first <= last:
                raise ConfigError(f"the range {first} to {last} is empty or out of order")
            self._firsts.append(first)
            self._lasts.append(last)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number <= self._lasts[at]

    def __len__(self) -> int:
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __iter__(self) -> Iterator[int]:
        for first, last in zip(self._firsts, self._lasts, strict=True):
            yield from range(first, last + 1)

    def add(self, number: int) -> None:
        """Add a number."""
        self._add_range(number, number)

    def update(self, numbers: Iterable[int]) -> None:
        """Add many numbers; consecutive ones are added as one range."""
        ordered = sorted(numbers)
        first = 0
        for at in range(1, len(ordered) + 1):
            if at == len(ordered) or ordered[at] > ordered[at - 1] + 1:
                self._add_range(ordered[first], ordered[at - 1])
                first = at

    def _add_range(self, first: int, last: int) -> None:
        firsts, lasts = self._firsts, self._lasts
        # Ranges that touch the new one are merged with it.
        begin = bisect_left(lasts, first - 1)
        end = bisect_right(firsts, last + 1)
        if begin < end:
            first, last = min(first, firsts[begin]), max(last, lasts[end - 1])
        firsts[begin:end] = [first]
        lasts[begin:end] = [last]

    def drop_below(self, bound: int) -> None:
        """Remove the numbers below a bound."""
        at = bisect_right(self._lasts, bound - 1)
        del self._firsts[:at]
        del self._lasts[:at]
        if self._firsts and self._firsts[0] < bound:
            self._firsts[0] = bound

    def ranges(self) -> list[tuple[int, int]]:
        """Return first and last of each range, in order."""
        return list(zip(self._firsts, self._lasts, strict=True))
