"""Which model's batch runs next on which device.

A batch runs only when it has a slot of its device, and the models of a device get slots in turns.
A model that has only offline jobs prepared gets a slot when no other model wants it and no online
job is expected. If one of its jobs has waited too long, it takes turns with the others, with a
small share. Offline batches are charged to a share of their own, so they cost a model none of its
online time.

A turn of a generator is no single batch: jobs join those that run. While another model waits, jobs
may join for a least time, and then until that model is next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from workers.jobs.leased_job import Batch
from workers.models.served_model import ServedModel
from workers.replicas.devices import slots_of
from workers.replicas.replica import Replica
from workers.scheduling.isolation import Isolation


@dataclass(slots=True)
class FairQueue:
    """The turns on a device, by weighted shares of its time. Reads no clock.

    This is start-time fair queueing (Goyal, Vin and Cheng, 1996). Each name has a virtual time,
    which advances by seconds of use over weight, and the name that is furthest behind has the next
    turn. Deficit round robin must know how long a batch takes before it runs; here the time is
    charged when the batch has ended. A name that wanted nothing for a while continues at the time
    of the others, so it saves up no credit.

    Attributes:
        weights: the share of each name, relative to the others.
        slots: how many batches may run at once.
    """

    weights: Mapping[str, float]
    slots: int
    _used: dict[str, float] = field(default_factory=dict)
    _began: dict[str, int] = field(default_factory=dict)
    _now: float = 0.0
    _turn: int = 0
    _running: int = 0

    @property
    def free(self) -> bool:
        """Whether one more batch may run."""
        return self._running < self.slots

    def order(self, wanting: Iterable[str]) -> list[str]:
        """Return these names in the order of their turns.

        Among names that are equally far behind, the name that has waited longest is first.
        """
        return sorted(wanting, key=lambda name: (self._start(name), self._began.get(name, 0)))

    def behind(self, name: str, other: str, seconds: float) -> bool:
        """Return whether `other` is next once `name` is charged for `seconds` more."""
        used = self._start(name) + seconds / self.weights[name]
        return self._start(other) < used

    def begin(self, name: str) -> None:
        """Give a name its turn and a slot."""
        self._turn += 1
        self._running += 1
        self._began[name] = self._turn
        self._now = self._used[name] = self._start(name)

    def end(self, name: str, seconds: float) -> None:
        """Take the slot back, and charge the name for `seconds` of the device."""
        self._running -= 1
        self._used[name] += seconds / self.weights[name]

    def pass_on(self, name: str, seconds: float, to: str, waiting: Iterable[str]) -> None:
        """Charge a name for `seconds`, and give its slot to `to`, which need not be next.

        The names that are waiting keep how far they are behind.
        """
        self._used[name] += seconds / self.weights[name]
        self._turn += 1
        self._began[to] = self._turn
        self._used[to] = self._start(to)
        self._now = max(self._now, min(map(self._start, [to, *waiting])))

    def remove(self, name: str) -> None:
        """Remove a name of which nothing runs."""
        self._used.pop(name, None)
        self._began.pop(name, None)

    def _start(self, name: str) -> float:
        return max(self._used.get(name, 0.0), self._now)


#: If no online job came for this many seconds, none is expected in the next moment.
QUIET_S: Final = 10.0


def replica_for_second(
    model: ServedModel, models: Iterable[ServedModel], now: float
) -> Replica | None:
    """Return the replica that gets a second batch of a model now; None if none does.

    A model of `models` that waits for the device runs first.
    """
    waiting = model.prepared
    if not waiting or model.idle or model.isolated:
        return None
    replica = _takes_second(model)
    if replica is None:
        return None
    others = [other for other in models if other is not model and other.device == model.device]
    online = model.online
    full = online and waiting >= model.batch_limit
    early = full and all(other.quiet_for(QUIET_S, now) for other in others)
    if not early and model.batch_ends_in_s(now) > preparation_s(model):
        return None
    if not online and not all(served.quiet_for(QUIET_S, now) for served in (model, *others)):
        return None
    wanted = any(other.wants_turn and other.online for other in others)
    return None if wanted else replica


def stage_at(model: ServedModel, now: float) -> float | None:
    """Return when the prepared jobs must be staged at the latest; None if unknown or past."""
    if not model.prepared or _takes_second(model) is None:
        return None
    in_s = model.batch_ends_in_s(now) - preparation_s(model)
    return now + in_s if 0 < in_s < float("inf") else None


def preparation_s(model: ServedModel) -> float:
    """Return how long `preprocess` takes for the prepared jobs."""
    return model.prepare_s * min(model.prepared, model.batch_limit)


def _takes_second(model: ServedModel) -> Replica | None:
    """Return the replica that can take a second batch and has begun its first batch first."""
    ready = [replica for replica in model.replicas if replica.takes_second]
    return min(ready, key=_started_at, default=None)


def _started_at(replica: Replica) -> float:
    return replica.batch.started_at if replica.batch is not None else 0.0


#: The share of a model's overdue offline jobs, relative to its online jobs.
OVERDUE_SHARE: Final = 0.1
#: For how long jobs may join in the turn of a generator at least, although another model waits.
LEAST_TURN_S: Final = 1.0


class Dispatched(NamedTuple):
    """A batch to run now.

    Attributes:
        turn: the name under which it takes its turn; empty if it joins others in their slot.
        began_at: when its turn began, with this batch or with that whose slot it took over.
        since: from when on its turn is not charged yet.
    """

    model: ServedModel
    replica: Replica
    batch: Batch
    turn: str
    began_at: float
    since: float

    def used_s(self, now: float) -> float:
        """Return for how long it has had its slot."""
        return now - self.since

    def overdue(self, now: float) -> bool:
        """Return whether it took the turn of an offline job that had waited too long."""
        return any(batch.offline and is_overdue(batch, now) for batch in self.replica.running)


def offline_turn(model: str) -> str:
    """Return the name under which a model's offline batches take turns; no model has it as key."""
    return f"{model} offline"


