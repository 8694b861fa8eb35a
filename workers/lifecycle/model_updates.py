"""Changes what a worker serves while it runs, as the registry of models has it.

A changed version is served by a new `ServedModel`, whose processes load while its predecessor
serves. When all of them are ready, the predecessor retires. It claims no more, returns its prepared
jobs to the queue, and ends when its batches have ended. If they cannot be loaded, it serves on.

`reconciler` decides, and this module does what it decides. docs/architecture/registry.md describes
the rules.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
from typing import Any, Final, NamedTuple

from headrace.config.model.catalog import ModelConfig
from headrace.observability.worker_report import ModelStats, RegistryProgress
from headrace.redis import keys
from headrace.registry.catalog import RegisteredConfig
from workers.jobs.leased_job import NEVER
from workers.jobs.settlement import RetryPolicy
from workers.leases.manager import LeaseManager, WorkerObserver
from workers.leases.notifications import QueueNotifications
from workers.lifecycle.autoscaler import Autoscaler
from workers.lifecycle.on_demand import OnDemandModels
from workers.lifecycle.reconciler import (
    Action,
    Discard,
    HandOver,
    Load,
    Retire,
    Scale,
    Serve,
    Target,
    Version,
    Wanted,
    desired,
    log_fields,
    reconcile,
    unfinished,
    version_of,
)
from workers.lifecycle.replica_leases import ReplicaLeases
from workers.lifecycle.replica_manager import ReplicaManager
from workers.models.backlog import first_list
from workers.models.served_model import Life, ServedModel
from workers.protocol.frames import STARTING, Phase
from workers.replicas.placement import Placement
from workers.scheduling.dispatcher import Dispatcher

logger = logging.getLogger(__name__)

#: The phases of a replica that is not loaded yet, but will be.
_COMING: Final = STARTING | {Phase.RESTARTING}
_NO_LISTS: Final[list[list[str]]] = [[] for _ in keys.STEPS]
#: How often the queues of models that this worker leaves out are swept. Workers that serve a model
#: sweep its queues each second.
LEFT_OUT_SWEEP_S: Final = 5.0


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
        self.watching: list[ServedModel | None] = []
        # All that is registered for this worker, and what of it should be served, by how many
        # replicas.
        self._registered: dict[Version, Wanted] = {}
        self._desired: dict[Version, Wanted] = {}
        # A configuration that could not be loaded is tried again when it changes.
        self._failed: dict[Version, Failed] = {}
        # What does not fit this worker, and why.
        self._elsewhere: dict[Version, list[str]] = {}
        # The queues of models that it leaves out, with what a sweep does with lost jobs.
        self._left_out: dict[str, str] = {}
        self._left_out_at = 0.0
        # Errors in the options of a version, because of which it is not served as registered.
        self._problems: dict[Version, str] = {}
        self.replica_leases = ReplicaLeases(models)
        self._autoscaler = Autoscaler(leases.settings.device_slots)
        self.on_demand = OnDemandModels(models, leases.settings)
        self._pending = False
        self._generation = self._reached = 0
        self._unsettled: set[str] = set()
        self._built = 0

    def follow(
        self, registered: Sequence[tuple[str, str, RegisteredConfig]], generation: int = 0
    ) -> None:
        """Take the registry's state for `step`; a version with wrong options stays as it is."""
        self._generation = generation
        before, elsewhere = self._registered, self._elsewhere
        self._registered, self._elsewhere, self._problems = {}, {}, {}
        for name, number, entry in registered:
            version = name, number
            if entry.config is None:
                self._problems[version] = entry.problem
                logger.error("model not changed: %s", entry.problem, extra={"model": name})
                if version in before:
                    self._registered[version] = before[version]
            elif why := self._placement.misfits(entry.config):
                self._elsewhere[version] = why
                if elsewhere.get(version) != why:
                    text = "not served here: this worker %s"
                    logger.info(text, ", ".join(why), extra=log_fields(version))
            else:
                config = self._placement.resolve(entry.config)
                self._registered[version] = Wanted(config, entry.loads, entry.is_default)
        # An unloaded version sweeps no queue of the others.
        served = {v[0] for v, wanted in self._registered.items() if not wanted.config.on_demand}
        self._leave_out(
            entry.config
            for name, number, entry in registered
            if entry.config and (name, number) in self._elsewhere and name not in served
        )
        on_demand = {v: wanted for v, wanted in self._registered.items() if wanted.config.on_demand}
        needed = [v for v, wanted in on_demand.items() if self._is_needed(v, wanted)]
        self.on_demand.follow(on_demand, needed)
        self._choose()

    def _leave_out(self, configs: Iterable[ModelConfig]) -> None:
        """Set the versions that are left out, one of each model.

        All workers that run may leave out the same model. Then no other worker returns the jobs of
        a lost one to their queue.
        """
        settings = self._leases.settings
        self._left_out = {
            config.queue: RetryPolicy(
                base_s=config.retry_backoff_s, max_s=config.retry_backoff_max_s
            ).loss_arguments(settings.max_deliveries, settings.failures_kept)
            for config in configs
        }

    def sweep_left_out(self, now: float) -> None:
        """Sweep the queues of models that this worker leaves out, if that is due."""
        if self._left_out and now >= self._left_out_at:
            self._left_out_at = now + LEFT_OUT_SWEEP_S
            for queue, losses in self._left_out.items():
                self._leases.sweep_left_out(queue, losses, now)

    def _is_needed(self, version: Version, wanted: Wanted) -> bool:
        """Return whether a version that loads on demand must be loaded now.

        It is served already, or it is the default one and another one has the model's own queue.
        """
        return any(
            version_of(model) == version or (wanted.is_default and not model.own_closed)
            for model in self._of(version[0], Life.SERVING)
        )

    def _choose(self) -> None:
        """Choose the versions that this worker serves: all registered ones but the unloaded."""
        before, idle = self._desired, self.on_demand.idle
        chosen = {v: wanted for v, wanted in self._registered.items() if v not in idle}
        totals = {v: wanted.config.total_replicas for v, wanted in chosen.items()}
        self.replica_leases.follow(
            {version: total for version, total in totals.items() if total is not None},
            {v for v, w in chosen.items() if v not in before or not w.fits(*before[v][:2])},
        )
        self._autoscaler.follow([wanted.config for wanted in chosen.values()])
        self._renew_desired()

    def _renew_desired(self) -> None:
        """Find out what should be served now; `step` gets there."""
        self._desired = desired(
            self._registered, self.on_demand.idle, self.replica_leases.granted,
            self._autoscaler.replicas,
        )  # fmt: skip
        self._pending = True

    def scale(self, now: float) -> None:
        """Decide for each model with `max_replicas` if it needs another number of processes."""
        scaled = [m for m in self._models if m.config.max_replicas and m.life is Life.SERVING]
        if self._autoscaler.check(list(filter(self._is_current, scaled)), now):
            self._renew_desired()

    def lease_replicas(self, now: float, *, stopping: bool) -> None:
        """Renew the leases of replicas; return them if the worker stops."""
        if stopping:
            self.replica_leases.follow({})
        versions, arguments = self.replica_leases.request(now)
        if versions:
            others = sum(
                model.config.replicas
                for model in self._models
                if model.config.total_replicas is None
            )
            replied = partial(self._replicas_leased, versions)
            self._leases.lease_replicas(others, arguments, replied, now)

    def _replicas_leased(self, versions: Sequence[Version], reply: Sequence[Any]) -> None:
        if self.replica_leases.replied(versions, reply):
            self._renew_desired()

    def find_work(self, now: float) -> None:
        """Decide which models are loaded on demand, and look for work of the others."""
        served = {version_of(model) for model in self._models if model.life is Life.SERVING}
        failed = {v: failure.error for v, failure in self._failed.items() if v not in served}
        if self.on_demand.look(now, failed):
            self._choose()
        if groups := self.on_demand.queue_groups():
            self._leases.find_work(groups, self._work_waits, now)

    def _work_waits(self, queues: Iterable[str], now: float) -> None:
        if self.on_demand.work_waits(queues, now):
            self._choose()

    def step(self, now: float) -> None:
        """Take the next steps of each model that differs from what is desired."""
        if not self._pending:
            return
        wanted: dict[str, dict[Version, Wanted]] = {}
        for version, entry in self._desired.items():
            wanted.setdefault(version[0], {})[version] = entry
        for name, _ in [*map(version_of, self._models), *self._failed]:
            wanted.setdefault(name, {})
        dropped = self._elsewhere.keys() | self.on_demand.versions
        self._unsettled = {
            name for name, versions in wanted.items() if self._step(name, versions, dropped, now)
        }
        self._pending = bool(self._unsettled)
        self._reached = self._generation

    def progress(self) -> RegistryProgress | None:
        """Return how far the worker is; None if it does not follow the registry."""
        if not self._generation:
            return None
        updating, failed = self._unsettled | self.replica_leases.unanswered, {}
        for model in self._models:
            current = self._is_current(model)
            for replica in model.replicas:
                if replica.error and current:
                    failed[_label(version_of(model))] = replica.error
                elif replica.state in _COMING and not replica.surplus:
                    updating.add(model.config.name)
        lasting = {v: failure.error for v, failure in self._failed.items()} | self._problems
        failed |= {_label(version): error for version, error in lasting.items()}
        failed |= self.on_demand.errors()
        return RegistryProgress(self._reached, sorted(updating), failed)

    def _is_current(self, model: ServedModel) -> bool:
        wanted = self._desired.get(version_of(model))
        return wanted is not None and wanted.fits(model.config, model.loads)

    def _step(
        self, name: str, wanted: dict[Version, Wanted], dropped: Set[Version], now: float
    ) -> bool:
        """Take the next steps of one model; return whether another one is due."""
        self._forget_failures(name, wanted)
        target = Target(wanted, self._failed.keys(), self.replica_leases.awaited, dropped)
        while (action := reconcile(self._named(name), target)) is not None:
            self._do(action)
        for model in self._of(name, Life.RETIRING):
            self._end(model, now)
        for model in self._of(name, Life.SERVING):
            self._replica_manager.drain_surplus(model, now)
        return unfinished(self._named(name), target)

    def _forget_failures(self, name: str, wanted: dict[Version, Wanted]) -> None:
        """Forget the configurations that failed and are no longer wanted, with their tracebacks.

        If nothing serves any more, as it was unloaded, all are tried again.
        """
        serving = self._of(name, Life.SERVING)
        failed = [version for version in self._failed if version[0] == name]
        for version in list(failed):
            if not serving or self._failed[version].wanted != wanted.get(version):
                del self._failed[version]
                failed.remove(version)
        if not failed:
            for model in serving:
                model.update_error = ""

    def _named(self, name: str) -> list[ServedModel]:
        return [model for model in self._models if model.config.name == name]

    def _of(self, name: str, life: Life) -> list[ServedModel]:
        return [model for model in self._named(name) if model.life is life]

    def _do(self, action: Action) -> None:
        match action:
            case Load():
                self._load(action)
            case Serve(model, predecessor):
                self._serve(model, predecessor)
                if all(replica.state is Phase.READY for replica in model.replicas):
                    name, version = version_of(model)
                    text = "serving as the registry has it: version %s"
                    logger.info(text, version, extra={"model": name})
            case HandOver(model, owners):
                for owner in owners:
                    owner.close_queue()
                    self._watch(owner)
                model.open_queue()
                self._watch(model)
            case Scale(model, config):
                self._scale(model, config)
            case Retire(model):
                self._retire(model)
            case Discard(model, error):
                self._discard(model, error)

    def _load(self, action: Load) -> None:
        wanted, serves, predecessor = action
        name = wanted.config.name
        serving = self._of(name, Life.SERVING)
        self._built += 1
        stats = serving[0].stats if serving else None
        model = self._build(wanted.config, f"{name} {self._built}", stats)
        model.loads = wanted.loads
        model.load_mib = self.on_demand.load_mib((name, wanted.config.version))
        model.close_queue()
        model.life = Life.LOADING
        self._models.append(model)
        self._dispatcher.add(model)
        if predecessor is not None:
            for replica in model.replicas:
                replica.restart_at = NEVER  # until the predecessor has ended
        if serves:
            self._serve(model, predecessor)

    def _serve(self, model: ServedModel, predecessor: ServedModel | None) -> None:
        if predecessor is not None:
            if not predecessor.own_closed:
                model.open_queue()
            model.position, predecessor.position = predecessor.position, None
            self._retire(predecessor)
        model.life = Life.SERVING
        self._observer.serve(model)
        self._watch(model)

    def _discard(self, model: ServedModel, error: str) -> None:
        """Forget a model whose processes load; if that has failed, the others serve on."""
        model.life = Life.RETIRING
        for replica in list(model.replicas):
            self._replica_manager.discard(model, replica)
        if not error:
            return
        name, number = version = version_of(model)
        self._failed[version] = Failed(self._desired[version], error)
        self.replica_leases.load_failed(version)
        for other in self._of(name, Life.SERVING):
            other.update_error = f"version {number} could not be loaded:\n{error}"
        logger.error("the model serves on as it was", extra={"model": name})

    def _watch(self, model: ServedModel) -> None:
        """Set the lists whose changes wake the worker for a model."""
        if model.position is None:
            model.position = next(
                (n for n, other in enumerate(self.watching) if other is None), len(self.watching)
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
        lasting = model.lasting
        model.config = config
        for replica in lasting[config.replicas :]:
            replica.surplus = True
        for _ in range(config.replicas - len(lasting)):
            model.replicas.append(model.template.another())
        self._dispatcher.set_shares()

    def _retire(self, model: ServedModel) -> None:
        model.life = Life.RETIRING
        self._unwatch(model)
        for replica in model.replicas:
            replica.surplus = True

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
        name, version = version_of(model)
        logger.info("former processes ended: version %s", version, extra={"model": name})


def _label(version: Version) -> str:
    return keys.VERSION_SEPARATOR.join(version)
