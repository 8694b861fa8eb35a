"""What a worker should serve, and which action leads there: functions without effects.

`desired` has the versions that a worker should serve, with their replicas. `reconcile` compares the
served models of one name with them, and returns the next action. `ModelUpdates` does that action,
and asks again. The life of a served model decides:

| life | its version is not desired | needs other processes | is desired as it is |
|---|---|---|---|
| loading | discard | discard, then load | serve when ready; discard if it cannot be loaded |
| serving | retire | load a successor, which retires it | scale; hand over the model's own queue |
| retiring | nothing: it ends when its batches have ended | load | load |

A load that fails is no reason to discard if nothing else serves. Then it is tried again and again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from headrace.config.model.catalog import ModelConfig
from workers.models.served_model import Life, ServedModel
from workers.protocol.frames import Phase

#: The options that no process is started with.
_NO_PROCESS: Final = (
    "replicas", "min_replicas", "max_replicas", "scale_down_s", "auto_replicas", "total_replicas",
    "labels", "device_ids", "memory_mb", "load", "idle_unload_s", "traffic",
)  # fmt: skip

#: The name and the version of a model.
Version = tuple[str, str]
Models = Sequence[ServedModel]


class Wanted(NamedTuple):
    """One version that the worker should serve."""

    config: ModelConfig
    loads: int
    is_default: bool

    def fits(self, config: ModelConfig, loads: int) -> bool:
        """Return whether the processes of this configuration are those that are wanted."""
        same = {name: getattr(self.config, name) for name in _NO_PROCESS}
        return loads == self.loads and msgspec.structs.replace(config, **same) == self.config


class Target(NamedTuple):
    """What one model should become in this worker.

    Attributes:
        wanted: its versions that should be served.
        failed: the versions that could not be loaded as they are wanted.
        awaited: the versions whose replicas are not loaded in any other worker, but will run.
        dropped: the versions that this worker leaves out or unloads. They retire although no other
            one has the model's own queue.
    """

    wanted: Mapping[Version, Wanted]
    failed: Collection[Version] = ()
    awaited: Collection[Version] = ()
    dropped: Collection[Version] = ()


class Load(NamedTuple):
    """Load a version, which serves at once if nothing else does or `predecessor` must end first."""

    wanted: Wanted
    serves: bool
    predecessor: ServedModel | None = None


class Serve(NamedTuple):
    """Let a model claim, and its predecessor retire."""

    model: ServedModel
    predecessor: ServedModel | None


class HandOver(NamedTuple):
    """Let a model claim from the model's own queue, and those that did no more."""

    model: ServedModel
    owners: Models


class Scale(NamedTuple):
    """Use options that need no other processes, and start or drain replicas."""

    model: ServedModel
    config: ModelConfig


class Retire(NamedTuple):
    """Let a model claim no more, and end with its batches."""

    model: ServedModel


class Discard(NamedTuple):
    """Forget a model that loads; `error` is why it could not be loaded, if that is the reason."""

    model: ServedModel
    error: str = ""


Action = Load | Serve | HandOver | Scale | Retire | Discard


def desired(
    registered: Mapping[Version, Wanted],
    unloaded: Collection[Version],
    leased: Mapping[Version, int],
    scaled: Mapping[Version, int],
) -> dict[Version, Wanted]:
    """Return the versions that a worker should serve, each with the replicas that it runs now.

    Args:
        registered: the versions that fit the worker.
        unloaded: those that load on demand, and should not be loaded.
        leased: the replicas that the worker may run of those with `total_replicas`.
        scaled: the replicas by demand of those with `max_replicas`.
    """
    wanted = {}
    # Where nothing is served yet, the first version serves before it is loaded: the default one.
    for version, entry in sorted(registered.items(), key=lambda item: not item[1].is_default):
        if version in unloaded:
            continue
        config = entry.config
        replicas = config.replicas if config.total_replicas is None else leased.get(version, 0)
        if config.max_replicas is not None:
            replicas = scaled[version]
        if replicas != config.replicas:
            config = msgspec.structs.replace(config, replicas=replicas)
        wanted[version] = entry._replace(config=config)
    return wanted


