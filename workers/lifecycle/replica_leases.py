"""The replicas that this worker may run of models with `total_replicas`.

The workers share these replicas by leases in Redis, without a leader; see
docs/architecture/replicas.md.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from headrace.config.model.catalog import ModelConfig
from headrace.redis.keys import VERSION_SEPARATOR
from headrace.redis.scripts import Arg
from workers.leases.manager import LeaseManager
from workers.models.served_model import ServedModel
from workers.protocol.phases import Phase

logger = logging.getLogger(__name__)

#: The name and the version of a model.
Version = tuple[str, str]
#: After so many failed loads of one replica in a row its worker leaves it to others.
LOADS_MAX: Final = 3
#: How long after its start a worker takes no replicas in its first call: until those that start
#: with it have reported.
ALONE_S: Final = 1.0
#: The total of a model that this worker leaves.
_LEAVE = -1


class ReplicaLeases:
    """Leases replicas for one worker.

    Attributes:
        changed: the granted replicas have changed since this was set to False.
        due: a total has changed since the last call of the script.
    """

    def __init__(self, models: Sequence[ServedModel], leases: LeaseManager) -> None:
        self.changed = self.due = False
        self._models = models
        self._leases = leases
        self._totals: dict[Version, int] = {}
        self._granted: dict[Version, int] = {}
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

    def want(
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
            ready = max(map(_ready, self._models_of(version)), default=0)
            self._granted[version] = min(ready, totals[version])
        self._totals = dict(totals)
        for version in self._left:
            self._granted.pop(version, None)
            self._elsewhere.pop(version, None)

    def with_granted(self, config: ModelConfig) -> ModelConfig:
        """Return a configuration with the replicas that this worker may run."""
        if config.total_replicas is None:
            return config
        granted = self._granted.get((config.name, config.version), 0)
        return msgspec.structs.replace(config, replicas=granted)

    def awaited(self, config: ModelConfig) -> bool:
        """Return whether replicas of a model will run, and none is loaded in another worker."""
        version = (config.name, config.version)
        return bool(self._totals.get(version)) and not self._elsewhere.get(version)

    def load_failed(self, version: Version) -> None:
        """Note that no more replicas of a model can be loaded here than are ready."""
        if version in self._totals and version not in self._able:
            self._able[version] = max(map(_ready, self._models_of(version)), default=0)
            fields = {"model": version[0], "version": version[1]}
            logger.warning("cannot be loaded here: left to other workers", extra=fields)

    def _check_loads(self, version: Version, models: Sequence[ServedModel]) -> None:
        able = self._able.get(version)
        if able is not None:
            if max(map(_ready, models), default=0) > able:
                del self._able[version]
        elif any(one.failed_loads >= LOADS_MAX for model in models for one in model.replicas):
            self.load_failed(version)

    def renew(self, now: float) -> None:
        """Renew the granted replicas, and take or return others."""
        self.due = False
        if self._began_at is None:
            self._began_at = now
        takes = now >= self._began_at + ALONE_S
        if not self._totals and not self._left:
            return
        versions = [*self._totals, *self._left]
        arguments: list[Arg] = []
        for version in versions:
            models = self._models_of(version)
            self._check_loads(version, models)
            arguments += (
                VERSION_SEPARATOR.join(version),
                self._totals.get(version, _LEAVE),
                self._granted.get(version, 0),
                max(map(_running, models), default=0),
                max(map(_ready, models), default=0),
                self._able.get(version, -1),
                int(takes and version in self._new),
            )
        self._left.clear()
        others = sum(
            model.config.replicas for model in self._models if model.config.total_replicas is None
        )
        self._leases.lease_replicas(
            others, arguments, lambda reply: self._take(versions, reply), now
        )

    def _models_of(self, version: Version) -> list[ServedModel]:
        return [one for one in self._models if (one.config.name, one.config.version) == version]

    def leave(self, now: float) -> None:
        """Give all replicas back at once: this worker stops."""
        self.want({})
        self.renew(now)

    def _take(self, versions: Sequence[Version], reply: Sequence[Any]) -> None:
        for version, granted, elsewhere in zip(versions, reply[::2], reply[1::2], strict=True):
            if version not in self._totals:
                continue
            self._asked.discard(version)
            self._new.discard(version)
            if granted != self._granted.get(version, 0):
                name, number = version
                fields = {"model": name, "version": number, "replicas": granted}
                logger.info("replicas of this worker: %d", granted, extra=fields)
                self.changed = True
            # A model that is handed over waits for the load on the other worker.
            self.changed = self.changed or bool(elsewhere) != bool(self._elsewhere.get(version))
            self._granted[version] = granted
            self._elsewhere[version] = elsewhere


def _running(model: ServedModel) -> int:
    """Return how many processes a model has, without those that are being replaced."""
    return sum(one.process is not None and one.successor is None for one in model.replicas)


def _ready(model: ServedModel) -> int:
    return sum(replica.state is Phase.READY for replica in model.replicas)
