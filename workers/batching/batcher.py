"""When a batch leaves, decided from the items and the time alone. Does no I/O and reads no clock.

The policy is work-conserving. A free device takes the items that are here; while it is busy, items
collect. A batch is held back for more items only while the device is free, and only if that pays.
Waiting for the next arrival costs each waiting item one inter-arrival gap, and saves the fixed cost
of one batch. So a batch of n is held while n * gap < b. Here the time of a batch of size s is
fitted as a*s + b (least squares with forgetting, as in Clipper and BentoML's CORK). Jobs that are
already known to come are handled by `workers/models/backlog.py`.

In a closed loop the next items follow the end of a batch (`Returns`). Here n items are waiting, and
k callers should come back. Without a hold, n items run now and k after them: n + k items in two
batches. With a hold of w seconds, f of them run together; f is at most a whole batch. A batch is
held if this gives more items a second: w < f / (n + k) * (T(n) + T(k)) - T(f), where T is the time
of a batch. For f = n + k this is w < b: a hold pays only if batches have a fixed cost.

A free device waits at most `max_batch_delay_s` for a batch, from when the batch could have started.
An item that has waited that long since it was enqueued is not held for arrivals at random.

Items of different keys never share a batch. Keys take turns by their first items: best priority
first, then in the order in which the items came. So the next batch has the first item of all keys.
If that item is held back, the batch of another key may leave before it. No key can starve another.

Items of the last step are offline. No online batch is held back for them, but they fill the places
that it leaves empty. If the batch is padded up to an allowed size, they cost nothing up to it.
Beyond, k more items make the batch longer by k*a; they are added while this is at most a tenth.
An item that has waited beyond its `overdue_at` goes before all others. At most one in
`OVERDUE_EVERY` items does so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Generic, Literal, Protocol, TypeVar

from headrace.config.model.catalog import ModelConfig
from headrace.redis.keys import OFFLINE_STEP, STEPS
from workers.batching.estimates import Arrivals, LatencyModel, Returns

#: Why a batch left. full: it has `max_batch_size` items. cost: one more item would have exceeded
#: `max_batch_cost`. deadline: the device has waited `max_batch_delay_s` for it. idle: the
#: device was free, and waiting would not have paid. alone: its item was in a batch that was lost
#: (such a batch does not come from `decide`). drain: the worker is about to stop. A batch with
#: online items has the reason for which these left.
Reason = Literal["full", "cost", "deadline", "idle", "alone", "drain"]

#: Items that arrive together have a gap of 0, and a hold of no length would be a busy loop.
HOLD_MIN_S: Final = 0.0005
#: While the times of batches are unknown, one batch in this many is held for the callers that come
#: back: without batches of several sizes, they would stay unknown.
TRIAL_EVERY: Final = 7
#: How many batches' worth of items may wait if they have keys. With one batch's worth, two keys in
#: turn would halve each other's batches.
KEYED_LOOK_AHEAD: Final = 2
#: For how many keys arrivals are remembered: the latest ones.
KEYS_MAX: Final = 256
#: The share of its time by which offline items may make an online batch longer.
FILL_SHARE: Final = 0.1
#: At most one in this many items goes before better ones because it has waited too long. Otherwise
#: a backlog of old items would reverse the order.
OVERDUE_EVERY: Final = 10
STEP_PLACE: Final = {step: place for place, step in enumerate(STEPS)}
#: Used as the step of an item that has waited too long: it goes before all others.
FIRST: Final = -1


class Batchable(Protocol):
    """What the batcher reads of an item.

    Attributes:
        enqueued_at: seconds, on the same clock as every `now`.
        step: its priority, a value of `headrace.redis.keys.STEPS`.
        overdue_at: from then on it no longer yields to better ones.
        isolated: it was in a batch that was lost and must run alone.
        cost: its share of `max_batch_cost`.
        key: only items with the same key run together.
    """

    enqueued_at: float
    step: int
    overdue_at: float
    isolated: bool
    cost: int
    key: str | None

    @property
    def ready_at(self) -> float:
        """From when on it could run here."""


ItemT = TypeVar("ItemT", bound=Batchable)
#: What items are sorted by: their step, then the order in which they came.
Number = tuple[int, int]
Row = deque[tuple[Number, ItemT]]


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """The limits of a model's batches.

    Attributes:
        max_batch_delay_s: how long a free device may wait for a fuller batch.
        max_batch_cost: the most that the items of a batch may cost together; an item above it runs
            alone. None for no limit.
        keyed: items have keys.
        sizes: the sizes that a batch is padded up to, in order; empty for no padding.
    """

    max_batch_size: int
    max_batch_delay_s: float
    max_batch_cost: int | None = None
    keyed: bool = False
    sizes: tuple[int, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether a batch may be held back for more items."""
        return self.max_batch_size > 1 and self.max_batch_delay_s > 0


