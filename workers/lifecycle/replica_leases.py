"""The replicas that this worker may run of models with `total_replicas`.

The workers share these replicas by leases in Redis, without a leader; see
docs/architecture/replicas.md.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from headrace.redis.keys import VERSION_SEPARATOR
from headrace.redis.scripts import Arg
from workers.lifecycle.reconciler import Version, log_fields, models_of
from workers.models.served_model import ServedModel
from workers.protocol.frames import Phase

logger = logging.getLogger(__name__)

#: After so many failed loads of one replica in a row its worker leaves it to others.
LOADS_MAX: Final = 3
#: How long after its start a worker takes no replicas in its first call: until those that start
#: with it have reported.
ALONE_S: Final = 1.0
#: The total of a model that this worker leaves.
_LEAVE = -1


class ReplicaLeases:
    """The leases of replicas of one worker: what it asks for, and what it has.

    Attributes:
        granted: the replicas that the worker may run of each model.
        due: a total has changed since the last call of the script.
    """

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self.due = False
        self.granted: dict[Version, int] = {}
        self._models = models
        self._totals: dict[Version, int] = {}
        self._elsewhere: dict[Version, int] = {}
        self._left: set[Version] = set()
        self._asked: set[Version] = set()
        # Redis has not replied for these yet.
        self._new: set[Version] = set()
        self._began_at: float | None = None
        # How many replicas of a model were ready when another one could not be loaded.
        self._able: dict[Version, int] = {}

    @property
    def unanswered(self) -> set[str]:
        """The models whose total has changed since the last call of the script."""
        return {name for name, _ in self._asked}

    @property
    def awaited(self) -> set[Version]:
        """The versions whose replicas will run, while none is loaded in another worker."""
        return {v for v, total in self._totals.items() if total and not self._elsewhere.get(v)}

    def follow(
        self, totals: Mapping[Version, int], changed: Collection[Version] = frozenset()
    ) -> None:
        """Set the total of each model that has one; the others are left.

        Those that have `changed` are loaded here again, although they could not be before.

        What serves when a model gets its first total counts as granted until Redis has replied, so
        that it serves on.
        """
        self._left |= self._totals.keys() - totals.keys()
        for version in self._able.keys() - (totals.keys() - changed):
            del self._able[version]
        self._left -= totals.keys()
        changed = {v for v, total in totals.items() if self._totals.get(v) != total}
        self._asked = changed | (self._asked & totals.keys())
        self.due = self.due or bool(changed)
        self._new = (self._new & totals.keys()) | (totals.keys() - self._totals.keys())
        for version in totals.keys() - self._totals.keys():
            ready = max(map(_ready, models_of(version, self._models)), default=0)
            self.granted[version] = min(ready, totals[version])
        self._totals = dict(totals)
        for version in self._left:
            self.granted.pop(version, None)
            self._elsewhere.pop(version, None)

    def load_failed(self, version: Version) -> None:
        """Note that no more replicas of a model can be loaded here than are ready."""
        if version in self._totals and version not in self._able:
            self._able[version] = max(map(_ready, models_of(version, self._models)), default=0)
            text = "cannot be loaded here: left to other workers"
            logger.warning(text, extra=log_fields(version))

    def _check_loads(self, version: Version, models: Sequence[ServedModel]) -> None:
        able = self._able.get(version)
        if able is not None:
            if max(map(_ready, models), default=0) > able:
                del self._able[version]
        elif any(r.failed_loads >= LOADS_MAX for model in models for r in model.replicas):
            self.load_failed(version)

    def request(self, now: float) -> tuple[list[Version], list[Arg]]:
        """Return what renews, takes and returns replicas: versions, and the script's arguments."""
        self.due = False
        if self._began_at is None:
            self._began_at = now
        takes = now >= self._began_at + ALONE_S
        versions = [*self._totals, *self._left]
        arguments: list[Arg] = []
        for version in versions:
            models = models_of(version, self._models)
            self._check_loads(version, models)
            arguments += (
                VERSION_SEPARATOR.join(version),
                self._totals.get(version, _LEAVE),
                self.granted.get(version, 0),
                max(map(_running, models), default=0),
                max(map(_ready, models), default=0),
                self._able.get(version, -1),
                int(takes and version in self._new),
            )
        self._left.clear()
        return versions, arguments

    def replied(self, versions: Sequence[Version], reply: Sequence[Any]) -> bool:
        """Take the reply to a request; return whether what the worker may run has changed."""
        changed = False
        for version, granted, elsewhere in zip(versions, reply[::2], reply[1::2], strict=True):
            if version not in self._totals:
                continue
            self._asked.discard(version)
            self._new.discard(version)
            if granted != self.granted.get(version, 0):
                fields = {**log_fields(version), "replicas": granted}
                logger.info("replicas of this worker: %d", granted, extra=fields)
                changed = True
            # A model that is handed over waits for the load on the other worker.
            changed = changed or bool(elsewhere) != bool(self._elsewhere.get(version))
            self.granted[version] = granted
            self._elsewhere[version] = elsewhere
        return changed


def _running(model: ServedModel) -> int:
    """Return how many processes a model has, without those that are being replaced."""
    return sum(r.process is not None and r.successor is None for r in model.replicas)


def _ready(model: ServedModel) -> int:
    return sum(replica.state is Phase.READY for replica in model.replicas)
