"""When a batch leaves: decided from the items and the time alone. No Redis, no threads, no clock.

The policy is work-conserving. A free device takes what is there; while it is busy, items collect.
Holding a batch back for company happens only while the device is free, and only when it pays: an
item that waits for the next arrival costs each waiting item one inter-arrival gap, and saves the
fixed cost of one batch. So a batch of n is held while n * gap < b, where the time of a batch of
size s is fitted as a*s + b (least squares with forgetting, as in Clipper and BentoML's CORK), and
never beyond `max_batch_delay_s` from when its oldest item was enqueued. Who is known to be on the
way is no bet, and a matter of `workers/batching/expected_arrivals.py`.

Items of different keys never share a batch. Keys take turns by their first items, best priority
first and then in the order in which these came: a batch that leaves holds the first item of all,
unless that one is held for company and another key's need not wait for it. So no key can starve
another.

Items of the last step are offline: nothing is held for their sake beside online ones, and they fill
places that an online batch leaves empty. Where the batch is padded up to an allowed size anyway
that costs nothing; beyond it k more make the batch longer by k*a, so that they go along while that
is no more than a tenth. An item that has waited beyond its
`overdue_at` goes before all others, but no more than one in `OVERDUE_EVERY` items does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Generic, Literal, Protocol, TypeVar

from headrace.config.model_catalog import ModelConfig
from headrace.redis.keys import OFFLINE_STEP, STEPS
from workers.batching.latency_model import LatencyModel
from workers.batching.waiting import FIRST, KeyQueue, Number, Row, put

#: Why a batch left. full: `max_batch_size` were there. cost: one more would have been above
#: `max_batch_cost`. deadline: its oldest was enqueued `max_batch_delay_s` ago. idle: the device was
#: free, and a hold would not have paid. alone: it was in a batch that was lost. drain: its worker
#: is about to stop. What is said is why its online items left, where it has any.
Reason = Literal["full", "cost", "deadline", "idle", "alone", "drain"]

#: Jobs that arrive together say that the next comes at once; a hold of no length would be a spin.
HOLD_MIN_S: Final = 0.0005
#: How many batches' worth of items may wait where they fall into keys: with one batch's worth, two
#: keys in turn would halve each other's batches.
KEYED_LOOK_AHEAD: Final = 2
#: Of so many keys the arrivals are remembered, the latest ones.
KEYS_MAX: Final = 256
#: By which share of its time an online batch may become longer by offline items that go along.
FILL_SHARE: Final = 0.1
#: At most one in so many items goes before better ones because it has waited too long: a backlog
#: that is all too old must not turn the order round.
OVERDUE_EVERY: Final = 10
STEP_PLACE: Final = {step: place for place, step in enumerate(STEPS)}


class Batchable(Protocol):
    """What the batcher needs to know of an item.

    Attributes:
        enqueued_at: seconds, on the same clock as every `now`.
        step: its priority, one of `headrace.redis.keys.STEPS`.
        overdue_at: from then on it no longer yields to better ones.
        isolated: it was in a batch that was lost and must run by itself.
        cost: its share of `max_batch_cost`.
        key: only items of one key run together.
    """

    enqueued_at: float
    step: int
    overdue_at: float
    isolated: bool
    cost: int
    key: str | None


ItemT = TypeVar("ItemT", bound=Batchable)


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """Bounds of a model's batches.

    Attributes:
        max_batch_size: items of a batch.
        max_batch_delay_s: how long an item may be held for company, from when it was enqueued.
        max_batch_cost: the most that the items of a batch may cost together; a lone item above it
            still runs, alone. None is no bound.
        keyed: items have keys.
        sizes: those that a batch is padded up to, in order; none: it runs as it is.
    """

    max_batch_size: int
    max_batch_delay_s: float
    max_batch_cost: int | None = None
    keyed: bool = False
    sizes: tuple[int, ...] = ()


def batch_policy(config: ModelConfig) -> BatchPolicy:
    """Return the bounds that the models file sets for a model."""
    return BatchPolicy(
        max_batch_size=config.max_batch_size,
        max_batch_delay_s=config.max_batch_delay_ms / 1000,
        max_batch_cost=config.max_batch_cost,
        keyed=config.batch_key is not None,
        sizes=tuple(config.allowed_batch_sizes or ()),
    )


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
class Batcher(Generic[ItemT]):
    """The waiting items of one model, and when they leave.

    Attributes:
        latency_model: what batches take.
        online_at: when the last item that came and is not offline was enqueued.
    """

    policy: BatchPolicy
    latency_model: LatencyModel = field(default_factory=LatencyModel)
    online_at: float = float("-inf")
    # Those that have somebody who waits, and all that are remembered.
    _groups: dict[str | None, KeyQueue[ItemT]] = field(default_factory=dict)
    _known: dict[str | None, KeyQueue[ItemT]] = field(default_factory=dict)
    _isolated: Row[ItemT] = field(default_factory=deque)
    _came: int = 0
    _back: int = 0
    _length: int = 0
    # Of each step, how many wait and what they cost together.
    _counts: list[int] = field(default_factory=lambda: [0] * len(STEPS))
    _costs: list[int] = field(default_factory=lambda: [0] * len(STEPS))
    # When the first of them is overdue, or sooner; and how many have left since one went first.
    _overdue_at: float = float("inf")
    _since_overdue: int = OVERDUE_EVERY

    def __len__(self) -> int:
        return self._length

    @property
    def isolated(self) -> bool:
        """Whether an item waits that must run by itself."""
        return bool(self._isolated)

    @property
    def online(self) -> int:
        """How many items wait that are not offline."""
        return self._length - self._counts[-1]

    @property
    def room(self) -> list[int]:
        """How many more items it takes of each step.

        One prepared batch, or two where items fall into keys, of a step and all better ones: what
        is prepared of worse ones takes no room from better ones.
        """
        policy, counts = self.policy, self._counts
        ahead = KEYED_LOOK_AHEAD if policy.keyed else 1
        most, limit = policy.max_batch_size * ahead, policy.max_batch_cost
        rooms, held, cost = [], 0, 0
        for place, count in enumerate(counts):
            held += count
            cost += self._costs[place]
            full = limit is not None and cost >= limit * ahead
            rooms.append(0 if full else max(0, most - held))
        return rooms

    def overdue(self, now: float) -> bool:
        """Whether an item has waited too long."""
        if now < self._overdue_at:
            return False
        late = [item.overdue_at for row in self._rows() for _, item in row]
        self._overdue_at = min(late, default=float("inf"))
        return now >= self._overdue_at

    def add(self, item: ItemT) -> None:
        """Take an item, in the order in which those of a step are to run."""
        self._came += 1
        step, key, at = item.step, item.key, item.enqueued_at
        place = STEP_PLACE[step]
        self._length += 1
        self._counts[place] += 1
        self._costs[place] += item.cost
        if item.overdue_at < self._overdue_at:
            self._overdue_at = item.overdue_at
        group = self._groups.get(key)
        if group is None:
            group = self._remembered(key)
            if not item.isolated:
                self._groups[key] = group
        if step == OFFLINE_STEP:
            group.offline.observe(at)
        else:
            self.online_at = at
            group.online.observe(at)
        row, number = self._isolated if item.isolated else group.waiting, (step, self._came)
        if row and row[-1][0] > number:
            put(row, number, item)
        else:
            row.append((number, item))

    def observe(self, size: int, seconds: float) -> None:
        """Learn what a batch of this size took on the device."""
        self.latency_model.add(size, seconds)

    def decide(self, now: float, *, draining: bool = False) -> Leave[ItemT] | Hold | None:
        """What to do with a free device: run a batch, hold it back, or nothing (None).

        Args:
            now: the time, on the clock of `enqueued_at`.
            draining: nothing is held any more; what waits leaves, or goes back to its queue.
        """
        if self.overdue(now) and self._since_overdue >= OVERDUE_EVERY:
            self._let_before(now)
        if self._isolated and self._isolated_is_next():
            return self._leave(self._isolated, 1, "alone")
        if not self._groups:
            return None
        until: float | None = None
        for key in self._in_turn():
            if until is not None and not self._groups[key].urgent:
                break  # an offline batch would be in the way of the one that is held
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
        for waiting in (self._isolated, group.waiting if group is not None else deque()):
            for pair in waiting:
                if pair[1] is item:
                    waiting.remove(pair)
                    self._count(item, -1)
                    if group is not None and not group.waiting:
                        del self._groups[item.key]
                    return True
        return False

    def put_back(self, items: Sequence[ItemT]) -> None:
        """Take items in front of those of their step: they had left, and were not run."""
        for item in reversed(items):
            self._back -= 1
            row = self._isolated
            if not item.isolated:
                group = self._groups.get(item.key) or self._remembered(item.key)
                self._groups[item.key] = group
                row = group.waiting
            self._count(item, 1)
            self._overdue_at = min(self._overdue_at, item.overdue_at)
            put(row, (item.step, self._back), item)

    def take_all(self) -> list[ItemT]:
        """Empty the batcher, in the order in which the items came: for release and drain."""
        waiting = [pair for row in self._rows() for pair in row]
        for row in self._rows():
            row.clear()
        self._groups.clear()
        self._length, self._overdue_at = 0, float("inf")
        self._counts, self._costs = [0] * len(STEPS), [0] * len(STEPS)
        return [item for _, item in sorted(waiting, key=lambda pair: pair[0][1])]

    def _rows(self) -> Iterator[Row[ItemT]]:
        yield self._isolated
        for group in self._groups.values():
            yield group.waiting

    def _remembered(self, key: str | None) -> KeyQueue[ItemT]:
        """The group of a key for which nobody waits."""
        group = self._known.get(key)
        if group is None:
            if len(self._known) >= KEYS_MAX:
                # Should somebody wait in it, it lives on among those until it is empty.
                del self._known[next(iter(self._known))]
            group = self._known[key] = KeyQueue()
        return group

    def _in_turn(self) -> list[str | None]:
        """The keys that wait, by their first items."""
        groups = self._groups
        if len(groups) < 2:
            return list(groups)
        return sorted(groups, key=lambda key: groups[key].waiting[0][0])

    def _isolated_is_next(self) -> bool:
        """Whether nothing of a better step waits beside what must run alone."""
        steps = [group.waiting[0][0][0] for group in self._groups.values()]
        return self._isolated[0][0][0] <= min(steps, default=OFFLINE_STEP)

    def _let_before(self, now: float) -> None:
        """Put what has waited longest beyond its time before all, where better ones wait.

        Of each step that is the first: an answer's way makes times of neighbours differ a little.
        """
        heads: dict[int, tuple[float, Number, Row[ItemT]]] = {}
        for row in self._rows():
            for number, item in row:
                known = heads.get(number[0])
                if known is None or number < known[1]:
                    heads[number[0]] = (item.overdue_at, number, row)
        best = min(heads)
        late = [head for step, head in heads.items() if step > best and head[0] <= now]
        if best == FIRST or not late:
            return
        _, number, row = min(late, key=lambda head: head[:2])
        at = next(index for index, pair in enumerate(row) if pair[0] == number)
        item = row[at][1]
        del row[at]
        row.appendleft(((FIRST, number[1]), item))

    def _consider(self, key: str | None, now: float, draining: bool) -> Leave[ItemT] | Hold:
        group = self._groups[key]
        waiting, urgent = group.waiting, group.urgent
        count = urgent or len(waiting)
        size, bound = self._fitting(waiting, count)
        if bound is not None:
            return self._leave(waiting, size, bound)
        filled = self._filled(waiting, size) if urgent else size
        oldest = min(item.enqueued_at for _, item in islice(waiting, count))
        deadline = oldest + self.policy.max_batch_delay_s
        if now >= deadline:
            return self._leave(waiting, filled, "deadline")
        gap = group.arrivals(not urgent).expected_s(now)
        # Without room nobody can join, however long it is held.
        room = self.room[-2 if urgent else -1]
        if (
            gap is None
            or gap > deadline - now
            or size * gap >= self.latency_model.fixed_s
            or not room
        ):
            return self._leave(waiting, filled, "idle")
        if draining:
            return self._leave(waiting, filled, "drain")
        return Hold(min(deadline, now + max(gap * 2, HOLD_MIN_S)))

    def _fitting(self, row: Row[ItemT], count: int) -> tuple[int, Reason | None]:
        """How many of the first `count` fit into a batch, and what bounds them, if anything."""
        most, limit = self.policy.max_batch_size, self.policy.max_batch_cost
        if limit is None:
            return (most, "full") if count >= most else (count, None)
        cost = 0
        for index, (_, item) in enumerate(islice(row, count)):
            cost += item.cost
            if cost > limit and index:
                return index, "cost"
            if index + 1 == most:
                return most, "full"
            if cost >= limit:
                return index + 1, "cost"
        return count, None

    def _filled(self, row: Row[ItemT], size: int) -> int:
        """How many leave when offline ones go along with the first `size`."""
        if len(row) == size:
            return size
        most, limit = min(len(row), self._fills_to(size)), self.policy.max_batch_cost
        if limit is None:
            return most
        cost = sum(item.cost for _, item in islice(row, size))
        for index, (_, item) in enumerate(islice(row, size, most)):
            cost += item.cost
            if cost > limit:
                return size + index
        return most

    def _fills_to(self, size: int) -> int:
        """Up to which size a batch of so many urgent items takes offline ones along."""
        most = self.policy.max_batch_size
        sizes = [allowed for allowed in self.policy.sizes if size <= allowed <= most]
        runs_as = sizes[0] if sizes else size
        line = self.latency_model.line
        if line is None:
            return runs_as
        fixed_s, item_s = line
        longer_s = FILL_SHARE * (fixed_s + item_s * runs_as)
        more = int(longer_s / item_s) if longer_s < item_s * most else most
        if not sizes:
            return min(most, size + more)
        return max(allowed for allowed in sizes if allowed <= runs_as + more)

    def _leave(self, row: Row[ItemT], size: int, reason: Reason) -> Leave[ItemT]:
        self._since_overdue = 0 if row[0][0][0] == FIRST else self._since_overdue + size
        items = [row.popleft()[1] for _ in range(size)]
        if size == self._length:  # as usual
            self._length, self._counts, self._costs = 0, [0] * len(STEPS), [0] * len(STEPS)
            return Leave(items, reason)
        for item in items:
            self._count(item, -1)
        return Leave(items, reason)

    def _count(self, item: ItemT, by: int) -> None:
        place = STEP_PLACE[item.step]
        self._length += by
        self._counts[place] += by
        self._costs[place] += by * item.cost