def batch_policy(config: ModelConfig) -> BatchPolicy:
    """Return the limits that the models file sets for a model."""
    return BatchPolicy(
        max_batch_size=config.max_batch_size,
        max_batch_delay_s=config.max_batch_delay_ms / 1000,
        max_batch_cost=config.max_batch_cost,
        keyed=config.batch_key is not None,
        sizes=tuple(config.allowed_batch_sizes or ()),
    )


@dataclass(frozen=True, slots=True)
class Leave(Generic[ItemT]):
    """The decision that these items leave now as a batch."""

    items: list[ItemT]
    reason: Reason


@dataclass(frozen=True, slots=True)
class Hold:
    """The decision that nothing leaves before `until`, unless more items arrive."""

    until: float


@dataclass(slots=True)
class KeyQueue(Generic[ItemT]):
    """The waiting items with their numbers, and the arrivals of online and offline items.

    Attributes:
        passed: the batch of another key has left while these items were held. They are not held
            for callers again: full batches of other keys could leave before them for ever.
    """

    waiting: Row[ItemT] = field(default_factory=deque)
    online: Arrivals = field(default_factory=Arrivals)
    offline: Arrivals = field(default_factory=Arrivals)
    passed: bool = False

    @property
    def urgent(self) -> int:
        """How many of the first items are online, or go before all others."""
        waiting = self.waiting
        if not waiting or waiting[-1][0][0] < OFFLINE_STEP:
            return len(waiting)
        return sum(number[0] < OFFLINE_STEP for number, _ in waiting)


