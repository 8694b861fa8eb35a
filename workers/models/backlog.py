"""The jobs that wait in Redis for a model, or will soon, as far as its worker knows.

A model has two queues for a worker: its own, and that of the worker's version. Each has a list for
each priority step. One claim may take from both, and then they share its room.

A claim takes a limited number of bytes, which is less than a batch if inputs are large. The jobs
that it left are claimed at once and arrive a round trip later. A batch is held for them if that is
worth the round trip, whatever the age of its jobs, while Redis is connected.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from headrace.redis.keys import STEPS
from workers.batching.batcher import Batcher

#: After this many wrong guesses in a row, the next guess waits until jobs were found.
WRONG_MAX: Final = 3
#: After this many pushes in a row whose jobs other workers took, an idle worker does not claim at a
#: push. It reads the length a moment later. Else each job would cost a claim of every idle worker.
#: Where only few workers could claim, that moment would be worth more than their claims.
VAIN_MAX: Final = 3
FEW_WORKERS: Final = 4
#: The least and the most of that moment, in seconds: an idle worker that claims at once has taken
#: the job by then. The time is random, so that workers do not look together.
IDLE_LOOK_S: Final = (0.0005, 0.002)
#: The same for a busy worker: all idle ones come first.
BUSY_LOOK_S: Final = (0.0025, 0.004)
#: The queues by their number: the model's own, and that of the worker's version.
OWN: Final = 0
VERSION: Final = 1
#: One claim in so many takes a job of a queue whose jobs were passed over for too long.
YIELD_EVERY: Final = 10
_STEPS: Final = len(STEPS)


class Place(NamedTuple):
    """One list of a model: its queue, OWN or VERSION, and its priority's index in STEPS."""

    queue: int
    step: int


#: The lists of a model, in the order in which the notifications have them.
PLACES: Final = tuple(Place(queue, step) for queue in (OWN, VERSION) for step in range(_STEPS))


def first_list(position: int) -> int:
    """Return the number that the notifications have for the first list of a model."""
    return position * len(PLACES)


@dataclass(slots=True)
class QueueBacklog:
    """What waits in a queue.

    Attributes:
        waiting: messages at each priority step, by the last claim, sweep or notification.
        depth: all messages, by the last sweep.
        paused: the queue is paused; each sweep checks it again. Then nothing is known to wait.
        closed: another served model claims from it. Then nothing is known to wait either.
        wrong: how many guesses in a row were wrong.
        guessed: the pending claim is a guess.
        pushed: a push led to the next claim, or to the pending one.
        vain: how many such claims in a row brought nothing.
        look_at: until then the worker does not want to know what waits.
        passed_since: since when claims have left no room for its jobs; None if they do not.
    """

    waiting: list[int] = field(default_factory=lambda: [0] * _STEPS)
    depth: int = 0
    paused: bool = False
    closed: bool = False
    wrong: int = 0
    guessed: bool = False
    pushed: bool = False
    vain: int = 0
    look_at: float = 0.0
    passed_since: float | None = None

    def fits(self, room: Sequence[int]) -> bool:
        """Return whether messages wait at a step for which there is room."""
        return any(free and left for free, left in zip(room, self.waiting, strict=False))

    def set_waiting(self, left: Sequence[int]) -> None:
        """Set how many messages wait at each step; -1 first means that the queue is paused."""
        self.paused = left[0] < 0
        self.waiting = [0] * _STEPS if self.paused or self.closed else list(left)


