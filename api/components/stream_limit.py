"""How many event streams there may be."""

from __future__ import annotations

from collections import Counter

from headrace.errors import TooManyStreams


class StreamLimit:
    """How many streams one API process has open, and of whom.

    Args:
        most: of all.
        most_per_key: of one API key, and of all that have none together.
    """

    def __init__(self, most: int, most_per_key: int) -> None:
        self._most = most
        self._most_per_key = most_per_key
        self._taken: Counter[str] = Counter()

    def take(self, key: str, *, keyed: bool) -> None:
        """One more.

        Raises:
            TooManyStreams: there are as many as there may be.
        """
        if self.taken >= self._most:
            raise TooManyStreams(
                f"this API process has {self._most} event streams open, and takes no more",
                hint="Come back later, or wait with ?wait; event_streams_max is the bound.",
                retry_after_s=5,
            )
        if keyed and self._taken[key] >= self._most_per_key:
            raise TooManyStreams(
                f"the API key {key} has {self._most_per_key} event streams open on this process",
                hint="Close some; event_streams_per_key is the bound.",
                retry_after_s=5,
            )
        self._taken[key] += 1

    @property
    def taken(self) -> int:
        """How many are open."""
        return self._taken.total()

    def leave(self, key: str) -> None:
        """One less."""
        self._taken[key] -= 1
        if not self._taken[key]:
            del self._taken[key]
