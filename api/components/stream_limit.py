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

    def take(self, key: str, *, keyed: bool) -> None:
        """Count one more stream.

        Raises:
            TooManyStreams: a limit is reached.
        """
        if self.open_streams >= self._most:
            raise TooManyStreams(
                f"this API process has {self._most} event streams open, its limit",
                hint="Try again later, or wait with ?wait; event_streams_max is the limit.",
                retry_after_s=5,
            )
        if keyed and self._taken[key] >= self._most_per_key:
            raise TooManyStreams(
                f"API key {key} has {self._most_per_key} event streams open here, its limit",
                hint="Close some; event_streams_per_key is the limit.",
                retry_after_s=5,
            )
        self._taken[key] += 1

    @property
    def open_streams(self) -> int:
        """The number of open streams."""
        return self._taken.total()

    def leave(self, key: str) -> None:
        """Count one stream less."""
        self._taken[key] -= 1
        if not self._taken[key]:
            del self._taken[key]
