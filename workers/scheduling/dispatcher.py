"""The devices of a worker: which batch goes to which model process next.

A batch leaves its lane only when it has a slot of the device, and lanes get slots in turns. Lanes
that have only offline jobs get one when no other lane wants it and no online job is known to come;
should one of theirs have waited too long, they take turns with the others, with a small share. What
offline batches use is charged to a share of its own, so that it costs a model none of its online
time. Knows no Redis and starts nothing; the consumer hands the batch over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from workers.jobs.batch import Batch
from workers.models.served_model import ServedModel
from workers.replicas.devices import slots_of
from workers.replicas.replica import Replica
from workers.scheduling.fair_queue import FairQueue

#: The share of the device's time that overdue offline jobs of a model get, against its online ones.
OVERDUE_SHARE: Final = 0.1


class Dispatched(NamedTuple):
    """A batch that is to run now, and whose turn that is."""

    model: ServedModel
    replica: Replica
    batch: Batch
    turn: str


def offline_turn(model: str) -> str:
    """Under which name a model's offline batches take their turns; no model is called so."""
    return f"{model} offline"


@dataclass(slots=True)
class _Device:
    """The lanes of one device, by model, and their turns."""

    models: dict[str, ServedModel]
    fair_queue: FairQueue

    def wanting(self, now: float, claims: bool) -> dict[str, ServedModel]:
        """The lanes that may run a batch next, by the name of their turn."""
        online, overdue, offline = {}, {}, {}
        for name, model in self.models.items():
            if not model.wants_turn:
                continue
            if model.batcher.online:
                online[name] = model
            elif model.batcher.overdue(now):
                overdue[offline_turn(name)] = model
            else:
                offline[offline_turn(name)] = model
        if online or not (overdue or offline):
            return online | overdue
        if claims and any(model.expects_online for model in self.models.values()):
            return overdue
        return overdue | offline


class Dispatcher:
    """Shares a worker's devices among its lanes.

    Args:
        models: the models.
        slots: how many batches may run at once on a device; 0 takes what its models say.
    """

    def __init__(self, models: Sequence[ServedModel], slots: int = 0) -> None:
        by_device: dict[str, dict[str, ServedModel]] = {}
        for model in models:
            by_device.setdefault(model.device, {})[model.config.name] = model
        processes = sum(model.config.replicas for model in models)
        self._devices = []
        self._of: dict[str, _Device] = {}
        for name, shared in by_device.items():
            largest = max(model.config.replicas for model in shared.values())
            weights = {key: model.config.weight for key, model in shared.items()}
            weights |= {offline_turn(key): w * OVERDUE_SHARE for key, w in weights.items()}
            device = _Device(
                shared, FairQueue(weights, slots or slots_of(name, largest, processes))
            )
            self._devices.append(device)
            self._of.update(dict.fromkeys(shared, device))
        self._running: list[Dispatched] = []

    def may_run(self, model: ServedModel) -> bool:
        """Whether a batch of the lane could run now: a process waits for it, and a slot is free."""
        return model.idle and self._of[model.config.name].fair_queue.free

    def runs_at_once(self, model: ServedModel) -> bool:
        """Whether a batch of the lane would run now: it may, and no other lane wants a turn."""
        others = self._of[model.config.name].models.values()
        wanted = any(
            other.wants_turn or other.claim_replies for other in others if other is not model
        )
        return not wanted and self.may_run(model)

    def should_yield(self, model: ServedModel, staged: Batch, now: float) -> bool:
        """Whether a batch that is staged behind the one that runs is to make way.

        So it is for another model that waits for the device with an online job and is next by what
        each has used; one of offline jobs makes way for each online job, also of its own model.
        """
        if staged.offline and model.batcher.online and not model.idle:
            return True
        device = self._of[model.config.name]
        if device.fair_queue.free:
            return False
        name = model.config.name
        used_s = sum(now - one.batch.started_at for one in self._running if one.model is model)
        return any(
            other.wants_turn
            and other.batcher.online
            and (staged.offline or device.fair_queue.behind(name, other.config.name, used_s))
            for other in device.models.values()
            if other is not model
        )

    def next(self, now: float, draining: bool = False, claims: bool = False) -> Dispatched | None:
        """The next batch to run now; the caller hands it over before it asks again.

        Args:
            now: the time.
            draining: nothing is held any more.
            claims: what waits in Redis can be claimed; offline batches then let online jobs that
                are known to come go first.
        """
        self._take_back(now)
        for device in self._devices:
            if not device.fair_queue.free:
                continue
            wanting = device.wanting(now, claims)
            for turn in device.fair_queue.order(wanting) if len(wanting) > 1 else wanting:
                model = wanting[turn]
                batch = model.next_batch(now, draining=draining)
                if batch is None:  # held for company: the turn passes on
                    continue
                device.fair_queue.begin(turn)
                replica = next(replica for replica in model.replicas if replica.idle)
                self._running.append(Dispatched(model, replica, batch, turn))
                return self._running[-1]
        return None

    def _take_back(self, now: float) -> None:
        """Give back the slots of batches that no process runs any more, whatever ended them."""
        running = []
        for one in self._running:
            batch, turns = one.replica.batch, self._of[one.model.config.name].fair_queue
            if batch is one.batch:
                running.append(one)
                continue
            turns.end(one.turn, now - one.batch.started_at)
            if batch is not None:
                # It was staged behind the one that has ended, and took the slot over.
                name = one.model.config.name
                turn = offline_turn(name) if batch.offline else name
                turns.begin(turn)
                running.append(Dispatched(one.model, one.replica, batch, turn))
        self._running = running
