"""Which batch runs next on which model process.

A batch runs only when it has a slot of its device, and the models of a device get slots in turns. A
model that has only offline jobs prepared gets a slot when no other model wants it and no online job
is expected. If one of its jobs has waited too long, it takes turns with the others, with a small
share. Offline batches are charged to a share of their own, so they cost a model none of its online
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from workers.jobs.batch import Batch
from workers.models.claiming import expects_online
from workers.models.served_model import ServedModel
from workers.replicas.devices import slots_of
from workers.replicas.replica import Replica
from workers.scheduling.fair_queue import FairQueue

#: The share of a model's overdue offline jobs, relative to its online jobs.
OVERDUE_SHARE: Final = 0.1


class Dispatched(NamedTuple):
    """A batch to run now; `turn` is the name under which it takes its turn."""

    model: ServedModel
    replica: Replica
    batch: Batch
    turn: str


def offline_turn(model: str) -> str:
    """Return the name under which a model's offline batches take turns; no model has it."""
    return f"{model} offline"


@dataclass(slots=True)
class _Device:
    """The models of one device, by name, and their turns."""

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
        if claims and any(expects_online(model) for model in self.models.values()):
            return overdue
        return overdue | offline


class Dispatcher:
    """Shares a worker's devices among its models.

    Args:
        models: the models.
        slots: how many batches may run at once on a device; 0 for a default by its models.
    """

    def __init__(self, models: Sequence[ServedModel], slots: int = 0) -> None:
        by_device: dict[str, dict[str, ServedModel]] = {}
        for model in models:
            by_device.setdefault(model.device, {})[model.config.name] = model
        processes = sum(model.config.replicas for model in models)
        self._devices = []
        self._device_of: dict[str, _Device] = {}
        for name, shared in by_device.items():
            largest = max(model.config.replicas for model in shared.values())
            weights = {key: model.config.weight for key, model in shared.items()}
            weights |= {offline_turn(key): w * OVERDUE_SHARE for key, w in weights.items()}
            device = _Device(
                shared, FairQueue(weights, slots or slots_of(name, largest, processes))
            )
            self._devices.append(device)
            self._device_of.update(dict.fromkeys(shared, device))
        self._running: list[Dispatched] = []

    def may_run(self, model: ServedModel) -> bool:
        """Return whether a batch of the model could run now: a replica and a slot are free."""
        return model.idle and self._device_of[model.config.name].fair_queue.free

    def runs_at_once(self, model: ServedModel) -> bool:
        """Return whether a batch of the model would run now: no other model wants a turn."""
        others = self._device_of[model.config.name].models.values()
        wanted = any(other.wants_turn or other.unread for other in others if other is not model)
        return not wanted and self.may_run(model)

    def should_preempt(self, model: ServedModel, staged: Batch, now: float) -> bool:
        """Return whether a staged batch should make way for another one.

        It makes way for another model that waits with an online job and has the next turn. An
        offline batch makes way for every online job, also of its own model.
        """
        if staged.offline and model.online and not model.idle:
            return True
        device, name = self._device_of[model.config.name], model.config.name
        if device.fair_queue.free:
            return False
        used_s = sum(now - one.batch.started_at for one in self._running if one.model is model)
        return any(
            other.wants_turn
            and other.online
            and (staged.offline or device.fair_queue.behind(name, other.config.name, used_s))
            for other in device.models.values()
            if other is not model
        )

    def next(self, now: float, draining: bool = False, claims: bool = False) -> Dispatched | None:
        """Return the next batch to run; the caller runs it before the next call.

        Args:
            now: the current time.
            draining: no batch is held back any more.
            claims: jobs can be claimed from Redis; offline batches then wait for expected online
                jobs.
        """
        self._take_slots_back(now)
        for device in self._devices:
            if not device.fair_queue.free:
                continue
            wanting = device.wanting(now, claims)
            for turn in device.fair_queue.order(wanting) if len(wanting) > 1 else wanting:
                model = wanting[turn]
                batch = model.next_batch(now, draining=draining)
                if batch is None:
                    continue  # it is held back, so the next model has the turn
                device.fair_queue.begin(turn)
                replica = next(replica for replica in model.replicas if replica.idle)
                self._running.append(Dispatched(model, replica, batch, turn))
                return self._running[-1]
        return None

    def _take_slots_back(self, now: float) -> None:
        """Take back the slots of batches that have ended in any way."""
        running = []
        for one in self._running:
            name, batch = one.model.config.name, one.replica.batch
            fair_queue = self._device_of[name].fair_queue
            if batch is one.batch:
                running.append(one)
                continue
            fair_queue.end(one.turn, now - one.batch.started_at)
            if batch is not None:
                # The batch that was staged behind it has taken over the slot.
                turn = offline_turn(name) if batch.offline else name
                fair_queue.begin(turn)
                running.append(Dispatched(one.model, one.replica, batch, turn))
        self._running = running
