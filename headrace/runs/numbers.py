"""A set of numbers that come almost in order, as the ranges that it consists of."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from headrace.errors import ConfigError


class Numbers:
    """A set of numbers from 0; it takes memory by its gaps, not by its numbers.

    Args:
        ranges: first and last of each, as `ranges` gives them.

    Raises:
        ConfigError: they are not in order.
    """

    def __init__(self, ranges: Iterable[Sequence[int]] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in ranges:
            if not (self._lasts[-1] + 1 if self._lasts else -1) < first <= last:
                raise ConfigError(f"the range {first} to {last} is none, or out of order")
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
        """Take a number in; one that is there already changes nothing."""
        firsts, lasts = self._firsts, self._lasts
        at = bisect_right(firsts, number) - 1
        if at >= 0 and number <= lasts[at]:
            return
        joins_left = at >= 0 and lasts[at] == number - 1
        joins_right = at + 1 < len(firsts) and firsts[at + 1] == number + 1
        if joins_left and joins_right:
            lasts[at] = lasts.pop(at + 1)
            del firsts[at + 1]
        elif joins_left:
            lasts[at] = number
        elif joins_right:
            firsts[at + 1] = number
        else:
            firsts.insert(at + 1, number)
            lasts.insert(at + 1, number)

    def drop_below(self, bound: int) -> None:
        """Forget the numbers below a bound."""
        at = bisect_right(self._lasts, bound - 1)
        del self._firsts[:at]
        del self._lasts[:at]
        if self._firsts and self._firsts[0] < bound:
            self._firsts[0] = bound

    def ranges(self) -> list[tuple[int, int]]:
        """First and last of each range, in order."""
        return list(zip(self._firsts, self._lasts, strict=True))