@dataclass(slots=True)
class Batcher(Generic[ItemT]):
    """The waiting items of a model, and when they leave.

    Attributes:
        online_at: when the latest online item was enqueued.
    """

    policy: BatchPolicy
    latency_model: LatencyModel = field(default_factory=LatencyModel)
    returns: Returns = field(default_factory=Returns)
    online_at: float = float("-inf")
    # The keys that have waiting items, and all that are remembered.
    _groups: dict[str | None, KeyQueue[ItemT]] = field(default_factory=dict)
    _known: dict[str | None, KeyQueue[ItemT]] = field(default_factory=dict)
    _isolated: Row[ItemT] = field(default_factory=deque)
    _came: int = 0
    _back: int = 0
    # How many batches have left, and since when the next one could have started.
    _left: int = 0
    _opened_at: float | None = None
    _length: int = 0
    # For each step, how many items wait and their cost.
    _counts: list[int] = field(default_factory=lambda: [0] * len(STEPS))
    _costs: list[int] = field(default_factory=lambda: [0] * len(STEPS))
    # When the first item is overdue, or earlier; and how many left since an overdue one went first.
    _overdue_at: float = float("inf")
    _since_overdue: int = OVERDUE_EVERY

    def __len__(self) -> int:
        return self._length

    @property
    def isolated(self) -> bool:
        """Whether an item waits that must run alone."""
        return bool(self._isolated)

    @property
    def online(self) -> int:
        """How many online items wait."""
        return self._length - self._counts[-1]

    @property
    def room(self) -> list[int]:
        """How many more items of each step it takes.

        The limit is one batch, or two if items have keys. It holds for a step and all better steps
        together, so prepared items of worse steps take no room from better ones.
        """
        return self.room_in(self.policy.max_batch_size)

    def room_in(self, size: int) -> list[int]:
        """Return the same for batches of this size."""
        policy, counts = self.policy, self._counts
        ahead = KEYED_LOOK_AHEAD if policy.keyed else 1
        items_max, limit = size * ahead, policy.max_batch_cost
        room, held, cost = [], 0, 0
        for place, count in enumerate(counts):
            held += count
            cost += self._costs[place]
            full = limit is not None and cost >= limit * ahead
            room.append(0 if full else max(0, items_max - held))
        return room

    def overdue(self, now: float) -> bool:
        """Return whether an item has waited too long."""
        if now < self._overdue_at:
            return False
        late = [item.overdue_at for row in self._rows() for _, item in row]
        self._overdue_at = min(late, default=float("inf"))
        return now >= self._overdue_at

    def add(self, item: ItemT) -> None:
        """Add an item; the items of a step run in the order in which they are added."""
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
                if not self._groups:
                    self._opened_at = None  # the items that were held have gone without a batch
                self._groups[key] = group
        if step == OFFLINE_STEP:
            group.offline.observe(at)
        else:
            self.online_at = at
            group.online.observe(at)
            if self.policy.holds:
                self.returns.arrived(at, item.ready_at)
        row, number = self._isolated if item.isolated else group.waiting, (step, self._came)
        if row and row[-1][0] > number:
            put(row, number, item)
        else:
            row.append((number, item))

    def batch_ended(self, online: int, now: float, took_s: float) -> None:
        """Note that a batch with so many online items has ended, whose callers may come back."""
        if self.policy.holds:
            self.returns.batch_ended(online, now, self.policy.max_batch_delay_s, took_s)

    def decide(
        self, now: float, *, draining: bool = False, behind: int | None = None
    ) -> Leave[ItemT] | Hold | None:
        """Return what to do with a free device: run a batch, hold it back, or nothing (None).

        Items that must run alone are left to `next_isolated`.

        Args:
            draining: hold nothing back.
            behind: how many online items the batch has that the device is about to end; None if
                the device is free.
        """
        if self.overdue(now) and self._since_overdue >= OVERDUE_EVERY:
            self._move_overdue_first(now)
        if not self._groups:
            return None
        until: float | None = None
        held: list[KeyQueue[ItemT]] = []
        for key in self._in_turn():
            group = self._groups[key]
            if until is not None and not group.urgent:
                break  # an offline batch would delay the one that is held
            decision = self._consider(key, now, draining, behind)
            if isinstance(decision, Leave):
                for other in held:
                    other.passed = True
                if not group.waiting:
                    del self._groups[key]
                return decision
            held.append(group)
            until = decision.until if until is None else min(until, decision.until)
        return None if until is None else Hold(until)

    def next_isolated(self, now: float) -> ItemT | None:
        """Return the item that must run alone if it is the next to run; `take_isolated` takes it.

        `decide` returns the others only.
        """
        if not self._isolated:
            return None
        if self.overdue(now) and self._since_overdue >= OVERDUE_EVERY:
            self._move_overdue_first(now)
        steps = [group.waiting[0][0][0] for group in self._groups.values()]
        number, item = self._isolated[0]
        return item if number[0] <= min(steps, default=OFFLINE_STEP) else None

    def take_isolated(self, item: ItemT) -> bool:
        """Remove an item that runs alone now; return False if it does not wait here."""
        pair = next((pair for pair in self._isolated if pair[1] is item), None)
        if pair is None:
            return False
        self._isolated.remove(pair)
        self._since_overdue = 0 if pair[0][0] == FIRST else self._since_overdue + 1
        self._count(item, -1)
        return True

    def remove(self, item: ItemT) -> bool:
        """Remove an item; return False if it does not wait here."""
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
        """Add items that had left and did not run, in front of the others of their step."""
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
        """Remove all items, and return them in the order in which they came."""
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
        """Return the queue of a key without waiting items."""
        group = self._known.get(key)
        if group is None:
            if len(self._known) >= KEYS_MAX:
                # If items wait in it, it stays in `_groups` until it is empty.
                del self._known[next(iter(self._known))]
            group = self._known[key] = KeyQueue()
        group.passed = False
        return group

    def _in_turn(self) -> list[str | None]:
        """Return the keys with waiting items, in the order of their first items."""
        groups = self._groups
        if len(groups) < 2:
            return list(groups)
        return sorted(groups, key=lambda key: groups[key].waiting[0][0])

    def _move_overdue_first(self, now: float) -> None:
        """Put the item that is most overdue in front of all, if better ones wait.

        Only the first item of each step counts, because small delays of replies blur the times of
        neighbours.
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

    def _consider(
        self, key: str | None, now: float, draining: bool, behind: int | None
    ) -> Leave[ItemT] | Hold:
        group = self._groups[key]
        waiting, urgent = group.waiting, group.urgent
        count = urgent or len(waiting)
        size, bound = self._fitting(waiting, count)
        if bound is not None:
            return self._leave(group, size, bound)
        filled = self._filled(waiting, size) if urgent else size
        if self._opened_at is None and behind is None:
            self._opened_at = now
        opened_at = now if self._opened_at is None else self._opened_at
        deadline = opened_at + self.policy.max_batch_delay_s
        if now >= deadline:
            return self._leave(group, filled, "deadline")
        # Without room no item can join, however long the batch is held.
        room = self.room[-2 if urgent else -1]
        if not room:
            return self._leave(group, filled, "idle")
        if urgent and self.returns.known:
            until = None
            if not group.passed:
                until = self._until_returned(size, room, now, opened_at, behind or 0)
        else:
            oldest = min(item.enqueued_at for _, item in islice(waiting, count))
            deadline = min(deadline, oldest + self.policy.max_batch_delay_s)
            if now >= deadline:
                return self._leave(group, filled, "deadline")
            arrivals = group.online if urgent else group.offline
            until = self._until_next(arrivals, size, now, deadline)
        if until is None:
            return self._leave(group, filled, "idle")
        if draining:
            return self._leave(group, filled, "drain")
        return Hold(until)

    def _until_next(
        self, arrivals: Arrivals, size: int, now: float, deadline: float
    ) -> float | None:
        """Return until when `size` items should wait for one that comes at random, if at all."""
        gap = arrivals.expected_s(now)
        if gap is None or gap > deadline - now or size * gap >= self.latency_model.fixed_s:
            return None
        return min(deadline, now + max(gap * 2, HOLD_MIN_S))

    def _until_returned(
        self, size: int, room: int, now: float, opened_at: float, behind: int
    ) -> float | None:
        """Return until when `size` items should wait for callers that come back, if at all."""
        expected = self.returns.expected(now, behind)
        if expected is None or self._counts[-1]:
            return None  # while offline items wait, they use the device
        callers, first_at, last_at, late_at = expected
        deadline = opened_at + self.policy.max_batch_delay_s
        # They come evenly between the first and the last one.
        spread_s = last_at - first_at
        joining = min(callers, room, self.policy.max_batch_size - size)
        here_at = first_at + max(0.0, spread_s) * joining / callers
        if here_at > deadline:
            joining = int(callers * (deadline - first_at) / spread_s) if spread_s > 0 else 0
            here_at = deadline
        times = self._times(size, min(callers, self.policy.max_batch_size), size + joining)
        if joining < 1 or times is None:
            return None
        first_s, second_s, together_s = times
        part = (size + joining) / (size + callers)
        saved_s = part * (first_s + second_s) - together_s
        # However late they are, the whole hold costs no more than it saves.
        deadline = min(deadline, opened_at + saved_s)
        if here_at - now >= saved_s or now >= deadline:
            return None
        return min(deadline, max(late_at, now + HOLD_MIN_S))

    def _times(self, *sizes: int) -> list[float] | None:
        """Return the seconds of batches of these sizes; None while unknown."""
        allowed = self.policy.sizes
        run_as = [next((step for step in allowed if step >= size), size) for size in sizes]
        line, usual_s = self.latency_model.line, self.latency_model.usual_s
        if line is not None:
            fixed_s, item_s = line
            return [fixed_s + item_s * size for size in run_as]
        alike = bool(allowed) and len(set(run_as)) == 1
        return [usual_s] * len(sizes) if alike or self._left % TRIAL_EVERY == 0 else None

    def _fitting(self, row: Row[ItemT], count: int) -> tuple[int, Reason | None]:
        """Return how many of the first `count` items fit into a batch, and what limits them."""
        items_max, limit = self.policy.max_batch_size, self.policy.max_batch_cost
        if limit is None:
            return (items_max, "full") if count >= items_max else (count, None)
        cost = 0
        for index, (_, item) in enumerate(islice(row, count)):
            cost += item.cost
            if cost > limit and index:
                return index, "cost"
            if index + 1 == items_max:
                return items_max, "full"
            if cost >= limit:
                return index + 1, "cost"
        return count, None

    def _filled(self, row: Row[ItemT], size: int) -> int:
        """Return how many items leave when offline ones join the first `size`."""
        if len(row) == size:
            return size
        filled, limit = min(len(row), self._fills_to(size)), self.policy.max_batch_cost
        if limit is None:
            return filled
        cost = sum(item.cost for _, item in islice(row, size))
        for index, (_, item) in enumerate(islice(row, size, filled)):
            cost += item.cost
            if cost > limit:
                return size + index
        return filled

    def _fills_to(self, size: int) -> int:
        """Return up to which size offline items may join a batch of `size` urgent ones."""
        items_max = self.policy.max_batch_size
        sizes = [allowed for allowed in self.policy.sizes if size <= allowed <= items_max]
        runs_as = sizes[0] if sizes else size
        line = self.latency_model.line
        if line is None:
            return runs_as
        fixed_s, item_s = line
        longer_s = FILL_SHARE * (fixed_s + item_s * runs_as)
        more = int(longer_s / item_s) if longer_s < item_s * items_max else items_max
        if not sizes:
            return min(items_max, size + more)
        return max(allowed for allowed in sizes if allowed <= runs_as + more)

    def _leave(self, group: KeyQueue[ItemT], size: int, reason: Reason) -> Leave[ItemT]:
        row, self._opened_at, group.passed = group.waiting, None, False
        self._left += 1
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


def put(row: Row[ItemT], number: Number, item: ItemT) -> None:
    """Insert an item in order, from the back, because new items usually belong there."""
    at = len(row)
    while at and row[at - 1][0] > number:
        at -= 1
    row.insert(at, (number, item))
