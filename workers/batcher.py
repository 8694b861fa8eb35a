"""When a batch leaves: decided from the items and the time alone. No Redis, no threads, no clock.

The policy is work-conserving. A free device takes what is there; while it is busy, items collect.
Holding a batch back for company happens only while the device is free, and only when it pays: an
item that waits for the next arrival costs each waiting item one inter-arrival gap, and saves the
fixed cost of one batch. So a batch of n is held while n * gap < b, where the time of a batch of
size s is fitted as a*s + b (least squares with forgetting, as in Clipper and BentoML's CORK), and
never beyond `max_batch_delay_s` from when its oldest item was enqueued.

Items of different keys never share a batch. Keys take turns by their first items, in the order in
which these came: a batch that leaves holds the first item of all, unless that one is held for
company and another key's need not wait for it. So no key can starve another.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, Generic, Literal, Protocol, TypeVar

#: Why a batch left. full: `max_batch_size` were there. cost: one more would have been above
#: `max_batch_cost`. deadline: its oldest was enqueued `max_batch_delay_s` ago. idle: the device was
#: free, and a hold would not have paid. alone: it was in a batch that was lost. drain: its worker
#: is about to stop.
Reason = Literal["full", "cost", "deadline", "idle", "alone", "drain"]

#: Weight of the newest gap in the running mean of inter-arrival gaps.
GAP_WEIGHT: Final = 0.1
#: What is kept of the past of the batch-time fit with each new batch.
FIT_MEMORY: Final = 0.95
#: Jobs that arrive together say that the next comes at once; a hold of no length would be a spin.
HOLD_MIN_S: Final = 0.0005
#: Below this spread of batch sizes (variance) a slope cannot be told from a constant.
FIT_MIN_VARIANCE: Final = 0.25
#: How many batches' worth of items may wait where they fall into keys: with one batch's worth, two
#: keys in turn would halve each other's batches.
KEYED_LOOK_AHEAD: Final = 2
#: Of so many keys the arrivals are remembered, the latest ones.
KEYS_MAX: Final = 256


class Batchable(Protocol):
    """What the batcher needs to know of an item.

    Attributes:
        enqueued_at: seconds, on the same clock as every `now`.
        alone: it was in a batch that was lost and must run by itself.
        cost: its share of `max_batch_cost`.
        key: only items of one key run together.
    """

    enqueued_at: float
    alone: bool
    cost: int
    key: str | None


ItemT = TypeVar("ItemT", bound=Batchable)


@dataclass(frozen=True, slots=True)
class Policy:
    """Bounds of a model's batches.

    Attributes:
        max_batch_size: items of a batch.
        max_batch_delay_s: how long an item may be held for company, from when it was enqueued.
        max_batch_cost: the most that the items of a batch may cost together; a lone item above it
            still runs, alone. None is no bound.
        keyed: items have keys.
    """

    max_batch_size: int
    max_batch_delay_s: float
    max_batch_cost: int | None = None
    keyed: bool = False


@dataclass(frozen=True, slots=True)
class Leave(Generic[ItemT]):
    """These items leave now as one batch."""

    items: list[ItemT]
    reason: Reason


@dataclass(frozen=True, slots=True)
class Hold:
    """Nothing leaves before `until`, unless more arrives."""

    until: float


@dataclass(slots=True)
class BatchTimeFit:
    """Running least squares of batch seconds over batch size, older batches forgotten."""

    weight: float = 0.0
    size: float = 0.0
    size2: float = 0.0
    time: float = 0.0
    size_time: float = 0.0

    def add(self, size: int, seconds: float) -> None:
        """Learn from one batch."""
        for name, value in (
            ("weight", 1.0), ("size", size), ("size2", size * size),
            ("time", seconds), ("size_time", size * seconds),
        ):  # fmt: skip
            setattr(self, name, getattr(self, name) * FIT_MEMORY + value)

    @property
    def fixed_s(self) -> float:
        """Seconds that a batch costs beyond its items; 0 while that cannot be told."""
        if not self.weight:
            return 0.0
        mean = self.size / self.weight
        variance = self.size2 / self.weight - mean * mean
        if variance < FIT_MIN_VARIANCE:
            return 0.0
        covariance = self.size_time / self.weight - mean * self.time / self.weight
        return max(0.0, self.time / self.weight - mean * covariance / variance)


@dataclass(slots=True)
class Group(Generic[ItemT]):
    """The items of one key that wait, each with its number, and how close together they come."""

    waiting: deque[tuple[int, ItemT]] = field(default_factory=deque)
    gap_s: float | None = None
    last: float | None = None

    def came(self, at: float) -> None:
        """One came."""
        last, old = self.last, self.gap_s
        if last is not None:
            gap = at - last if at > last else 0.0
            self.gap_s = gap if old is None else old + GAP_WEIGHT * (gap - old)
        self.last = at

    def expected_s(self, now: float) -> float | None:
        """The expected seconds to the next arrival; None while unknown."""
        if self.gap_s is None or self.last is None:
            return None
        return max(self.gap_s, now - self.last)


@dataclass(slots=True)
class Batcher(Generic[ItemT]):
    """The waiting items of one model, and when they leave."""

    policy: Policy
    fit: BatchTimeFit = field(default_factory=BatchTimeFit)
    # Those that have somebody who waits, and all that are remembered.
    _groups: dict[str | None, Group[ItemT]] = field(default_factory=dict)
    _known: dict[str | None, Group[ItemT]] = field(default_factory=dict)
    _alone: deque[tuple[int, ItemT]] = field(default_factory=deque)
    _came: int = 0
    _length: int = 0
    _cost: int = 0

    def __len__(self) -> int:
        return self._length

    @property
    def alone(self) -> bool:
        """Whether an item waits that must run by itself; it is the next to leave."""
        return bool(self._alone)

    @property
    def room(self) -> int:
        """How many more items it takes: one prepared batch, two where items fall into keys."""
        policy = self.policy
        ahead = KEYED_LOOK_AHEAD if policy.keyed else 1
        if policy.max_batch_cost is not None and self._cost >= policy.max_batch_cost * ahead:
            return 0
        return max(0, policy.max_batch_size * ahead - self._length)

    def add(self, item: ItemT) -> None:
        """Take an item, in the order in which it is to run."""
        self._came += 1
        self._length += 1
        self._cost += item.cost
        key = item.key
        group = self._groups.get(key)
        if group is None:
            group = self._remembered(key)
            if not item.alone:
                self._groups[key] = group
        group.came(item.enqueued_at)
        (self._alone if item.alone else group.waiting).append((self._came, item))

    def observe(self, size: int, seconds: float) -> None:
        """Learn what a batch of this size took on the device."""
        self.fit.add(size, seconds)

    def decide(self, now: float, *, draining: bool = False) -> Leave[ItemT] | Hold | None:
        """What to do with a free device: run a batch, hold it back, or nothing (None).

        Args:
            now: the time, on the clock of `enqueued_at`.
            draining: nothing is held any more; what waits leaves, or goes back to its queue.
        """
        if self._alone:
            return self._leave(self._alone, 1, "alone")
        if not self._groups:
            return None
        until: float | None = None
        for key in self._in_turn():
            decision = self._consider(key, now, draining)
            if isinstance(decision, Leave):
                if not self._groups[key].waiting:
                    del self._groups[key]
                return decision
            until = decision.until if until is None else min(until, decision.until)
        return None if until is None else Hold(until)

    def remove(self, item: ItemT) -> bool:
        """Take one item out, wherever it waits; False where it does not."""
        group = self._groups.get(item.key)
        for waiting in (self._alone, group.waiting if group is not None else deque()):
            for pair in waiting:
                if pair[1] is item:
                    waiting.remove(pair)
                    self._length -= 1
                    self._cost -= item.cost
                    if group is not None and not group.waiting:
                        del self._groups[item.key]
                    return True
        return False

    def take_all(self) -> list[ItemT]:
        """Empty the batcher, in the order in which the items came: for release and drain."""
        groups = [self._alone, *(group.waiting for group in self._groups.values())]
        waiting = [pair for group in groups for pair in group]
        for group in groups:
            group.clear()
        self._groups.clear()
        self._length = self._cost = 0
        return [item for _, item in sorted(waiting, key=itemgetter(0))]

    def _remembered(self, key: str | None) -> Group[ItemT]:
        """The group of a key for which nobody waits."""
        group = self._known.get(key)
        if group is None:
            if len(self._known) >= KEYS_MAX:
                # Should somebody wait in it, it lives on among those until it is empty.
                del self._known[next(iter(self._known))]
            group = self._known[key] = Group()
        return group

    def _in_turn(self) -> list[str | None]:
        """The keys that wait, by their first items."""
        groups = self._groups
        if len(groups) < 2:
            return list(groups)
        return sorted(groups, key=lambda key: groups[key].waiting[0][0])

    def _consider(self, key: str | None, now: float, draining: bool) -> Leave[ItemT] | Hold:
        group = self._groups[key]
        waiting = group.waiting
        size, bound = self._fitting(waiting)
        if bound is not None:
            return self._leave(waiting, size, bound)
        deadline = min(item.enqueued_at for _, item in waiting) + self.policy.max_batch_delay_s
        if now >= deadline:
            return self._leave(waiting, size, "deadline")
        gap = group.expected_s(now)
        # Without room nobody can join, however long it is held.
        if gap is None or gap > deadline - now or size * gap >= self.fit.fixed_s or not self.room:
            return self._leave(waiting, size, "idle")
        if draining:
            return self._leave(waiting, size, "drain")
        return Hold(min(deadline, now + max(gap * 2, HOLD_MIN_S)))

    def _fitting(self, group: deque[tuple[int, ItemT]]) -> tuple[int, Reason | None]:
        """How many of a key's first items fit into a batch, and what bounds them, if anything."""
        most, limit = self.policy.max_batch_size, self.policy.max_batch_cost
        if limit is None:
            return (most, "full") if len(group) >= most else (len(group), None)
        cost = 0
        for index, (_, item) in enumerate(group):
            cost += item.cost
            if cost > limit and index:
                return index, "cost"
            if index + 1 == most:
                return most, "full"
            if cost >= limit:
                return index + 1, "cost"
        return len(group), None

    def _leave(self, group: deque[tuple[int, ItemT]], size: int, reason: Reason) -> Leave[ItemT]:
        items = [group.popleft()[1] for _ in range(size)]
        self._length -= size
        if self._cost:
            self._cost -= sum(item.cost for item in items)
        return Leave(items, reason)
