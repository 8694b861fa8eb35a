"""Decides which models with `load: on_demand` are loaded in this worker.

An unloaded version is an entry here and no served model, so that hundreds of them cost one call of
a script in a second. `ModelUpdates` loads and unloads what this module decides. See
docs/architecture/on-demand.md.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.config.settings import Settings
from headrace.redis import keys
from headrace.redis.scripts import pages_of
from headrace.redis.scripts.queues import FIND_WORK_MAX_QUEUES
from workers.lifecycle.reconciler import Version, Wanted, log_fields, models_of, version_of
from workers.models.served_model import Life, ServedModel
from workers.protocol.frames import STARTING, Phase

logger = logging.getLogger(__name__)

#: Work that was not found again for so long was done elsewhere; it is looked for each second.
FOUND_S: Final = 5.0
#: A worker has the leases of replicas so long after it has begun to take part, if it gets any.
LEASE_S: Final = 5.0
#: The first and the longest wait before a model is loaded again whose load has failed.
RETRY_MIN_S: Final = 1.0
RETRY_MAX_S: Final = 60.0


class LoadFailure(NamedTuple):
    """Why a version could not be loaded, after how many failures in a row."""

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
    """The models with `load: on_demand` of one worker."""

    def __init__(self, models: Sequence[ServedModel], settings: Settings) -> None:
        self._models = models
        self._most = settings.max_loaded_models
        self._most_mib = settings.loaded_memory_mb
        self._turn_s = settings.load_turn_s
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

    @property
    def versions(self) -> Set[Version]:
        """All versions that load on demand."""
        return self._entries.keys()

    @property
    def idle(self) -> Set[Version]:
        """The versions that should not be loaded."""
        return self._entries.keys() - self._loaded.keys()

    def follow(self, entries: Mapping[Version, Wanted], needed: Collection[Version]) -> None:
        """Set all versions that load on demand, and those that must be loaded now."""
        for version in [*self._measured, *self._failures]:
            if entries.get(version) != self._entries.get(version):
                self._measured.pop(version, None)
                self._load_mib.pop(version, None)
                self._failures.pop(version, None)
                if version in self._loaded:
                    self._loaded[version].measured = ""  # again, also without new processes
        self._entries = dict(entries)
        self._loaded = {v: state for v, state in self._loaded.items() if v in entries}
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
        served = {version_of(model) for model in self._models if model.life is Life.SERVING}
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
        return {keys.VERSION_SEPARATOR.join(v): self._problem(v) for v in versions}

    def look(self, now: float, failed: Mapping[Version, str]) -> bool:
        """Unload idle models, and load those that wait and for which there is room.

        Args:
            failed: the tracebacks of versions that could not be loaded and have no served model.

        Returns:
            Whether other versions should be loaded now.
        """
        if not self._entries:
            return False
        before = set(self._loaded)
        for version, error in failed.items():
            if version in self._loaded:
                self._loaded[version].error = error
                self._unload(version, now)
        for version, state in list(self._loaded.items()):
            self._observe(version, state, now)
            if version not in self._loaded:
                continue  # its memory was measured, and it is too large
            idle_s = self._entries[version].config.idle_unload_s
            if not state.busy and idle_s and now - state.used_at >= idle_s:
                logger.info("unloaded: no jobs for %g s", idle_s, extra=log_fields(version))
                self._unload(version, now)
        self._free_memory(now)
        while not self._fits(self._loaded, 0, 0.0):
            victim = self._least_used(self._loaded)
            if victim is None:
                break
            self._unload(victim, now)
        self._admit(now)
        return before != self._loaded.keys()

    def work_waits(self, queues: Iterable[str], now: float) -> bool:
        """Take the queues that have work; return whether more versions should be loaded now."""
        before = set(self._loaded)
        for queue in queues:
            version = self._owner_of.get(queue)
            if version in self._entries and version not in self._loaded:
                self._waiting[version] = now
        self._admit(now)
        return before != self._loaded.keys()

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
            logger.info("loaded on demand", extra=log_fields(version))
            self._load(version, now)

    def _load(self, version: Version, now: float) -> None:
        self._waiting.pop(version, None)
        if version not in self._loaded:
            self._loaded[version] = LoadedVersion(now, now)
            self._groups = None

    def _unload(self, version: Version, now: float) -> None:
        state = self._loaded.pop(version)
        self._groups = None
        if state.error:
            before = self._failures.get(version)
            number = before.number if before is not None else 0
            wait_s = min(RETRY_MAX_S, RETRY_MIN_S * 2**number)
            retry_at = max(state.retry_at, now + wait_s)
            self._failures[version] = LoadFailure(state.error, number + 1, retry_at)

    def _observe(self, version: Version, state: LoadedVersion, now: float) -> None:
        """Note what a version does, and what its load took."""
        own = [m for m in models_of(version, self._models) if m.life is not Life.RETIRING]
        replicas = [replica for model in own for replica in model.replicas]
        if any(model.serving for model in own):
            self._failures.pop(version, None)
        waits = bool(replicas) and all(
            replica.state in (Phase.FAILED, Phase.RESTARTING) for replica in replicas
        )
        state.error, state.retry_at = "", now
        if waits:
            # Lost processes are started again after a wait too, if there were too many.
            reasons = [replica.error for replica in replicas]
            reasons += [model.replica_history.wait_reason(now) for model in own]
            state.error = next(filter(None, reasons), "")
            state.retry_at = min(replica.restart_at for replica in replicas)
        # A lost process starts again at once; what its batch had is back in the queue.
        coming = STARTING if state.error else STARTING | {Phase.RESTARTING}
        loads = any(replica.state in coming for replica in replicas)
        shared = self._entries[version].config.total_replicas is not None
        if shared and not replicas and now - state.since < LEASE_S:
            loads = True  # other workers may get the leases of its replicas
        # Without a loaded replica nothing is claimed, so that it is not known whether jobs wait.
        state.busy = not own or loads or any(_has_jobs(model) for model in own if model.serving)
        jobs = sum(replica.jobs for replica in replicas)
        if state.ran_at is None and (jobs or any(replica.batch for replica in replicas)):
            state.ran_at = now
        if state.busy or jobs != state.jobs:
            state.used_at, state.jobs = now, jobs
        for model in own:
            loaded = model.life is Life.SERVING and model.replicas and model.serving
            if loaded and not loads and state.measured != model.key:
                state.measured = model.key
                self._load_mib[version] = model.load_mib
                self._measured[version] = sum(replica.memory_mib() for replica in model.replicas)
                if self._is_too_large(version):
                    logger.error("unloaded: %s", self._problem(version), extra=log_fields(version))
                    self._unload(version, now)
                    return

    # Room

    def _make_room(self, version: Version, now: float) -> bool:
        """Return whether there is room for a version; else unload others, if any may be."""
        need = self._memory_mib(version)
        ending = {version_of(model) for model in self._models if model.config.on_demand}
        if self._fits({*self._loaded, *ending} - {version}, 1, need):
            return not models_of(version, self._models)
        while not self._fits(self._loaded, 1, need):
            victim = self._least_used(self._loaded) or self._turn_over(self._loaded, now)
            if victim is None:
                break
            logger.info("unloaded: %s@%s needs the room", *version, extra=log_fields(victim))
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
            others = {version_of(m) for m in self._models if m.device == model.device}
            others = {v for v in others & self._loaded.keys() if not self._loaded[v].error}
            others.discard(version_of(model))
            victim = self._least_used(others) or self._turn_over(others, now)
            if victim is not None:
                name = model.config.name
                logger.info("unloaded: %s needs its memory", name, extra=log_fields(victim))
                self._unload(victim, now)

    def _least_used(self, versions: Iterable[Version]) -> Version | None:
        """Return the idle version to unload: one that could not be loaded, else the least used."""
        loaded = {v: self._loaded[v] for v in versions}
        idle = {
            v: (not state.error, state.used_at)
            for v, state in loaded.items()
            if state.error or not state.busy
        }
        return min(idle, key=idle.__getitem__, default=None)

    def _turn_over(self, versions: Iterable[Version], now: float) -> Version | None:
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

    def queue_groups(self) -> list[str]:
        """Return the queues of all unloaded versions, as the script takes them."""
        if self._groups is None:
            self._owner_of = {
                queue: version
                for version, entry in self._entries.items()
                if version not in self._loaded
                for queue in _queues_of(version, is_default=entry.is_default)
            }
            pages = pages_of(list(self._owner_of), FIND_WORK_MAX_QUEUES)
            self._groups = [" ".join(page) for page in pages]
        return self._groups


def _queues_of(version: Version, *, is_default: bool) -> list[str]:
    own = [keys.queue_name(version[0])] if is_default else []
    return [*own, keys.version_queue(*version)]


def _has_jobs(model: ServedModel) -> bool:
    """Return whether a model has jobs, or jobs that it may get are known to wait."""
    return bool(model.held or model.unfinished or model.claiming or model.jobs_wait)