def turn_of(model: ServedModel, batch: Batch) -> str:
    """Return the name under which a batch takes its turn."""
    return offline_turn(model.key) if batch.offline else model.key


def is_overdue(batch: Batch, now: float) -> bool:
    """Return whether a job of the batch has waited too long."""
    return any(now >= job.overdue_at for job in batch.jobs)


@dataclass(slots=True)
class _Device:
    """The models of a device, by name, and their turns."""

    models: dict[str, ServedModel]
    fair_queue: FairQueue

    def wanting(self, now: float, claims: bool) -> dict[str, ServedModel]:
        """Return the models that may run a batch next, by the name of their turn."""
        online, overdue, offline = {}, {}, {}
        for name, model in self.models.items():
            if not model.wants_turn:
                continue
            if model.online:
                online[name] = model
            elif model.overdue(now):
                overdue[offline_turn(name)] = model
            else:
                offline[offline_turn(name)] = model
        if online or not (overdue or offline):
            return online | overdue
        if claims and any(model.expects_online for model in self.models.values()):
            return overdue
        return overdue | offline

    def rivals(self, model: ServedModel, now: float) -> tuple[list[str], list[str]]:
        """Return the turns that other models want: those of online or overdue jobs, and offline."""
        shared: list[str] = []
        offline: list[str] = []
        for name, other in self.models.items():
            if other is model or not other.wants_turn:
                continue
            if other.online:
                shared.append(name)
            else:
                (shared if other.overdue(now) else offline).append(offline_turn(name))
        return shared, offline


