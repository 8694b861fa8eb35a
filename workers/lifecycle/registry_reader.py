"""Reads the registry of models in a thread of its own, when it has changed."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from headrace.config.model.catalog import Catalog
from headrace.config.settings import Settings
from headrace.errors import ConfigError
from headrace.registry.catalog import ConfigReader, RegisteredConfig, declared_of
from headrace.registry.model import Registry, Revision
from headrace.registry.store import ProblemLog, registry_at, revision_of
from workers.threads import BackgroundThreads

logger = logging.getLogger(__name__)

RegisteredModels = Sequence[tuple[str, str, RegisteredConfig]]
_UNREAD: Final = Revision()
#: How long the registry may have another models file without a warning: at a start, a worker reads
#: the registry before the API has applied the file.
OTHER_FILE_S: Final = 30.0


class RegistryReader:
    """Reads the registered models, for the loop of one worker.

    A worker follows the registry once the models file that was applied is its own. A worker with
    another models file serves that file alone.

    Attributes:
        revision: of the registry that was read last, or is being read.
        generation: of the registry, as the last `take` returned it.
    """

    def __init__(self, redis_url: str, settings: Settings, catalog: Catalog) -> None:
        self.revision = _UNREAD
        self.generation = 0
        self._redis_url = redis_url
        self._configs = ConfigReader(settings, catalog)
        self._digest = declared_of(catalog).digest
        self._threads: BackgroundThreads[Revision, tuple[Revision, RegisteredModels | None]]
        self._threads = BackgroundThreads(self._read, "headrace-registry")
        self._following = self._warned = False
        # When the registry first had another models file than the worker.
        self._other_file_at: float | None = None
        self._problems = ProblemLog(logger, "the registry of models is not read")

    def fileno(self) -> int:
        """Return the descriptor for a selector: readable when the registry was read."""
        return self._threads.fileno()

    def read_at_start(self) -> RegisteredModels | None:
        """Return the registered models; None if the worker cannot read them, or follows none."""
        try:
            registry = self._registry()
            registered = self._registered(registry) if registry.generation else None
        except Exception as error:  # noqa: BLE001 - a worker without it serves its models file
            self._problems.report(error)
            return None
        self.revision = registry.revision
        self.generation = registry.generation if registered is not None else 0
        return registered

    def changed(self, reply: Sequence[bytes | None]) -> None:
        """Read the registry if it has another revision than the one that was read last.

        Warn if the worker has followed no registry for a while.

        Args:
            reply: to `READ_REVISION`.
        """
        try:
            revision = revision_of(reply)
        except ConfigError as error:
            self._problems.report(error)
            return
        if revision.generation and revision != self.revision:
            self.revision = revision
            self._threads.submit(revision)
        self._warn_of_other_file()

    def take(self) -> RegisteredModels | None:
        """Return the models that were read last; None if none were, or the worker follows none."""
        registered = None
        for revision, read in self._threads.take_results():
            if revision == _UNREAD:
                self.revision = _UNREAD
            if read is not None:
                registered, self.generation = read, revision.generation
        return registered

    def close(self) -> None:
        """End the thread."""
        self._threads.close(0.0)

    def _read(self, _: Revision) -> None:
        try:
            registry = self._registry()
            result = registry.revision, self._registered(registry)
        except Exception as error:  # noqa: BLE001 - the thread must read the next change too
            self._problems.report(error)
            self._threads.deliver((_UNREAD, None))
            return
        self._problems.clear()
        self._threads.deliver(result)

    def _registry(self) -> Registry:
        # Changes are too rare for a connection that lasts.
        with registry_at(self._redis_url) as store:
            return store.read()

    def _registered(self, registry: Registry) -> RegisteredModels | None:
        self._following = self._following or registry.file == self._digest
        if not self._following:
            self._other_file_at = self._other_file_at or time.monotonic()
            return None
        return list(self._configs.all(registry))

    def _warn_of_other_file(self) -> None:
        if self._following or self._warned or self._other_file_at is None:
            return
        if time.monotonic() - self._other_file_at >= OTHER_FILE_S:
            self._warned = True
            logger.warning(
                "the models file of this worker is not the one that was applied last. So this "
                "worker serves its own file and follows no change. Apply the file with "
                "`headrace apply`, or start the worker with the other file"
            )
