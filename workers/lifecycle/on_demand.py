"""Decides which models with `load: on_demand` are loaded in this worker.

An unloaded version is an entry here and no served model, so that hundreds of them cost one call of
a script in a second. `ModelUpdates` loads and unloads what this module decides. See
docs/architecture/on-demand.md.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.config.model.catalog import ModelConfig
from headrace.redis import keys
from headrace.redis.scripts import pages_of
from headrace.redis.scripts.queues import FIND_WORK_MAX_QUEUES
from workers.leases.manager import LeaseManager
from workers.lifecycle.replica_leases import Version
from workers.models.served_model import Life, ServedModel
from workers.protocol.phases import STARTING, Phase

logger = logging.getLogger(__name__)

#: Work that was not found again for so long was done elsewhere; it is looked for each second.
FOUND_S: Final = 5.0
#: A worker has the leases of replicas so long after it has begun to take part, if it gets any.
LEASE_S: Final = 5.0
#: The first and the longest wait before a model is loaded again whose load has failed.
RETRY_MIN_S: Final = 1.0
RETRY_MAX_S: Final = 60.0


class Wanted(NamedTuple):
    """One version that the worker should serve."""

    config: ModelConfig
    loads: int
    is_default: bool


class LoadFailure(NamedTuple):
    """Why a version could not be loaded.

    Attributes:
        error: the traceback.
        number: how many loads have failed in a row.
        retry_at: when it may be loaded again.
    """

    error: str
    number: int
    retry_at: float


@dataclass(slots=True)
class LoadedVersion:
    """One version that is loaded, or will be.

    Attributes:
        since: when that was decided.
        used_at: when it last had jobs.
        ran_at: when its first batch was seen; None if it has run none.
        busy: whether it loads or has jobs.
        error: why no replica is loaded, and none loads; "" if one is or does.
        retry_at: when the next try is due after an error.
        jobs: how many jobs its replicas have run.
        measured: the key of the served model whose memory was measured.
    """

    since: float
    used_at: float
    ran_at: float | None = None
    busy: bool = True
    error: str = ""
    retry_at: float = 0.0
    jobs: int = 0
    measured: str = ""


class OnDemandModels:
    """The models with `load: on_demand` of one worker.

    Attributes:
        changed: what should be loaded has changed since this was set to False.
    """

    def __init__(self, models: Sequence[ServedModel], leases: LeaseManager) -> None:
        self.changed = False
        self._models = models
        self._leases = leases
        self._most = leases.settings.max_loaded_models
        self._most_mib = leases.settings.loaded_memory_mb
        self._turn_s = leases.settings.load_turn_s
        self._entries: dict[Version, Wanted] = {}
        self._loaded: dict[Version, LoadedVersion] = {}
        self._failures: dict[Version, LoadFailure] = {}
        # The memory of each version's processes after its last load, in MiB.
        self._measured: dict[Version, float] = {}
        # The memory of one replica on its device; see `ServedModel.load_mib`.
        self._load_mib: dict[Version, float] = {}
        # The versions that wait for room, in their order, and when their work was found last.
        self._waiting: dict[Version, float] = {}
        # The arguments of the script's calls, and the version to which each queue belongs.
        self._groups: list[str] | None = None
        self._owner_of: dict[str, Version] = {}

    def __contains__(self, version: Version) -> bool:
        return version in self._entries

    def is_loaded(self, version: Version) -> bool:
        """Return whether a version should be loaded."""
        return version in self._loaded

    def want(self, entries: Mapping[Version, Wanted], needed: Collection[Version]) -> None:
        """Set all versions that load on demand, and those that must be loaded now."""
        for version in [*self._measured, *self._failures]:
            if entries.get(version) != self._entries.get(version):
                self._measured.pop(version, None)
                self._load_mib.pop(version, None)
                self._failures.pop(version, None)
                if version in self._loaded:
                    self._loaded[version].measured = ""  # again, also without new processes
        self._entries = dict(entries)
        self._loaded = {v: one for v, one in self._loaded.items() if v in entries}
        self._waiting = {v: at for v, at in self._waiting.items() if v in entries}
        for version in needed:
            self._load(version, time.monotonic())
        self._groups = None

    def load_mib(self, version: Version) -> float:
        """Return what one replica took on its device at the last load; 0 if it is not known."""
        return self._load_mib.get(version, 0.0)

    def unloaded(self) -> dict[str, str]:
        """Return the versions without a served model: `<model>@<version>` -> its error, or "".

        A version with a mistake is not loaded until that is corrected, or its next try is due.
        """
        if not self._entries:
            return {}
        served = {_version_of(one) for one in self._models if one.life is Life.SERVING}
        return {
            keys.VERSION_SEPARATOR.join(version): self._problem(version)
            for version in self._entries
            if version not in served
        }

    def errors(self) -> dict[str, str]:
        """Return the errors of unloaded versions, as `unloaded` does."""
        versions = [version for version in self._failures if version not in self._loaded]
        if self._most_mib is not None:
            versions += [version for version in self._entries if self._is_too_large(version)]
        return {keys.VERSION_SEPARATOR.join(one): self._problem(one) for one in versions}

    def look(self, now: float, failed: Mapping[Version, str]) -> None:
        """Unload idle models, load those for which there is room, and look for work of the others.

        Args:
            now: the time.
            failed: the tracebacks of versions that could not be loaded and have no served model.
        """
        if not self._entries:
            return
        for version, error in failed.items():
            if version in self._loaded:
                self._loaded[version].error = error
                self._unload(version, now)
        for version, one in list(self._loaded.items()):
            self._observe(version, one, now)
            if version not in self._loaded:
                continue  # its memory was measured, and it is too large
            idle_s = self._entries[version].config.idle_unload_s
            if not one.busy and idle_s and now - one.used_at >= idle_s:
                logger.info("unloaded: no jobs for %g s", idle_s, extra=_fields(version))
                self._unload(version, now)
        self._free_memory(now)
        while not self._fits(self._loaded, 0, 0.0):
            victim = self._idle_one(self._loaded)
            if victim is None:
                break
            self._unload(victim, now)
        self._admit(now)
        if groups := self._queue_groups():
            self._leases.find_work(groups, self._found, now)

    def _found(self, queues: Iterable[str], now: float) -> None:
        """Take the queues that have work."""
        for queue in queues:
            version = self._owner_of.get(queue)
            if version in self._entries and version not in self._loaded:
                self._waiting[version] = now
        self._admit(now)

    def _admit(self, now: float) -> None:
        """Load what waits, in its order, as far as there is room."""
        for version, found_at in list(self._waiting.items()):
            if now - found_at > FOUND_S:
                del self._waiting[version]
                continue
            failure = self._failures.get(version)
            if (failure is not None and now < failure.retry_at) or self._is_too_large(version):
                continue
            if not self._make_room(version, now):
                return
            logger.info("loaded on demand", extra=_fields(version))
            self._load(version, now)

    def _load(self, version: Version, now: float) -> None:
        self._waiting.pop(version, None)
        if version not in self._loaded:
            self._loaded[version] = LoadedVersion(now, now)
            self._groups, self.changed = None, True

    def _unload(self, version: Version, now: float) -> None:
        one = self._loaded.pop(version)
        self._groups, self.changed = None, True
        if one.error:
            before = self._failures.get(version)
            number = before.number if before is not None else 0
            wait_s = min(RETRY_MAX_S, RETRY_MIN_S * 2**number)
            retry_at = max(one.retry_at, now + wait_s)
            self._failures[version] = LoadFailure(one.error, number + 1, retry_at)

    def _observe(self, version: Version, one: LoadedVersion, now: float) -> None:
        """Note what a version does, and what its load took."""
        own = [m for m in self._models_of(version) if m.life is not Life.RETIRING]
        replicas = [replica for model in own for replica in model.replicas]
        if any(model.serving for model in own):
            self._failures.pop(version, None)
        waits = bool(replicas) and all(
            replica.state in (Phase.FAILED, Phase.RESTARTING) for replica in replicas
        )
        one.error, one.retry_at = "", now
        if waits:
            # Lost processes are started again after a wait too, if there were too many.
            reasons = [replica.error for replica in replicas]
            reasons += [model.replica_history.wait_reason(now) for model in own]
            one.error = next(filter(None, reasons), "")
            one.retry_at = min(replica.restart_at for replica in replicas)
        # A lost process starts again at once; what its batch had is back in the queue.
        coming = STARTING if one.error else STARTING | {Phase.RESTARTING}
        loads = any(replica.state in coming for replica in replicas)
        shared = self._entries[version].config.total_replicas is not None
        if shared and not replicas and now - one.since < LEASE_S:
            loads = True  # other workers may get the leases of its replicas
        # Without a loaded replica nothing is claimed, so that it is not known whether jobs wait.
        one.busy = not own or loads or any(_has_jobs(model) for model in own if model.serving)
        jobs = sum(replica.jobs for replica in replicas)
        if one.ran_at is None and (jobs or any(replica.batch for replica in replicas)):
            one.ran_at = now
        if one.busy or jobs != one.jobs:
            one.used_at, one.jobs = now, jobs
        for model in own:
            loaded = model.life is Life.SERVING and model.replicas and model.serving
            if loaded and not loads and one.measured != model.key:
                one.measured = model.key
                self._load_mib[version] = model.load_mib
                self._measured[version] = sum(one.memory_mib() for one in model.replicas)
                if self._is_too_large(version):
                    logger.error("unloaded: %s", self._problem(version), extra=_fields(version))
                    self._unload(version, now)
                    return

    # Room

    def _make_room(self, version: Version, now: float) -> bool:
        """Return whether there is room for a version; else unload others, if any may be."""
        need = self._memory_mib(version)
        ending = {_version_of(one) for one in self._models if one.config.on_demand}
        if self._fits({*self._loaded, *ending} - {version}, 1, need):
            return all(one != version for one in map(_version_of, self._models))
        while not self._fits(self._loaded, 1, need):
            victim = self._idle_one(self._loaded) or self._served_one(self._loaded, now)
            if victim is None:
                break
            logger.info("unloaded: %s@%s needs the room", *version, extra=_fields(victim))
            self._unload(victim, now)
        return False

    def _fits(self, versions: Collection[Version], more: int, more_mib: float) -> bool:
        if self._most is not None and len(versions) + more > self._most:
            return False
        return self._most_mib is None or (
            sum(map(self._memory_mib, versions)) + more_mib <= self._most_mib
        )

    def _free_memory(self, now: float) -> None:
        """Unload one version for each model that was not started, as its device has no memory."""
        for model in self._models:
            if not model.lacks_memory:
                continue
            model.lacks_memory = False  # until the next try
            others = {_version_of(one) for one in self._models if one.device == model.device}
            others = {v for v in others & self._loaded.keys() if not self._loaded[v].error}
            others.discard(_version_of(model))
            victim = self._idle_one(others) or self._served_one(others, now)
            if victim is not None:
                name = model.config.name
                logger.info("unloaded: %s needs its memory", name, extra=_fields(victim))
                self._unload(victim, now)

    def _idle_one(self, versions: Iterable[Version]) -> Version | None:
        """Return the least recently used idle version; first one that could not be loaded."""
        loaded = {v: self._loaded[v] for v in versions}
        idle = [v for v, one in loaded.items() if one.error or not one.busy]
        return min(
            idle,
            key=lambda v: (not self._loaded[v].error, self._loaded[v].used_at),
            default=None,
        )

    def _served_one(self, versions: Iterable[Version], now: float) -> Version | None:
        """Return the version whose turn began first, if it is over."""
        began = {v: at for v in versions if (at := self._loaded[v].ran_at) is not None}
        turns = {v: at for v, at in began.items() if now - at >= self._turn_s}
        return min(turns, key=turns.__getitem__, default=None)

    def _memory_mib(self, version: Version) -> float:
        """Return the host memory that a version takes, as far as it is known."""
        measured = self._measured.get(version)
        if measured is None:
            entry = self._entries.get(version)
            return (entry.config.memory_mb or 0) * entry.config.replicas if entry else 0.0
        return measured

    def _is_too_large(self, version: Version) -> bool:
        return self._most_mib is not None and self._memory_mib(version) > self._most_mib

    def _problem(self, version: Version) -> str:
        if self._is_too_large(version):
            return (
                f"it needs {self._memory_mib(version):.0f} MiB, and loaded_memory_mb is "
                f"{self._most_mib}; raise loaded_memory_mb, or reload the model after a change"
            )
        failure = self._failures.get(version)
        return failure.error if failure is not None else ""

    # Queues

    def _queue_groups(self) -> list[str]:
        """Return the queues of all unloaded versions, as the script takes them."""
        if self._groups is None:
            self._owner_of = {
                queue: version
                for version, one in self._entries.items()
                if version not in self._loaded
                for queue in _queues_of(version, is_default=one.is_default)
            }
            pages = pages_of(list(self._owner_of), FIND_WORK_MAX_QUEUES)
            self._groups = [" ".join(page) for page in pages]
        return self._groups

    def _models_of(self, version: Version) -> list[ServedModel]:
        return [model for model in self._models if _version_of(model) == version]


def _queues_of(version: Version, *, is_default: bool) -> list[str]:
    own = [keys.queue_name(version[0])] if is_default else []
    return [*own, keys.version_queue(*version)]


def _version_of(model: ServedModel) -> Version:
    return model.config.name, model.config.version


def _has_jobs(model: ServedModel) -> bool:
    """Return whether a model has jobs, or jobs that it may get are known to wait."""
    return bool(model.held or model.unfinished or model.claiming or model.jobs_wait)


def _fields(version: Version) -> dict[str, str]:
    return {"model": version[0], "version": version[1]}
