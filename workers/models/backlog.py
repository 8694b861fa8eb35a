"""How many messages wait in Redis for one model, as far as its worker knows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.redis.keys import STEPS

#: After this many wrong guesses in a row, the next guess waits until jobs were found.
WRONG_MAX: Final = 3


@dataclass(slots=True)
class Backlog:
    """What waits in Redis, and whether a claim is pending.

    Attributes:
        waiting: messages at each priority step, by the last claim, sweep or notification.
        paused: the queue is paused; each sweep checks it again.
        claiming: a claim has no reply yet.
        online_awaited: online jobs were known to wait when that claim was sent.
    """

    waiting: list[int] = field(default_factory=lambda: [0] * len(STEPS))
    paused: bool = False
    claiming: bool = False
    online_awaited: bool = False
    _guessed: bool = False
    _wrong: int = 0

    @property
    def online(self) -> bool:
        """Whether online jobs wait."""
        return any(self.waiting[:-1])

    @property
    def claimable(self) -> bool:
        """Whether a claim could return jobs now."""
        return not self.paused and not self.claiming and any(self.waiting)

    def fills(self, room: Sequence[int]) -> bool:
        """Return whether messages wait at a step for which there is room."""
        return any(free and left for free, left in zip(room, self.waiting, strict=False))

    def begin_claim(self) -> None:
        """Note that a claim was sent; its reply counts the messages that are left."""
        self.claiming, self.online_awaited = True, self.online
        self.waiting = [0] * len(STEPS)

    def end_claim(self) -> None:
        """Note that the claim was answered, or never will be."""
        self.claiming = self.online_awaited = self._guessed = False

    def claim_answered(self, taken: int, left: Sequence[int]) -> None:
        """Note that the pending claim returned `taken` jobs and left these messages."""
        if self._guessed:
            self._wrong = 0 if taken else self._wrong + 1
        self.end_claim()
        self.set_waiting(left)

    def set_waiting(self, left: Sequence[int]) -> None:
        """Set how many messages wait at each step; -1 first means that the queue is paused."""
        self.paused = left[0] < 0
        self.waiting = [max(0, count) for count in left]

    def raise_waiting(self, left: Sequence[int]) -> None:
        """Set the counts, but keep larger ones: they may be newer."""
        self.set_waiting(left if left[0] < 0 else list(map(max, self.waiting, left)))

    def guess(self, places: Iterable[int]) -> None:
        """Assume after a batch that new messages wait at these steps, if such guesses pay off.

        Under load they do, and save those jobs a round trip. After a lone job the extra claim would
        only delay the publication of its end.
        """
        places = list(places)
        if self._wrong < WRONG_MAX and places:
            self._guessed = not self.claiming and not any(self.waiting)
            self.assume_waiting(places)

    def found(self, place: int) -> None:
        """Note that messages wait at this step, which a guess would have found."""
        self._wrong = max(0, self._wrong - 1)
        self.assume_waiting([place])

    def assume_waiting(self, places: Iterable[int] = range(len(STEPS))) -> None:
        """Assume that a message waits at each of these steps; the next claim finds out."""
        for place in places:
            self.waiting[place] = max(1, self.waiting[place])
