"""The limit of concurrent event streams."""

from __future__ import annotations

from collections import Counter

from headrace.errors import TooManyStreams


class StreamLimit:
    """Limits the open event streams of one API process, all of them and those of each API key."""

    def __init__(self, most: int, most_per_key: int) -> None:
        self._most = most
        self._most_per_key = most_per_key
        self._taken: Counter[str] = Counter()

    def most(self, *, keyed: bool) -> int:
        """Return how many streams one request may open."""
        return min(self._most, self._most_per_key) if keyed else self._most

    def take(self, key: str, *, keyed: bool, count: int = 1) -> None:
        """Count more streams; raise TooManyStreams if a limit would be exceeded."""
        if self.open_streams + count > self._most:
            raise TooManyStreams(
                f"this API process has {self.open_streams} event streams open, its limit is "
                f"{self._most}, and this request needs {count}",
                hint="Try again later, or wait with ?wait; event_streams_max is the limit.",
                retry_after_s=5,
            )
        if keyed and self._taken[key] + count > self._most_per_key:
            raise TooManyStreams(
                f"API key {key} has {self._taken[key]} event streams open here, its limit is "
                f"{self._most_per_key}, and this request needs {count}",
                hint="Close some; event_streams_per_key is the limit.",
                retry_after_s=5,
            )
        self._taken[key] += count

    @property
    def open_streams(self) -> int:
        """The number of open streams."""
        return self._taken.total()

    def leave(self, key: str, count: int = 1) -> None:
        """Count fewer streams."""
        self._taken[key] -= count
        if not self._taken[key]:
            del self._taken[key]
