"""The registered models, as one API process serves them and changes them.

The process applies its models file when it starts. Then it follows the registry: it reads it when a
change is published, and every POLL_S seconds in case a publication was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, Literal

from headrace.config.model.catalog import Catalog
from headrace.config.suggestions import listing
from headrace.errors import (
    BrokerError,
    ConfigError,
    Conflict,
    InternalError,
    InvalidRequest,
    ModelNotFound,
)
from headrace.observability.worker_report import WorkerReport
from headrace.queue.asyncio_tasks import cancel_and_wait, wait_at_most
from headrace.queue.following.subscription import Subscription
from headrace.queue.job_queue import JobQueue
from headrace.redis import keys
from headrace.redis.keys import VERSION_SEPARATOR
from headrace.registry.catalog import ConfigReader
from headrace.registry.model import Change, DeclaredModels, RegisteredModel, Registry
from headrace.registry.store import AsyncRegistryStore, ProblemLog

logger = logging.getLogger(__name__)

POLL_S: Final = 5.0
#: How often the workers' reports are read for a request that waits.
LOOK_S: Final = 0.25
#: How far the workers are with a change.
ChangeState = Literal["ready", "failed", "pending"]

#: Makes the changes of a request from the present state.
MakeChanges = Callable[[Registry], list[Change]]


class ModelRegistry:
    """The registry of one API process.

    Attributes:
        registry: the state that the catalog has.
        store: the registry in Redis.
        configs: reads the configurations of versions; any thread may use it.
        closing: the process stops.
    """

    def __init__(
        self,
        subscription: Subscription,
        queue: JobQueue,
        catalog: Catalog,
        declared: DeclaredModels,
        configs: ConfigReader,
        on_change: Callable[[], None],
    ) -> None:
        self.registry = Registry()
        self.store = AsyncRegistryStore(queue)
        self._queue = queue
        self._catalog = catalog
        self._declared = declared
        self.configs = configs
        self._on_change = on_change
        self._changed = asyncio.Event()
        self._listeners: set[asyncio.Event] = set()
        self.closing = False
        self._adopting = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._applied = False
        self._problems = ProblemLog(logger, "the registry of models is not followed at present")
        subscription.add(
            lambda _channel, _data: self._wake(), keys.MODEL_CHANGES, on_reconnect=self._wake
        )

    async def start(self) -> None:
        """Apply the models file, and start to follow the registry.

        While the registry cannot be read or written, the models of the file are served.
        """
        try:
            await self._apply_file()
        except Exception as error:  # noqa: BLE001 - `_follow` tries again, and the file is served
            self._problems.report(error)
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """Follow no more."""
        if self._task is not None:
            await cancel_and_wait(self._task)

    async def read(self) -> Registry:
        """Return the registry as Redis has it; raise InternalError if that is not readable."""
        try:
            return await self.store.read()
        except ConfigError as error:
            raise InternalError(error.message, hint=error.hint) from None

    async def model(self, name: str) -> RegisteredModel:
        """Return a model as Redis has it.

        Raises:
            ModelNotFound: it is not registered; a pipeline never is.
            InternalError: what Redis has is not readable.
        """
        registry = await self.read()
        pipeline = self._catalog.pipelines.get(name)
        if pipeline is not None and name not in registry.models:
            raise ModelNotFound(
                f"{name} is a pipeline, and only its models are registered",
                hint=f"Name one of them: {listing(set(pipeline.models))}.",
            )
        return registry.get(name)

    @contextlib.contextmanager
    def listening(self) -> Iterator[asyncio.Event]:
        """Return an event that is set when anything was changed, and when the process stops."""
        changed = asyncio.Event()
        self._listeners.add(changed)
        try:
            yield changed
        finally:
            self._listeners.discard(changed)

    def dismiss(self) -> None:
        """End every wait and event stream, now and from now on."""
        self.closing = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        for changed in self._listeners:
            changed.set()

    async def change(
        self,
        name: str,
        make: MakeChanges,
        by: str,
        *,
        generation: int | None = None,
        turn_s: float = 0,
    ) -> RegisteredModel | None:
        """Change a model; return it as it is then, or None if it is removed.

        Args:
            by: who makes them.
            generation: the generation of the model that the caller has seen; None for any.
            turn_s: seconds to wait for its turn while others change the model. `make` is called
                again for each new state.

        Raises:
            Conflict: it has another generation, or its turn has not come.
            InvalidRequest: an option is wrong.
            ModelNotFound: it is not registered.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + turn_s
        while True:
            registry, changes = await self._planned(name, make, generation)
            try:
                if changes:
                    await self.store.write(registry, changes, by)
                break
            except Conflict:
                if self.closing or loop.time() >= until:
                    raise
        return (await self._adopt()).models.get(name)

    async def _planned(
        self, name: str, make: MakeChanges, generation: int | None
    ) -> tuple[Registry, list[Change]]:
        """Return the present state, and the changes of it."""
        registry = await self.read()
        present = registry.models.get(name)
        if generation is not None and generation != (present.generation if present else 0):
            who = f": {present.by} has changed it meanwhile ({present.what})" if present else ""
            raise Conflict(
                f"the model {name} has generation {present.generation if present else 0}, "
                f"not {generation}{who}",
                hint="Read the model again, and repeat the change if it still makes sense.",
            )
        changes = make(registry)
        await asyncio.to_thread(self._check, changes)
        return registry, changes

    async def until_served(
        self, name: str, versions: Collection[str], seconds: float
    ) -> tuple[ChangeState, str]:
        """Wait until the workers serve a model as this process knows it, or cannot load it.

        The first failed load of one of `versions` ends the wait.

        Returns:
            The state, and the traceback of a failed load.
        """
        generation = self.registry.generation
        return await self.until(
            lambda reports: change_state(reports, generation, name, versions), seconds
        )

    async def until_removed(self, name: str, version: str, seconds: float) -> ChangeState:
        """Wait until no worker serves a model, or a version of it unless that is ""."""
        generation = self.registry.generation
        state, _ = await self.until(
            lambda reports: (removal_state(reports, generation, name, version), ""), seconds
        )
        return state

    async def until(
        self, look: Callable[[Collection[WorkerReport]], tuple[ChangeState, str]], seconds: float
    ) -> tuple[ChangeState, str]:
        """Read the workers' reports until `look` finds another state than pending; return it."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while True:
            state: ChangeState = "pending"
            error = ""
            with contextlib.suppress(BrokerError):  # the change is made, so this is no failure
                state, error = look((await self._queue.worker_states()).values())
            if state != "pending" or self.closing or loop.time() >= until:
                return state, error
            await asyncio.sleep(min(LOOK_S, max(0.0, until - loop.time())))

    def _check(self, changes: Sequence[Change]) -> None:
        """Raise if a changed version has wrong options, or a pipeline is in the way."""
        pipelines = self._catalog.pipelines
        for change in changes:
            if change.after is None:
                if users := [n for n, one in pipelines.items() if change.name in one.models]:
                    raise Conflict(
                        f"the model {change.name} is a stage of {listing(users)}",
                        hint="Remove it from the pipeline in the models file first.",
                    )
                continue
            if change.name in pipelines:
                raise Conflict(
                    f"a pipeline has the name {change.name}",
                    hint="Choose another name for the model.",
                )
            before = {} if change.before is None else change.before.versions
            for version, entry in change.after.versions.items():
                if before.get(version) == entry:
                    continue
                try:
                    self.configs.read(change.name, version, entry)
                except ConfigError as error:
                    raise InvalidRequest(error.message, hint=error.hint) from None

    async def _follow(self) -> None:
        while True:
            await wait_at_most(POLL_S, self._changed)
            self._changed.clear()
            try:
                revision = await self.store.revision()
                if not (revision.generation and self._applied):
                    # Redis has lost its data, or could not be read when this process started.
                    await self._apply_file()
                elif revision != self.registry.revision:
                    await self._adopt()
                self._problems.clear()
            except (BrokerError, Conflict) as error:
                logger.debug("the registry is not read at present: %s", error.message)
            except Exception as error:  # noqa: BLE001 - the next change must be followed too
                self._problems.report(error)

    async def _apply_file(self) -> None:
        """Make the models file the declared state, unless it was applied last."""
        by = f"models file {self._catalog.path.name}"
        for change in await self.store.apply(self._declared, by, prune=True, again=False):
            logger.info("%s", change.what, extra={"model": change.name})
        self._applied = True
        await self._adopt()

    async def _adopt(self) -> Registry:
        """Serve what the registry has now, and return it."""
        async with self._adopting:
            registry = await self.store.read()
            # A source may have to be fetched, and many models take a while.
            versions = await asyncio.to_thread(self.configs.versions, registry)
            models = registry.models.items()
            traffic = {name: rule for name, model in models if (rule := model.routing) is not None}
            self._catalog.adopt(versions, traffic)
            self.registry = registry
            self._on_change()
            return registry


def change_state(
    reports: Iterable[WorkerReport], generation: int, name: str, versions: Collection[str]
) -> tuple[ChangeState, str]:
    """Return how far the workers are with a model, and the traceback of a failed load.

    Workers that do not follow the registry do not count.

    Args:
        generation: of the registry that they should have reached.
        versions: those that must be served.
    """
    pending = False
    served = set()
    for report in reports:
        progress = report.registry
        if progress is None:
            continue
        if progress.generation < generation:
            pending = True
            continue
        for version in versions:
            if error := progress.failed.get(f"{name}{VERSION_SEPARATOR}{version}"):
                return "failed", error
        pending = pending or name in progress.updating
        served |= _served(report, name)
    return "ready" if served.issuperset(versions) and not pending else "pending", ""


def removal_state(
    reports: Iterable[WorkerReport], generation: int, name: str, version: str
) -> ChangeState:
    """Return "ready" if no worker serves a model any more, else "pending".

    Workers that do not follow the registry do not count.

    Args:
        generation: of the registry that they should have reached.
        version: the removed version; "" for all.
    """
    for report in reports:
        progress = report.registry
        if progress is None:
            continue
        # A version that still runs its last batches is not among the served ones.
        if progress.generation < generation or name in progress.updating:
            return "pending"
        served = _served(report, name)
        if version in served or (served and not version):
            return "pending"
    return "ready"


def _served(report: WorkerReport, name: str) -> set[str]:
    """Return the versions of a model that one worker serves, or would load on demand."""
    versions = {
        state.version
        for key, state in report.models.items()
        if key.partition(VERSION_SEPARATOR)[0] == name
    }
    labels = (label.partition(VERSION_SEPARATOR) for label in report.unloaded)
    return versions | {version for model, _, version in labels if model == name}
