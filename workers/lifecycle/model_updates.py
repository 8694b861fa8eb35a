"""Changes what a worker serves while it runs, as the registry of models has it.

A changed version is served by a new `ServedModel`, whose processes load while its predecessor
serves. When all of them are ready, the predecessor retires. It claims no more, returns its prepared
jobs to the queue, and ends when its batches have ended. If they cannot be loaded, it serves on.

docs/architecture/registry.md describes the rules.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from headrace.config.model.catalog import ModelConfig
from headrace.observability.worker_report import ModelStats, RegistryProgress
from headrace.redis import keys
from headrace.registry.catalog import RegisteredConfig
from workers.jobs.leased_job import NEVER
from workers.leases.manager import LeaseManager, WorkerObserver
from workers.leases.notifications import QueueNotifications
from workers.lifecycle.autoscaler import Autoscaler
from workers.lifecycle.left_out import LeftOutModels
from workers.lifecycle.on_demand import OnDemandModels, Wanted
from workers.lifecycle.replica_leases import ReplicaLeases, Version
from workers.lifecycle.replica_manager import ReplicaManager
from workers.models.backlog import first_list
from workers.models.served_model import Life, ServedModel
from workers.protocol.phases import STARTING, Phase
from workers.replicas.placement import Placement
from workers.scheduling.dispatcher import Dispatcher

logger = logging.getLogger(__name__)

#: The phases of a replica that is not loaded yet, but will be.
_COMING: Final = STARTING | {Phase.RESTARTING}
#: The options that no process is started with.
_NO_PROCESS: Final = (
    "replicas", "min_replicas", "max_replicas", "scale_down_s", "auto_replicas", "total_replicas",
    "labels", "device_ids", "memory_mb", "load", "idle_unload_s", "traffic",
)  # fmt: skip
_NO_LISTS: Final[list[list[str]]] = [[] for _ in keys.STEPS]


class Failed(NamedTuple):
    """One version that could not be loaded, with the traceback."""

    wanted: Wanted
    error: str


class ModelUpdates:
    """Keeps the models of one worker as the registry has them.

    Args:
        models: the served models; the list is changed in place.
        build: builds a served model from its configuration, its key and its counters.
        placement: decides which models fit this worker.

    Attributes:
        watching: the model of each position of the notifications; None if it is free.
    """

    def __init__(
        self,
        models: list[ServedModel],
        build: Callable[[ModelConfig, str, ModelStats | None], ServedModel],
        placement: Placement,
        leases: LeaseManager,
        notifications: QueueNotifications,
        dispatcher: Dispatcher,
        replica_manager: ReplicaManager,
        observer: WorkerObserver,
    ) -> None:
        self._models = models
        self._build = build
        self._placement = placement
        self._leases = leases
        self._notifications = notifications
        self._dispatcher = dispatcher
        self._replica_manager = replica_manager
        self._observer = observer
        self.watching: list[ServedModel | None] = list(models)
        for position, model in enumerate(models):
            model.position = position
        # All that is registered for this worker, and what of it should be loaded.
        self._registered: dict[Version, Wanted] = {}
        self._wanted: dict[Version, Wanted] | None = None
        # A configuration that could not be loaded is tried again when it changes.
        self._failed: dict[Version, Failed] = {}
        # What does not fit this worker, and why.
        self._elsewhere: dict[Version, list[str]] = {}
        # Errors in the options of a version, because of which it is not served as registered.
        self._problems: dict[Version, str] = {}
        self._replica_leases = ReplicaLeases(models, leases)
        self._autoscaler = Autoscaler(leases.settings.device_slots)
        self._left_out = LeftOutModels(leases)
        self._on_demand = OnDemandModels(models, leases)
        self._pending = False
        self._generation = self._reached = 0
        self._unsettled: set[str] = set()
        self._built = 0

    def want(self, found: Sequence[tuple[str, str, RegisteredConfig]], generation: int = 0) -> None:
        """Take what the registry has; `step` gets there.

        A version with wrong options is served on as it is.
        """
        self._generation = generation
        before, elsewhere = self._registered, self._elsewhere
        self._registered, self._elsewhere, self._problems = {}, {}, {}
        for name, version, registered in found:
            if registered.config is not None:
                if why := self._placement.misfits(registered.config):
                    self._elsewhere[name, version] = why
                    if elsewhere.get((name, version)) != why:
                        fields = {"model": name, "version": version}
                        text = "not served here: this worker %s"
                        logger.info(text, ", ".join(why), extra=fields)
                    continue
                config = self._placement.resolve(registered.config)
                wanted = Wanted(config, registered.loads, registered.is_default)
                self._registered[name, version] = wanted
            else:
                self._problems[name, version] = registered.problem
                logger.error("model not changed: %s", registered.problem, extra={"model": name})
                if (name, version) in before:
                    self._registered[name, version] = before[name, version]
        # An unloaded version sweeps no queue of the others.
        served = {name for (name, _), one in self._registered.items() if not one.config.on_demand}
        self._left_out.want(
            one.config
            for name, version, one in found
            if one.config is not None and (name, version) in self._elsewhere and name not in served
        )
        on_demand = {v: one for v, one in self._registered.items() if one.config.on_demand}
        needed = [v for v, one in on_demand.items() if self._is_needed(v, one)]
        self._on_demand.want(on_demand, needed)
        self._want_loaded()

    def _is_needed(self, version: Version, wanted: Wanted) -> bool:
        """Return whether a version that loads on demand must be loaded now.

        It is served already, or it is the default one and another one has the model's own queue.
        """
        for model in self._of(version[0], Life.SERVING):
            own = not model.own_closed
            if model.config.version == version[1] or (wanted.is_default and own):
                return True
        return False

    def _want_loaded(self) -> None:
        """Set the wanted versions: all registered ones but the unloaded ones."""
        self._on_demand.changed = False
        before = self._wanted or {}
        self._wanted = {
            version: one
            for version, one in self._registered.items()
            if version not in self._on_demand or self._on_demand.is_loaded(version)
        }
        self._replica_leases.want(
            {
                version: total
                for version, one in self._wanted.items()
                if (total := one.config.total_replicas) is not None
            },
            {
                version
                for version, one in self._wanted.items()
                if _differs(one, before.get(version))
            },
        )
        self._autoscaler.want([one.config for one in self._wanted.values()])
        self._pending = True

    def scale(self, now: float) -> None:
        """Decide for each model with `max_replicas` if it needs another number of processes."""
        if self._autoscaler.scales:
            serving = [one for one in self._models if one.life is Life.SERVING]
            self._autoscaler.check([one for one in serving if self._is_current(one)], now)

    def sweep_left_out(self, now: float) -> None:
        """Sweep the queues of models that this worker leaves out, if that is due."""
        self._left_out.sweep(now)

    @property
    def leases_due(self) -> bool:
        """Whether replicas must be leased before the next sweep, as a total has changed."""
        return self._replica_leases.due

    def lease_replicas(self, now: float, *, stopping: bool) -> None:
        """Renew the leases of replicas; return them if the worker stops."""
        if stopping:
            self._replica_leases.leave(now)
        else:
            self._replica_leases.renew(now)

    def find_work(self, now: float) -> None:
        """Decide which models are loaded on demand, and look for work of the others."""
        serving = [one.config for one in self._models if one.life is Life.SERVING]
        served = {(one.name, one.version) for one in serving}
        failed = {v: one.error for v, one in self._failed.items() if v not in served}
        self._on_demand.look(now, failed)

    def unloaded(self) -> dict[str, str]:
        """Return the versions that this worker loads on demand; see `OnDemandModels.unloaded`."""
        return self._on_demand.unloaded()

    def step(self, now: float) -> None:
        """Take the next step of each model that differs from the wanted version."""
        if self._on_demand.changed:
            self._want_loaded()
        for numbers in (self._replica_leases, self._autoscaler):
            if numbers.changed:
                numbers.changed, self._pending = False, True
        if not self._pending or self._wanted is None:
            return
        names = {name: False for name, _ in self._wanted}
        names |= {model.config.name: False for model in self._models}
        names |= {name: False for name, _ in self._failed}
        for name in names:
            names[name] = self._step(name, now)
        self._unsettled = {name for name, due in names.items() if due}
        self._pending = bool(self._unsettled)
        self._reached = self._generation

    def progress(self) -> RegistryProgress | None:
        """Return how far the worker is; None if it does not follow the registry."""
        if self._wanted is None or not self._generation:
            return None
        updating, failed = self._unsettled | self._replica_leases.unanswered, {}
        for model in self._models:
            name, version = model.config.name, model.config.version
            current = self._is_current(model)
            for replica in model.replicas:
                if replica.error and current:
                    failed[_label(name, version)] = replica.error
                elif replica.state in _COMING and not replica.surplus:
                    updating.add(name)
        lasting = {version: one.error for version, one in self._failed.items()} | self._problems
        failed |= {_label(*version): error for version, error in lasting.items()}
        failed |= self._on_demand.errors()
        return RegistryProgress(self._reached, sorted(updating), failed)

    def _is_current(self, model: ServedModel) -> bool:
        wanted = (self._wanted or {}).get((model.config.name, model.config.version))
        return (
            wanted is not None
            and model.loads == wanted.loads
            and _same_process(model.config, wanted.config)
        )

    def _step(self, name: str, now: float) -> bool:
        """Take the next step of one model; return whether another one is due."""
        wanted = {
            version: one._replace(config=self._with_replicas(one.config))
            for (known, version), one in (self._wanted or {}).items()
            if known == name
        }
        self._forget_failures(name, wanted)
        for version, one in wanted.items():
            self._start(name, version, one)
        for model in self._of(name, Life.LOADING):
            self._loaded(model, wanted.get(model.config.version))
        self._hand_over(name, wanted)
        for model in self._of(name, Life.SERVING):
            version = model.config.version
            last = not wanted or (name, version) in self._elsewhere
            last = last or (name, version) in self._on_demand
            if version not in wanted and (last or model.own_closed):
                self._retire(model)
        for model in self._of(name, Life.RETIRING):
            self._end(model, now)
        for model in self._of(name, Life.SERVING):
            self._replica_manager.drain_surplus(model, now)
        return self._unfinished(name, wanted)

    def _with_replicas(self, config: ModelConfig) -> ModelConfig:
        """Return a configuration with the replicas that this worker runs now."""
        return self._autoscaler.with_replicas(self._replica_leases.with_granted(config))

    def _forget_failures(self, name: str, wanted: dict[str, Wanted]) -> None:
        """Forget the configurations that failed and are no longer wanted, with their tracebacks.

        If nothing serves any more, as it was unloaded, all are tried again.
        """
        failed = [version for known, version in self._failed if known == name]
        alone = not self._of(name, Life.SERVING)
        for version in list(failed):
            if alone or self._failed[name, version].wanted != wanted.get(version):
                del self._failed[name, version]
                failed.remove(version)
        if not failed:
            for model in self._of(name, Life.SERVING):
                model.update_error = ""

    def _unfinished(self, name: str, wanted: dict[str, Wanted]) -> bool:
        models = [model for model in self._models if model.config.name == name]
        if any(model.life is not Life.SERVING for model in models):
            return True
        if any(replica.surplus for model in models for replica in model.replicas):
            return True
        if any(self._is_handed_over(model, wanted) for model in models):
            return True
        # A version that is served on because its successor could not be loaded is no work to do.
        served = {model.config.version for model in models}
        return any(
            version not in served and (name, version) not in self._failed for version in wanted
        )

    @staticmethod
    def _is_handed_over(model: ServedModel, wanted: dict[str, Wanted]) -> bool:
        """Return whether a model is the default version, and another one still claims as such."""
        one = wanted.get(model.config.version)
        return one is not None and one.is_default and model.own_closed

    def _of(self, name: str, life: Life) -> list[ServedModel]:
        return [one for one in self._models if one.config.name == name and one.life is life]

    def _start(self, name: str, version: str, wanted: Wanted) -> None:
        """Begin to serve a version as it is wanted, unless that has begun or has failed."""
        same = [
            model
            for model in self._models
            if (model.config.name, model.config.version) == (name, version)
            and model.life is not Life.RETIRING
        ]
        fitting = [model for model in same if self._fits(model, wanted)]
        if not fitting and (name, version) not in self._failed:
            predecessor = next((one for one in same if one.life is Life.SERVING), None)
            self._begin(wanted, predecessor)

    def _fits(self, model: ServedModel, wanted: Wanted) -> bool:
        """Return whether a model is, or becomes, what is wanted; else discard it if it loads.

        The number of its processes is set here.
        """
        if _same_process(model.config, wanted.config) and model.loads == wanted.loads:
            self._scale(model, wanted.config)
            return True
        if model.life is Life.LOADING:
            self._discard(model)
        return False

    def _begin(self, wanted: Wanted, predecessor: ServedModel | None) -> None:
        """Load a version; a predecessor that leaves no memory for it retires first."""
        name = wanted.config.name
        serving = self._of(name, Life.SERVING)
        self._built += 1
        stats = serving[0].stats if serving else None
        model = self._build(wanted.config, f"{name} {self._built}", stats)
        model.loads = wanted.loads
        model.load_mib = self._on_demand.load_mib((name, wanted.config.version))
        model.close_queue()
        model.life = Life.LOADING
        self._models.append(model)
        self._dispatcher.add(model)
        if not serving:
            # It has nothing to fall back on: its load is tried again and again.
            self._serve(model, None)
        elif predecessor is not None and not wanted.config.recycle_overlap:
            for replica in model.replicas:
                replica.restart_at = NEVER  # until the predecessor has ended
            self._serve(model, predecessor)

    def _serve(self, model: ServedModel, predecessor: ServedModel | None) -> None:
        """Let a model claim, and its predecessor retire."""
        if predecessor is not None:
            if not predecessor.own_closed:
                model.open_queue()
            model.position, predecessor.position = predecessor.position, None
            self._retire(predecessor)
        model.life = Life.SERVING
        self._observer.serve(model)
        self._watch(model)

    def _loaded(self, model: ServedModel, wanted: Wanted | None) -> None:
        """Put a loaded model into service, or discard one that cannot be loaded."""
        name, version = model.config.name, model.config.version
        if wanted is None:
            self._discard(model)
            return
        failed = next((one.error for one in model.replicas if one.error), "")
        if failed and not self._of(name, Life.SERVING):
            self._serve(model, None)  # what it should replace was unloaded: it is tried again
            return
        if failed:
            self._failed[name, version] = Failed(wanted, failed)
            self._replica_leases.load_failed((name, version))
            self._discard(model)
            for other in self._of(name, Life.SERVING):
                other.update_error = f"version {version} could not be loaded:\n{failed}"
            logger.error("the model serves on as it was", extra={"model": name})
            return
        if any(replica.state is not Phase.READY for replica in model.replicas):
            return
        serving = self._of(name, Life.SERVING)
        predecessor = next((one for one in serving if one.config.version == version), None)
        self._serve(model, predecessor)
        logger.info("serving as the registry has it: version %s", version, extra={"model": name})

    def _hand_over(self, name: str, wanted: dict[str, Wanted]) -> None:
        """Let the default version claim from the model's own queue, once it serves."""
        default = next((version for version, one in wanted.items() if one.is_default), None)
        serving = self._of(name, Life.SERVING)
        new = next((model for model in serving if model.config.version == default), None)
        if new is None or not new.own_closed:
            return
        for model in serving:
            if not model.own_closed:
                if not new.serving and (new.replicas or self._replica_leases.awaited(new.config)):
                    return  # its first process still loads, here or in another worker
                model.close_queue()
                self._watch(model)
        new.open_queue()
        self._watch(new)

    def _watch(self, model: ServedModel) -> None:
        """Set the lists whose changes wake the worker for a model."""
        if model.position is None:
            model.position = next(
                (n for n, one in enumerate(self.watching) if one is None), len(self.watching)
            )
        if model.position == len(self.watching):
            self.watching.append(model)
        self.watching[model.position] = model
        own, version = ([[name] for name in keys.step_keys(queue)] for queue in model.queues)
        lists = [*(_NO_LISTS if model.own_closed else own), *version]
        self._notifications.set_lists(first_list(model.position), lists)
        model.expect_jobs()

    def _unwatch(self, model: ServedModel) -> None:
        if model.position is not None:
            self.watching[model.position] = None
            self._notifications.set_lists(first_list(model.position), [*_NO_LISTS, *_NO_LISTS])
            model.position = None

    def _scale(self, model: ServedModel, config: ModelConfig) -> None:
        """Start processes, or mark those that are too many."""
        if model.config == config:
            return
        lasting = model.lasting
        model.config = config
        for replica in lasting[config.replicas :]:
            replica.surplus = True
        for _ in range(config.replicas - len(lasting)):
            model.replicas.append(model.template.another())
        self._dispatcher.set_shares()
        self._pending = True

    def _retire(self, model: ServedModel) -> None:
        model.life = Life.RETIRING
        self._unwatch(model)
        for replica in model.replicas:
            replica.surplus = True

    def _discard(self, model: ServedModel) -> None:
        """Forget a model whose processes load."""
        model.life = Life.RETIRING
        for replica in list(model.replicas):
            self._replica_manager.discard(model, replica)

    def _end(self, model: ServedModel, now: float) -> None:
        """Return what a retiring model has prepared, and forget the model when it holds nothing."""
        self._leases.release(model, model.release_prepared(), "free")
        self._replica_manager.drain_surplus(model, now)
        if model.replicas or model.held or model.unfinished or model.claiming:
            return
        if not model.stats.empty and not self._of(model.config.name, Life.SERVING):
            return  # the next report has its last counts
        self._dispatcher.remove(model, now)
        self._models.remove(model)
        for other in self._of(model.config.name, Life.SERVING):
            for replica in other.replicas:
                if replica.restart_at == NEVER:
                    replica.restart_at = now
        name, version = model.config.name, model.config.version
        logger.info("former processes ended: version %s", version, extra={"model": name})


def _label(name: str, version: str) -> str:
    return f"{name}{keys.VERSION_SEPARATOR}{version}"


def _differs(one: Wanted, before: Wanted | None) -> bool:
    """Return whether a version needs other processes than before."""
    if before is None or one.loads != before.loads:
        return True
    return not _same_process(one.config, before.config)


def _same_process(one: ModelConfig, other: ModelConfig) -> bool:
    """Return whether a process that was started for one configuration fits the other."""
    same = msgspec.structs.replace(one, **{name: getattr(other, name) for name in _NO_PROCESS})
    return same == other