@dataclass(slots=True)
class Backlog:
    """What waits in Redis, and what the last claim took of it.

    Attributes:
        yield_s: after this time a queue's jobs are taken although the other has better ones; 0 for
            never.
        queues: the model's own queue, and that of the worker's version, where nothing is guessed
            until jobs were found.
        claiming: how many queues were claimed from without a reply yet.
        online_awaited: online jobs were known to wait when that claim was sent.
        expected_step: the best step with jobs that the last claim had room for and left.
    """

    yield_s: float = 0.0
    queues: tuple[QueueBacklog, QueueBacklog] = field(
        default_factory=lambda: (QueueBacklog(), QueueBacklog(wrong=WRONG_MAX))
    )
    claiming: int = 0
    online_awaited: bool = False
    expected_step: int | None = None
    # Of the last claim: its room, how many jobs it took, how long its reply took, and when it came.
    _room: Sequence[int] = ()
    _taken: int = 0
    _trip_s: float = 0.0
    _at: float = 0.0
    # How many jobs the pending claim has returned so far; how many claims were shared.
    _coming: int = 0
    _shared: int = 0

    @property
    def online(self) -> bool:
        """Whether online jobs wait."""
        own, version = self.queues
        return any(own.waiting[:-1]) or any(version.waiting[:-1])

    @property
    def depth(self) -> int:
        """How many jobs waited at the last sweep."""
        return sum(queue.depth for queue in self.queues)

    @property
    def claimable(self) -> bool:
        """Whether a claim could return jobs now."""
        own, version = self.queues
        return not self.claiming and (any(own.waiting) or any(version.waiting))

    def fills(self, room: Sequence[int]) -> bool:
        """Return whether messages wait at a step for which there is room."""
        own, version = self.queues
        return own.fits(room) or version.fits(room)

    def fitting(self, room: Sequence[int]) -> int:
        """Return how many messages are known to wait at steps for which there is room."""
        own, version = self.queues
        both = zip(room, own.waiting, version.waiting, strict=False)
        return sum(own_count + version_count for free, own_count, version_count in both if free)

    def notified(self, place: Place, now: float, *, workers: int, busy: bool) -> None:
        """Note that a message may wait at this place, for one of `workers`; `busy`: all are."""
        queue = self.queues[place.queue]
        if workers <= 1 or not (busy or queue.vain >= VAIN_MAX):
            queue.pushed = workers > FEW_WORKERS
            self.assume_waiting([place])
        else:
            after_s = random.uniform(*(BUSY_LOOK_S if busy else IDLE_LOOK_S))  # noqa: S311
            queue.look_at = now + after_s

    def look_now(self) -> None:
        """Want to know at once what waits, because a replica is free."""
        for queue in self.queues:
            queue.look_at = 0.0

    def look_due(self, now: float) -> float:
        """Return when the worker wants to know again what waits; infinity if it does now."""
        return min((q.look_at for q in self.queues if q.look_at > now), default=float("inf"))

    def watches(self, place: Place, now: float) -> bool:
        """Return whether the worker wants to know when messages join this place."""
        queue = self.queues[place.queue]
        if now < queue.look_at:
            return False
        # The reply to a pending claim counts what waits.
        return not (self.claiming or queue.paused or queue.closed or queue.waiting[place.step])

    def claim_sent(self, room: Sequence[int], now: float) -> list[tuple[int, Sequence[int]]]:
        """Note that a claim is sent, with this room for jobs of each step and all better steps.

        Returns:
            The numbers of the queues to claim from, and the room of each. The replies count the
            messages that are left.
        """
        shares = self._shares(room, now)
        self.claiming, self.online_awaited = len(shares), self.online
        for number, _ in shares:
            self.queues[number].waiting = [0] * _STEPS
        self._room, self._at, self._coming = room, now, 0
        return shares

    def _shares(self, room: Sequence[int], now: float) -> list[tuple[int, Sequence[int]]]:
        own, version = self.queues
        if not own.closed and not version.fits(room):
            return [(OWN, room)]
        if not own.fits(room):
            return [(VERSION, room)]
        self._shared += 1
        given = self._room_of_version(room)
        for number, queue in enumerate(self.queues):
            share = given if number == VERSION else _less(room, given)
            if queue.fits(share):
                queue.passed_since = None
            elif queue.passed_since is None:
                queue.passed_since = now
            elif self._yields(queue.passed_since, now):
                # The queue that was passed over gets at least one place of each step.
                least = [min(1, free) for free in room]
                if number == VERSION:
                    given = list(map(max, given, least))
                else:
                    given = list(map(min, given, _less(room, least)))
        shares = (OWN, _less(room, given)), (VERSION, given)
        return [(number, share) for number, share in shares if any(share)]

    def _yields(self, since: float, now: float) -> bool:
        late = self.yield_s > 0 and now - since >= self.yield_s
        return late and self._shared % YIELD_EVERY == 0

    def _room_of_version(self, room: Sequence[int]) -> list[int]:
        """Return the room of the version's queue: better steps first, then by what waits.

        An example: `room` is [8, 8, 8, 4]; [2, 6, 0, 0] jobs wait in the own queue, [1, 3, 0, 0] in
        that of the version. At the first step there is room for 8, and all 3 jobs fit: 1 of them
        is the version's. At the second step there is room for 5 of 9 jobs: of the version's,
        5 * 3 // 9 = 1. Then nothing is left. As each step's room counts the better steps too, the
        version's is [1, 2, 2, 2], and the own queue has the rest: [7, 6, 6, 2].
        """
        taken, given = 0, 0
        rooms = []
        own, version = self.queues
        for free, own_count, version_count in zip(room, own.waiting, version.waiting, strict=True):
            left = max(0, free - taken)
            mine = version_count
            if own_count + version_count > left:
                # Of a single place each gets every second; of more each gets at least one.
                mine = (
                    self._shared % 2
                    if left == 1 and own_count and version_count
                    else left * version_count // (own_count + version_count)
                )
                if left > 1 and own_count and version_count:
                    mine = min(max(mine, 1), left - 1)
            given += mine
            taken += min(left, own_count + version_count)
            rooms.append(min(given, free))
        return rooms

    def end_claim(self) -> None:
        """Note that the claim was answered, or never will be."""
        self.claiming, self.online_awaited = 0, False
        for queue in self.queues:
            queue.guessed = queue.pushed = False

    def refused(self) -> None:
        """Note that Redis has refused to claim from a queue."""
        self.claiming -= 1
        if self.claiming <= 0:
            self.end_claim()

    def claim_answered(
        self, taken: int, left: Sequence[int], now: float, number: int = OWN
    ) -> None:
        """Note that the pending claim returned `taken` jobs of a queue and left these messages."""
        queue = self.queues[number]
        if queue.guessed:
            queue.wrong = 0 if taken else queue.wrong + 1
            queue.guessed = False
        if taken:
            queue.vain = 0
        elif queue.pushed:
            queue.vain += 1
        queue.pushed = False
        queue.set_waiting(left)
        self._coming += taken
        self.claiming -= 1
        if self.claiming > 0:
            return
        self.end_claim()
        own, version = self.queues
        both = zip(self._room, own.waiting, version.waiting, strict=False)
        taken = self._coming
        more = [taken < free and any(waiting) for free, *waiting in both]
        self.expected_step = more.index(True) if taken and any(more) else None
        self._taken, self._trip_s, self._at = taken, now - self._at, now

    def connection_lost(self) -> None:
        """Expect no jobs until Redis is back."""
        self.expected_step = None

    def raise_waiting(self, left: Sequence[int], number: int = OWN) -> None:
        """Set the counts of a queue by a sweep, but keep larger ones: they may be newer."""
        queue = self.queues[number]
        queue.set_waiting(left if left[0] < 0 else list(map(max, queue.waiting, left)))
        queue.depth = 0 if queue.paused or queue.closed else sum(left)

    def returned(self, place: Place) -> None:
        """Note that a job is back in a queue."""
        if not self.queues[place.queue].closed:
            self.queues[place.queue].waiting[place.step] += 1

    def set_closed(self, number: int, *, closed: bool) -> None:
        """Close a queue to claims, or open it; the next claim then finds what waits."""
        queue = self.queues[number]
        if queue.closed != closed:
            queue.closed = closed
            queue.waiting = [0] * _STEPS if closed else [1] * _STEPS
            queue.depth = 0

    def guess(self, places: Sequence[Place]) -> None:
        """Assume after a batch that new messages wait at these places, if such guesses pay off.

        Under load they do, and save those jobs a round trip. After a lone job the extra claim would
        only delay the publication of its end.
        """
        idle = not self.claiming
        for number, queue in enumerate(self.queues):
            if queue.wrong < WRONG_MAX:
                its_places = [place for place in places if place.queue == number]
                if its_places:
                    queue.guessed = idle and not any(queue.waiting)
                    self.assume_waiting(its_places)

    def missed(self, place: Place) -> None:
        """Note that messages wait at this place, for which a guess would have been right.

        It would not have been where other workers take the jobs.
        """
        queue = self.queues[place.queue]
        if queue.vain < VAIN_MAX:
            queue.wrong = max(0, queue.wrong - 1)
        self.assume_waiting([place])

    def assume_waiting(self, places: Iterable[Place] = PLACES) -> None:
        """Assume that a message waits at each of these places; the next claim finds out."""
        for number, step in places:
            queue = self.queues[number]
            if not queue.paused and not queue.closed:
                queue.waiting[step] = max(1, queue.waiting[step])

    def hold_until(self, batcher: Batcher[Any], room: Sequence[int], now: float) -> float | None:
        """Return until when the prepared jobs should wait for expected ones; None for not at all.

        `room` is how many more jobs of each step and all better steps fit.
        """
        step, policy = self.expected_step, batcher.policy
        if step is None or not len(batcher) or batcher.isolated:
            return None
        if policy.keyed or policy.max_batch_cost is not None:
            return None
        if not batcher.online:
            size = len(batcher)
        elif step == _STEPS - 1:
            return None  # online jobs do not wait for offline ones
        else:
            size = batcher.online
        if not room[step]:
            return None  # they are not claimed
        claims = -(-room[step] // self._taken)
        worth_s = batcher.latency_model.worth_s(size) if size < policy.max_batch_size else 0.0
        # Ski-rental rule for a late claim: wait only while the expected saving exceeds the time
        # that was waited already.
        until = self._at + worth_s
        return until if self._trip_s * claims < worth_s and now < until else None


def _less(room: Sequence[int], taken: Sequence[int]) -> list[int]:
    return [free - used for free, used in zip(room, taken, strict=True)]
