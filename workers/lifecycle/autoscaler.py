"""How many replicas a worker runs of models with `max_replicas`, by demand.

docs/architecture/replicas.md has the rules.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from headrace.config.model.catalog import ModelConfig
from workers.lifecycle.reconciler import Version, log_fields, version_of
from workers.models.served_model import ServedModel
from workers.protocol.frames import Phase

logger = logging.getLogger(__name__)

#: For how long more jobs wait than the next batches take before another process starts.
WAITED_S: Final = 1.0
#: How long no process starts after one that could not be loaded.
RETRY_S: Final = 60.0


class Limits(NamedTuple):
    """The configured numbers of replicas; an idle one ends after `idle_s`."""

    least: int
    most: int
    idle_s: float


class Load(NamedTuple):
    """What a model has to do in this worker, at one moment.

    Attributes:
        waiting: how many jobs wait, here and in Redis.
        takes: how many jobs the next batches of its loaded processes take.
        busy: whether it has loaded processes and each of them runs a batch.
        idle_s: for how many seconds its least used process has had no batch; 0 if it has one.
        changing: whether a process starts or ends.
        failed: whether a process could not be loaded, and is not loaded yet.
    """

    waiting: int
    takes: int
    busy: bool
    idle_s: float = 0.0
    changing: bool = False
    failed: bool = False


class Scale(NamedTuple):
    """How many replicas a model should have.

    Attributes:
        replicas: the number; 0 as long as `replicas` of the model is 0.
        waited_since: since when more jobs have waited than the next batches take; None if they do
            not.
        up_at: when it may get another replica.
        why: why the number has changed; "" if it has not.
    """

    replicas: int
    waited_since: float | None = None
    up_at: float = 0.0
    why: str = ""


def next_scale(scale: Scale, load: Load, limits: Limits, now: float) -> Scale:
    """Return how many replicas a model should have from now on."""
    number, _, up_at, _ = scale
    if load.failed and number > limits.least:
        return Scale(number - 1, None, now + RETRY_S, "a process could not be loaded")
    if load.changing:
        return Scale(number, None, up_at)
    if load.idle_s >= limits.idle_s and number > limits.least:
        return Scale(number - 1, None, up_at, f"a process was idle for {limits.idle_s:g} s")
    if not load.busy or load.waiting <= load.takes:
        return Scale(number, None, up_at)
    since = now if scale.waited_since is None else scale.waited_since
    if now - since < WAITED_S or now < up_at or number >= limits.most:
        return Scale(number, since, up_at)
    return Scale(number + 1, None, up_at, f"{load.waiting} jobs wait and each process is busy")


def load_of(model: ServedModel, now: float) -> Load:
    """Return what a model has to do."""
    lasting = model.lasting
    ready = [replica for replica in lasting if replica.state is Phase.READY]
    last = lasting[-1] if lasting else None
    return Load(
        waiting=model.waiting,
        takes=len(ready) * model.batch_limit,
        busy=bool(ready) and not any(replica.idle for replica in ready),
        idle_s=now - last.idle_since if last is not None and last.idle else 0.0,
        changing=len(ready) < len(model.replicas),
        failed=any(replica.error and replica.state is not Phase.READY for replica in lasting),
    )


class Autoscaler:
    """Decides on the replicas of one worker's models, with `slots` batches a device (0: any)."""

    def __init__(self, slots: int = 0) -> None:
        self._slots = slots
        self._scales: dict[Version, tuple[ModelConfig, Scale]] = {}

    @property
    def replicas(self) -> dict[Version, int]:
        """The replicas that each model with `max_replicas` should have now."""
        return {version: scale.replicas for version, (_, scale) in self._scales.items()}

    def follow(self, configs: Sequence[ModelConfig]) -> None:
        """Set the models; one whose `replicas` is as before keeps its number within its limits."""
        before, self._scales = self._scales, {}
        for config in configs:
            if config.max_replicas is None:
                continue
            version = (config.name, config.version)
            number = config.replicas
            if version in before and before[version][0].replicas == number:
                number = before[version][1].replicas
            limits = self._limits(config)
            if number:
                number = min(max(number, limits.least), limits.most)
            self._scales[version] = config, Scale(number)

    def check(self, models: Sequence[ServedModel], now: float) -> bool:
        """Decide for models that have the number they should; return whether one has changed."""
        changed = False
        for model in models:
            version = version_of(model)
            if version not in self._scales:
                continue
            config, before = self._scales[version]
            if not before.replicas or before.replicas != model.config.replicas:
                continue
            after = next_scale(before, load_of(model, now), self._limits(config), now)
            self._scales[version] = config, after
            if after.why:
                changed = True
                fields = {**log_fields(version), "replicas": after.replicas}
                logger.info(
                    "%d replicas instead of %d: %s",
                    after.replicas, before.replicas, after.why, extra=fields,
                )  # fmt: skip
        return changed

    def _limits(self, config: ModelConfig) -> Limits:
        # With 0 the whole model is unloaded (`OnDemandModels`); while it is loaded, one is left.
        least, most = max(1, config.min_replicas), config.max_replicas or 1
        if self._slots:
            # One that never gets a slot would start and end again and again.
            most = max(least, min(most, self._slots))
        return Limits(least, most, config.scale_down_s)