def reconcile(present: Models, target: Target) -> Action | None:
    """Return the next action for the served models of a name; None until something happens."""
    for version, wanted in target.wanted.items():
        if (action := _start(version, wanted, present, target)) is not None:
            return action
    serving = [model for model in present if model.life is Life.SERVING]
    for life, rule in _RULES:
        for model in present:
            if model.life is life and (action := rule(model, target, serving)) is not None:
                return action
    return None


def unfinished(present: Models, target: Target) -> bool:
    """Return whether a model is not yet what it should become."""
    for model in present:
        wanted = target.wanted.get(version_of(model))
        if model.life is not Life.SERVING or any(replica.surplus for replica in model.replicas):
            return True
        if wanted is not None and wanted.is_default and model.own_closed:
            return True
    # A version that is served on because its successor could not be loaded is no work to do.
    served = {version_of(model) for model in present}
    return any(v not in served and v not in target.failed for v in target.wanted)


def version_of(model: ServedModel) -> Version:
    """Return the name and the version of a served model."""
    return model.config.name, model.config.version


def models_of(version: Version, models: Models) -> list[ServedModel]:
    """Return the served models of a version."""
    return [model for model in models if version_of(model) == version]


def log_fields(version: Version) -> dict[str, Any]:
    """Return the log fields of a version."""
    return {"model": version[0], "version": version[1]}


def _start(version: Version, wanted: Wanted, present: Models, target: Target) -> Action | None:
    """Begin to serve a version as it is wanted, unless that has begun or has failed."""
    begun, predecessor = False, None
    for model in present:
        if version_of(model) != version or model.life is Life.RETIRING:
            continue
        if wanted.fits(model.config, model.loads):
            if model.config != wanted.config:
                return Scale(model, wanted.config)
            begun = True
        elif model.life is Life.LOADING:
            return Discard(model)
        else:
            predecessor = predecessor or model
    if begun or version in target.failed:
        return None
    if not any(model.life is Life.SERVING for model in present):
        return Load(wanted, serves=True)
    if predecessor is not None and not wanted.config.recycle_overlap:
        return Load(wanted, True, predecessor)
    return Load(wanted, serves=False)


def _finish_load(model: ServedModel, target: Target, serving: Models) -> Action | None:
    """Let a loaded model serve, or discard it if it cannot be loaded or is no longer wanted."""
    version = version_of(model)
    if version not in target.wanted:
        return Discard(model)
    error = next((replica.error for replica in model.replicas if replica.error), "")
    if error and serving:
        return Discard(model, error)
    # If what it should replace was unloaded, it serves, and is tried again.
    if not error and any(replica.state is not Phase.READY for replica in model.replicas):
        return None
    return Serve(model, next((other for other in serving if version_of(other) == version), None))


def _hand_over(model: ServedModel, target: Target, serving: Models) -> Action | None:
    """Let the default version claim from the model's own queue, once it can."""
    # A version whose options are wrong stays as it was, so two may be the default one.
    default = next((v for v, wanted in target.wanted.items() if wanted.is_default), None)
    version = version_of(model)
    if version != default or not model.own_closed:
        return None
    owners = [other for other in serving if not other.own_closed]
    if owners and not model.serving and (model.replicas or version in target.awaited):
        return None  # its first process still loads, here or in another worker
    return HandOver(model, owners)


def _retire(model: ServedModel, target: Target, _: Models) -> Action | None:
    """Let a version that is not wanted retire, once another one has the model's own queue."""
    version = version_of(model)
    if version in target.wanted:
        return None
    ends = not target.wanted or version in target.dropped or model.own_closed
    return Retire(model) if ends else None


#: What decides on a model by its life, in this order; one that retires ends by itself.
_RULES: Final = (
    (Life.LOADING, _finish_load), (Life.SERVING, _hand_over), (Life.SERVING, _retire),
)  # fmt: skip