class Dispatcher:
    """Shares a worker's devices among its models; `slots` of 0 is a default by the models."""

    def __init__(self, models: Sequence[ServedModel], slots: int = 0) -> None:
        self._models = models
        self._slots = slots
        self._devices: dict[str, _Device] = {}
        self._device_of: dict[str, _Device] = {}
        for model in models:
            self.add(model)
        self._running: list[Dispatched] = []
        self.isolation = Isolation(models)

    def add(self, model: ServedModel) -> None:
        """Give a model turns on its device."""
        device = self._devices.get(model.device)
        if device is None:
            device = self._devices[model.device] = _Device({}, FairQueue({}, 0))
        device.models[model.key] = model
        self._device_of[model.key] = device
        self.set_shares()

    def remove(self, model: ServedModel, now: float) -> None:
        """Forget a model, of which nothing runs."""
        self._take_slots_back(now)
        device = self._device_of.pop(model.key)
        del device.models[model.key]
        for turn in (model.key, offline_turn(model.key)):
            device.fair_queue.remove(turn)  # no other model gets this key
        self.isolation.remove(model)
        self.set_shares()

    def set_shares(self) -> None:
        """Set the weights and the slots by the present models and their replicas."""
        processes = sum(model.config.replicas for model in self._models)
        for name, device in self._devices.items():
            weights = {key: model.config.weight for key, model in device.models.items()}
            weights |= {offline_turn(key): w * OVERDUE_SHARE for key, w in weights.items()}
            largest = max((model.config.replicas for model in device.models.values()), default=1)
            device.fair_queue.weights = weights
            device.fair_queue.slots = self._slots or slots_of(name, largest, processes)

    def may_run(self, model: ServedModel) -> bool:
        """Return whether a batch of the model could run now: a replica and a slot are free."""
        free = self._device_of[model.key].fair_queue.free
        return model.idle and free and self.isolation.exclusive is None

    def runs_at_once(self, model: ServedModel) -> bool:
        """Return whether a batch of the model would run now: no other model wants a turn."""
        others = self._device_of[model.key].models.values()
        wanted = any(other.wants_turn or other.unread for other in others if other is not model)
        return not wanted and self.may_run(model)

    def should_preempt(self, model: ServedModel, staged: Batch, now: float) -> bool:
        """Return whether a staged batch should make way for another.

        It makes way for another model that waits with an online job and has the next turn. An
        offline batch makes way for every online job, also of its own model, unless it is overdue.
        """
        yields = staged.offline and not is_overdue(staged, now)
        if yields and model.online and not model.idle:
            return True
        device, turn = self._device_of[model.key], turn_of(model, staged)
        if device.fair_queue.free:
            return False
        used_s = self._used_s(turn, now)
        return any(
            other.wants_turn
            and other.online
            and (yields or device.fair_queue.behind(turn, other.key, used_s))
            for other in device.models.values()
            if other is not model
        )

    def next(self, now: float, draining: bool = False, claims: bool = False) -> Dispatched | None:
        """Return the next batch to run; the caller runs it before the next call.

        If it is draining, no batch is held back. If jobs can be claimed, offline batches wait for
        online jobs that are expected.
        """
        self._take_slots_back(now)
        exclusive = self.isolation.exclusive
        if exclusive is not None:
            batch = self.isolation.begin_exclusive(now)
            if batch is not None:
                return self._dispatched(exclusive.model, batch)
            if self.isolation.exclusive is not None:
                return None
        for device in self._devices.values():
            if not device.fair_queue.free:
                continue
            wanting = device.wanting(now, claims)
            for turn in device.fair_queue.order(wanting) if len(wanting) > 1 else wanting:
                model = wanting[turn]
                batch = self._next_batch(model, now, draining, claims)
                if batch is not None:
                    return self._dispatched(model, batch, turn)
                # It is held back, so the next model has the turn.
                if model.hold_until is not None and model.free_since is None:
                    model.free_since = now
                if self.isolation.exclusive is not None:
                    return None
        return self._next_join(now)

    def _next_join(self, now: float) -> Dispatched | None:
        """Return the next job that joins those of a generator in their turn."""
        for model in self._models:
            if not model.continuous or not model.prepared or model.isolated:
                continue
            offline = not model.online
            turns = [
                turn
                for turn in self._running
                if turn.model is model
                and turn.replica.joins(offline=offline)
                and self._goes_on(turn, now, offline=offline)
            ]
            batch = model.next_batch(now) if turns else None
            if batch is not None:
                # It shares the slot of those that run.
                replicas = [turn.replica for turn in turns]
                replica = max(replicas, key=lambda replica: (replica.offline_room, replica.room))
                return Dispatched(model, replica, batch, "", now, now)
        return None

    def _goes_on(self, turn: Dispatched, now: float, *, offline: bool) -> bool:
        """Return whether a job of this class may join in the turn of a generator.

        While others wait with online jobs, an offline job joins only in an overdue job's turn.
        """
        device = self._device_of[turn.model.key]
        shared, rivals = device.rivals(turn.model, now)
        if offline and shared and not turn.overdue(now):
            return device.fair_queue.free
        rivals = [*shared, *rivals] if offline else shared
        if not rivals or device.fair_queue.free or now - turn.began_at < LEAST_TURN_S:
            return True
        used_s = self._used_s(turn.turn, now)
        return not any(device.fair_queue.behind(turn.turn, rival, used_s) for rival in rivals)

    def _used_s(self, turn: str, now: float) -> float:
        """Return for how many seconds the batches of a turn have run that are not charged yet."""
        return sum(
            dispatched.used_s(now) for dispatched in self._running if dispatched.turn == turn
        )

    def _next_batch(
        self, model: ServedModel, now: float, draining: bool, claims: bool
    ) -> Batch | None:
        if model.isolated:
            batch = self.isolation.next_batch(model, now, connected=claims)
            if batch is not None or self.isolation.holds(model):
                model.hold_until = None
                return batch
        return model.next_batch(now, draining=draining)

    def _dispatched(self, model: ServedModel, batch: Batch, turn: str = "") -> Dispatched:
        turn = turn or turn_of(model, batch)
        device = self._device_of[model.key]
        device.fair_queue.begin(turn)
        if not device.fair_queue.free:
            # What the others hold back waits for the device from now on.
            for other in device.models.values():
                other.free_since = None
        replica = next(replica for replica in model.replicas if replica.idle)
        started_at = batch.started_at
        self._running.append(Dispatched(model, replica, batch, turn, started_at, started_at))
        return self._running[-1]

    def _take_slots_back(self, now: float) -> None:
        """Take back the slots of batches that have ended in any way."""
        running = []
        for dispatched in self._running:
            name, batch = dispatched.model.key, dispatched.replica.batch
            fair_queue = self._device_of[name].fair_queue
            if batch is dispatched.batch:
                running.append(dispatched)
                continue
            exclusive = self.isolation.exclusive
            if exclusive is not None and exclusive.batch is dispatched.batch:
                exclusive.ended = True
            if batch is None:
                fair_queue.end(dispatched.turn, dispatched.used_s(now))
                continue
            # A batch that was staged behind it, or ran with it, has taken over the slot.
            turn = turn_of(dispatched.model, batch)
            shared, offline = self._device_of[name].rivals(dispatched.model, now)
            waiting = [*shared, *offline] if batch.offline else shared
            fair_queue.pass_on(dispatched.turn, dispatched.used_s(now), turn, waiting)
            running.append(dispatched._replace(batch=batch, turn=turn, since=now))
        self._running = running
