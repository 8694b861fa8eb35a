"""What an extension adds to each worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from headrace.config.extensions import parts
from headrace.config.settings import Settings
from headrace.observability.worker_report import Figures
from headrace.redis.scripts import Command, Script
from workers.jobs.leased_job import Batch
from workers.models.served_model import ServedModel
from workers.replicas.replica import Replica


class Observer(Protocol):
    """Gets what happens to model processes and batches. Used by the thread of the consumer.

    Attributes:
        scripts: those of its commands; the worker loads them when it connects to Redis.
        due_at: when `totals` must be called.
    """

    scripts: Sequence[Script]
    due_at: float

    def loaded(self, model: ServedModel, replica: Replica, load_s: float) -> None:
        """Take the time that a model process has taken to load."""

    def load_failed(self, traceback: str) -> str:
        """Return the text that each failed load has in the log; "" for the usual text."""

    def reported(self, model: ServedModel, replica: Replica, rows: Sequence[Any]) -> None:
        """Take the metrics that a handler has reported."""

    def finished(
        self, model: ServedModel, batch: Batch, outcomes: Sequence[Any], times: Sequence[float],
        now: float,
    ) -> None:  # fmt: skip
        """Note a batch that has run.

        Args:
            outcomes: of each job; the first item is true if it succeeded.
            times: ms of the handler's verbs.
            now: when it ended.
        """

    def commands(self, models: Sequence[ServedModel]) -> Sequence[Command]:
        """Return what is written with each report of the worker, which serves these models."""

    def totals(self, models: Sequence[ServedModel]) -> Sequence[Command]:
        """Return what is written when `due_at` has come."""


@dataclass(frozen=True, kw_only=True)
class WorkerPart:
    """What an extension adds to each worker.

    Attributes:
        observer: builds its observer; None if the settings do not ask for it. Its argument returns
            the newest figures of the host and the GPUs.
        pieces_extend_timeout: whether a piece of a result extends the time limit of its batch, for
            the models whose handler is of this extension.
    """

    observer: Callable[[Settings, Callable[[], Figures]], Observer | None] | None = None
    pieces_extend_timeout: bool = False


@cache
def worker_parts() -> dict[str, WorkerPart]:
    """Return the parts of all extensions, by the extension's name."""
    return parts("workers", WorkerPart)


def observers_of(settings: Settings, figures: Callable[[], Figures]) -> list[Observer]:
    """Return the observers that the settings ask for; raise ConfigError if one cannot be used."""
    builders = [part.observer for part in worker_parts().values() if part.observer is not None]
    return [observer for build in builders if (observer := build(settings, figures)) is not None]
