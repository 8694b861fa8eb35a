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

from workers.jobs.leased_job import Batch
from workers.models.served_model import ServedModel
from workers.replicas.devices import slots_of
from workers.replicas.replica import Replica
from workers.scheduling.fair_queue import FairQueue

#: The share of the device's time that overdue offline jobs of a model get, against its online ones.
OVERDUE_SHARE: Final = 0.1


class Dispatched(NamedTuple):
    """A batch that is to run now, and whose turn that is."""

    lane: ServedModel
    replica: Replica
    batch: Batch
    turn: str


def offline_turn(model: str) -> str:
    """Under which name a model's offline batches take their turns; no model is called so."""
    return f"{model} offline"


@dataclass(slots=True)
class _Device:
    """The lanes of one device, by model, and their turns."""

    lanes: dict[str, ServedModel]
    turns: FairQueue

    def wanting(self, now: float, claims: bool) -> dict[str, ServedModel]:
        """The lanes that may run a batch next, by the name of their turn."""
        online, overdue, offline = {}, {}, {}
        for name, lane in self.lanes.items():
            if not lane.wants_turn:
                continue
            if lane.batcher.online:
                online[name] = lane
            elif lane.batcher.overdue(now):
                overdue[offline_turn(name)] = lane
            else:
                offline[offline_turn(name)] = lane
        if online or not (overdue or offline):
            return online | overdue
        if claims and any(lane.expects_online for lane in self.lanes.values()):
            return overdue
        return overdue | offline


class Dispatcher:
    """Shares a worker's devices among its lanes.

    Args:
        lanes: the models.
        slots: how many batches may run at once on a device; 0 takes what its models say.
    """

    def __init__(self, lanes: Sequence[ServedModel], slots: int = 0) -> None:
        by_device: dict[str, dict[str, ServedModel]] = {}
        for lane in lanes:
            by_device.setdefault(lane.device, {})[lane.model.name] = lane
        processes = sum(lane.model.replicas for lane in lanes)
        self._devices = []
        self._of: dict[str, _Device] = {}
        for name, shared in by_device.items():
            largest = max(lane.model.replicas for lane in shared.values())
            weights = {model: lane.model.weight for model, lane in shared.items()}
            weights |= {offline_turn(model): w * OVERDUE_SHARE for model, w in weights.items()}
            device = _Device(
                shared, FairQueue(weights, slots or slots_of(name, largest, processes))
            )
            self._devices.append(device)
            self._of.update(dict.fromkeys(shared, device))
        self._running: list[Dispatched] = []

    def may_run(self, lane: ServedModel) -> bool:
        """Whether a batch of the lane could run now: a process waits for it, and a slot is free."""
        return lane.idle and self._of[lane.model.name].turns.free

    def runs_at_once(self, lane: ServedModel) -> bool:
        """Whether a batch of the lane would run now: it may, and no other lane wants a turn."""
        others = self._of[lane.model.name].lanes.values()
        wanted = any(other.wants_turn or other.unread for other in others if other is not lane)
        return not wanted and self.may_run(lane)

    def yields(self, lane: ServedModel, staged: Batch, now: float) -> bool:
        """Whether a batch that is staged behind the one that runs is to make way.

        So it is for another model that waits for the device with an online job and is next by what
        each has used; one of offline jobs makes way for each online job, also of its own model.
        """
        if staged.offline and lane.batcher.online and not lane.idle:
            return True
        device = self._of[lane.model.name]
        if device.turns.free:
            return False
        name = lane.model.name
        used_s = sum(now - one.batch.started_at for one in self._running if one.lane is lane)
        return any(
            other.wants_turn
            and other.batcher.online
            and (staged.offline or device.turns.behind(name, other.model.name, used_s))
            for other in device.lanes.values()
            if other is not lane
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
            if not device.turns.free:
                continue
            wanting = device.wanting(now, claims)
            for turn in device.turns.order(wanting) if len(wanting) > 1 else wanting:
                lane = wanting[turn]
                batch = lane.next_batch(now, draining=draining)
                if batch is None:  # held for company: the turn passes on
                    continue
                device.turns.begin(turn)
                replica = next(replica for replica in lane.replicas if replica.idle)
                self._running.append(Dispatched(lane, replica, batch, turn))
                return self._running[-1]
        return None

    def _take_back(self, now: float) -> None:
        """Give back the slots of batches that no process runs any more, whatever ended them."""
        running = []
        for one in self._running:
            batch, turns = one.replica.batch, self._of[one.lane.model.name].turns
            if batch is one.batch:
                running.append(one)
                continue
            turns.end(one.turn, now - one.batch.started_at)
            if batch is not None:
                # It was staged behind the one that has ended, and took the slot over.
                name = one.lane.model.name
                turn = offline_turn(name) if batch.offline else name
                turns.begin(turn)
                running.append(Dispatched(one.lane, one.replica, batch, turn))
        self._running = running
