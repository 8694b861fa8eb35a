"""What waits in Redis for one model, as far as its worker knows. Knows no Redis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.redis.keys import STEPS

#: After so many guesses in a row that brought nothing no more are made, until jobs were found.
WRONG_MAX: Final = 3


@dataclass(slots=True)
class Backlog:
    """What waits, and the claim that is under way.

    Attributes:
        waiting: how many messages the last claim or look saw in the list of each step.
        paused: somebody has paused the queue; each sweep looks whether it still is.
        claiming: a claim is not yet answered.
        online_awaited: ... and better jobs than offline ones were known to wait when it was sent.
    """

    waiting: list[int] = field(default_factory=lambda: [0] * len(STEPS))
    paused: bool = False
    claiming: bool = False
    online_awaited: bool = False
    _guessed: bool = False
    _wrong: int = 0

    @property
    def online(self) -> bool:
        """Whether jobs wait that are not offline."""
        return any(self.waiting[:-1])

    @property
    def claimable(self) -> bool:
        """Whether a claim could bring something now."""
        return not self.paused and not self.claiming and any(self.waiting)

    def fills(self, rooms: Sequence[int]) -> bool:
        """Whether something waits at one of these steps for which there is room."""
        return any(room and left for room, left in zip(rooms, self.waiting, strict=False))

    def begin_claim(self) -> None:
        """A claim is sent; what it leaves it will say."""
        self.claiming, self.online_awaited = True, self.online
        self.waiting = [0] * len(STEPS)

    def end_claim(self) -> None:
        """A claim was answered, or never will be."""
        self.claiming = self.online_awaited = self._guessed = False

    def claim_answered(self, jobs: int) -> None:
        """The claim that is under way is answered, with so many jobs."""
        if self._guessed:
            self._wrong = 0 if jobs else self._wrong + 1
        self.end_claim()

    def set_waiting(self, lefts: Sequence[int]) -> None:
        """Learn how many messages wait at each step; -1 says that the queue is paused."""
        self.paused = lefts[0] < 0
        self.waiting = [max(0, left) for left in lefts]

    def raise_waiting(self, lefts: Sequence[int]) -> None:
        """As `saw`, but something else may have been seen since."""
        self.set_waiting(lefts if lefts[0] < 0 else list(map(max, self.waiting, lefts)))

    def guess(self, places: Iterable[int]) -> None:
        """A batch has ended: ask at these steps for what may have come, where that pays.

        Under load it does, and saves those jobs a round trip. Behind a lone job it would only keep
        Redis from publishing that one's end.
        """
        places = list(places)
        if self._wrong < WRONG_MAX and places:
            self._guessed = not self.claiming and not any(self.waiting)
            self.assume_waiting(places)

    def found(self, place: int) -> None:
        """Jobs wait at this step: those that a guess would have brought."""
        self._wrong = max(0, self._wrong - 1)
        self.assume_waiting([place])

    def assume_waiting(self, places: Iterable[int] = range(len(STEPS))) -> None:
        """Something may wait at these steps: the next claim tells."""
        for place in places:
            self.waiting[place] = max(1, self.waiting[place])
