"""The devices of a worker: which batch goes to which model process next.

A batch leaves its lane only when it has a slot of the device, and lanes get slots in turns. Knows
no Redis and starts nothing; the consumer hands the batch over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from workers.device import slots_of
from workers.items import Batch
from workers.lane import Lane
from workers.replica import Replica
from workers.turns import Turns


class Dispatched(NamedTuple):
    """A batch that is to run now."""

    lane: Lane
    replica: Replica
    batch: Batch


@dataclass(slots=True)
class _Device:
    """The lanes of one device, by model, and their turns."""

    lanes: dict[str, Lane]
    turns: Turns


class Dispatch:
    """Shares a worker's devices among its lanes.

    Args:
        lanes: the models.
        slots: how many batches may run at once on a device; 0 takes what its models say.
    """

    def __init__(self, lanes: Sequence[Lane], slots: int = 0) -> None:
        by_device: dict[str, dict[str, Lane]] = {}
        for lane in lanes:
            by_device.setdefault(lane.device, {})[lane.model.name] = lane
        processes = sum(lane.model.replicas for lane in lanes)
        self._devices = []
        self._of: dict[str, _Device] = {}
        for name, shared in by_device.items():
            largest = max(lane.model.replicas for lane in shared.values())
            weights = {model: lane.model.weight for model, lane in shared.items()}
            device = _Device(shared, Turns(weights, slots or slots_of(name, largest, processes)))
            self._devices.append(device)
            self._of.update(dict.fromkeys(shared, device))
        self._running: list[Dispatched] = []

    def may_run(self, lane: Lane) -> bool:
        """Whether a batch of the lane could run now: a process waits for it, and a slot is free."""
        return lane.idle and self._of[lane.model.name].turns.free

    def next(self, now: float, *, draining: bool = False) -> Dispatched | None:
        """The next batch to run now; the caller hands it over before it asks again."""
        self._take_back(now)
        for device in self._devices:
            if not device.turns.free:
                continue
            wanting = [name for name, lane in device.lanes.items() if lane.wants_turn]
            for name in device.turns.order(wanting) if len(wanting) > 1 else wanting:
                lane = device.lanes[name]
                batch = lane.next_batch(now, draining=draining)
                if batch is None:  # held for company: the turn passes on
                    continue
                device.turns.begin(name)
                replica = next(replica for replica in lane.replicas if replica.idle)
                self._running.append(Dispatched(lane, replica, batch))
                return self._running[-1]
        return None

    def _take_back(self, now: float) -> None:
        """Give back the slots of batches that no process runs any more, whatever ended them."""
        running = []
        for one in self._running:
            batch, name = one.replica.batch, one.lane.model.name
            if batch is one.batch:
                running.append(one)
                continue
            self._of[name].turns.end(name, now - one.batch.started_at)
            if batch is not None:
                # It was staged behind the one that has ended, and took the slot over.
                self._of[name].turns.begin(name)
                running.append(Dispatched(one.lane, one.replica, batch))
        self._running = running
