"""The requests of a generator: which of those that wait joins next, and which is put back first.

Online requests join before offline ones. Of a class, the oldest and the cheapest join in turns. A
request without room lets others pass, but only a limited number. Does no I/O and reads no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from workers.model_process.batch_state import StageTimes

#: After so many younger requests have joined before it, a request lets no more pass.
PASSES_MAX: Final = 16
#: At most one in this many requests that join is an offline one that has yielded for too long.
OVERDUE_EVERY: Final = 10


@dataclass(slots=True, eq=False)
class Request:
    """One job in the process.

    Attributes:
        seq: the number of its batch.
        number: its place in the order in which they came.
        prepared: what `preprocess` returned for its input.
        cost: the most that it takes of the budget.
        offline: it makes way for online requests until `yields_until`.
        quiet: it has no log, so its pieces are not sent.
        favoured: it is offline and has yielded for too long, so it yields no more.
        dropped: not empty once the worker has dropped it.
        times: how long it was prepared, and how long it has run.
        deltas: the pieces of its result, with those of earlier attempts.
        tokens: those of all its pieces; it goes on after them.
        unsent: those of pieces without a delta; they are sent with the next one.
        cannot_resume: a piece had no tokens, so it cannot go on elsewhere.
        began: it has joined before in this process.
        produced: it has had a piece since it joined last.
        began_at: when it joined last.
        ran_s: how long it ran before that.
        passes: how many younger requests have joined before it, since it came or was put back.
        put_back: it has run before, and waits to come back.
        outgrew: it was put back for want of memory, so it counts with its whole cost.
        reported: the worker knows that it waits.
        usage: what it had taken when it was put back; None if that is unknown.
        used: how many tokens it took: 0 before it has joined; None if that is unknown.
    """

    seq: int
    number: int
    job_id: str
    prepared: Any
    cost: int
    dropped: set[int]
    times: StageTimes
    offline: bool = False
    yields_until: float = float("inf")
    quiet: bool = False
    favoured: bool = False
    deltas: list[Any] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    unsent: list[int] = field(default_factory=list)
    cannot_resume: bool = False
    began: bool = False
    produced: bool = False
    began_at: float = 0.0
    ran_s: float = 0.0
    passes: int = 0
    put_back: bool = False
    outgrew: bool = False
    reported: bool = False
    usage: Mapping[str, int] | None = None
    used: int | None = 0

    @property
    def yields(self) -> bool:
        """Whether it makes way for online requests."""
        return self.offline and not self.favoured


class WaitingRequests:
    """The requests that wait for room."""

    def __init__(self) -> None:
        self._waiting: list[Request] = []
        self._cheapest_next = False
        self._since_favoured = OVERDUE_EVERY

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._waiting)

    @property
    def online(self) -> int:
        """How many of them do not make way for others."""
        return sum(not request.yields for request in self._waiting)

    def add(self, request: Request) -> None:
        """Add a request that has come, or was put back; the older ones stay before it."""
        request.passes = 0
        self._waiting.append(request)
        self._waiting.sort(key=lambda waiting: waiting.number)

    def remove(self, request: Request) -> None:
        """Remove a request that will not join."""
        self._waiting.remove(request)

    def candidates(self) -> list[Request]:
        """Return which may join now, the first one first; any of them may overtake the others."""
        candidates: list[Request] = []
        for yields in (False, True):
            group = [request for request in self._waiting if request.yields == yields]
            stuck = next((request for request in group if request.passes >= PASSES_MAX), None)
            if stuck is not None:
                return [*candidates, stuck]
            if self._cheapest_next:
                group.sort(key=lambda request: request.cost)
            candidates += group
        return candidates

    def joined(self, request: Request) -> None:
        """Note that a request has joined those that run."""
        self._waiting.remove(request)
        self._cheapest_next = not self._cheapest_next
        self._since_favoured += 1
        for other in self._waiting:
            if other.yields == request.yields and other.number < request.number:
                other.passes += 1

    def favour(self, running: Iterable[Request], now: float) -> None:
        """Favour the oldest offline request if it has yielded for too long; one at a time."""
        requests = [request for request in (*running, *self._waiting) if request.offline]
        if self._since_favoured < OVERDUE_EVERY or any(request.favoured for request in requests):
            return
        late = [request for request in requests if now >= request.yields_until]
        if late:
            min(late, key=lambda request: request.number).favoured = True
            self._since_favoured = 0


def put_back_first(running: Iterable[Request]) -> list[Request]:
    """Return the requests that run, in the order in which they are put back.

    The newest offline request goes first, and the oldest online one last: so that one ends.
    """
    return sorted(running, key=lambda request: (not request.yields, -request.number))


def that_make_room(
    running: Collection[Request],
    needed: int,
    slots: int,
    tokens: int,
    cost: Callable[[Request], int],
) -> list[Request]:
    """Return the offline requests to put back so that an online one fits; none if it never would.

    Args:
        needed: what the online request takes.
        slots: how many more may join now.
        tokens: how much they may cost.
        cost: returns what a running request takes.
    """
    leaving: list[Request] = []
    for request in put_back_first(running):
        if request.yields and not request.cannot_resume:
            leaving.append(request)
            slots, tokens = slots + 1, tokens + cost(request)
            # Alone it has the whole memory.
            if slots > 0 and (needed <= tokens or len(leaving) == len(running)):
                return leaving
    return []
