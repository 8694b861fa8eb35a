"""Change the registry for a management request, and wait until the workers follow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Final

from api.components.model_registry import ChangeState, ModelRegistry, change_state
from api.http.messages import Request
from api.services import Services
from extensions.torchserve.api.management.model_descriptions import serving_of, worker_range
from extensions.torchserve.api.management.model_files import shown
from extensions.torchserve.api.parts import config_of
from extensions.torchserve.api.replies import Kind, TorchServeError
from extensions.torchserve.config.snapshot import last_written
from headrace.config.suggestions import listing
from headrace.errors import last_line
from headrace.observability.worker_report import WorkerReport
from headrace.registry.model import Change, RegisteredModel, Registry

#: How long a change waits for its turn while other clients change the same model.
TURN_S: Final = 30.0
#: How much longer than a load may take a request waits for it.
SLACK_S: Final = 30.0
#: How long a request waits for workers that need no load to follow.
FOLLOW_S: Final = 10.0
#: How long a request waits for the snapshot with its change.
SNAPSHOT_S: Final = 2.0
_LOOK_S: Final = 0.01
_NO_MEMORY: Final = ("MemoryError", "OutOfMemoryError", "CUDA")


def registry_of(services: Services) -> ModelRegistry:
    """Return the registry of this process.

    Raises:
        TorchServeError: it has none.
    """
    if services.registry is None:
        raise TorchServeError(
            Kind.INTERNAL,
            "This API process has no registry of models. Start it with `headrace torchserve`",
        )
    return services.registry


def model_of(registry: Registry, name: str) -> RegisteredModel:
    """Return a registered model.

    Raises:
        TorchServeError: it is not registered.
    """
    found = registry.models.get(name)
    if found is None:
        raise TorchServeError(
            Kind.MODEL_NOT_FOUND,
            f"No model {shown(name)} is registered; registered: {listing(registry.models)}",
        )
    return found


def version_of(model: RegisteredModel, version: str) -> str:
    """Return a version of a model; "" is the default one.

    Raises:
        TorchServeError: the model has no such version.
    """
    version = version or model.default_version
    if version not in model.versions:
        raise TorchServeError(
            Kind.VERSION_NOT_FOUND,
            f"The model {model.name} has no version {shown(version)}; it has "
            f"{listing(model.versions)}",
        )
    return version


async def change(
    services: Services, request: Request, name: str, make: Callable[[Registry], list[Change]]
) -> RegisteredModel | None:
    """Change a model, again if another client changes it at the same time.

    Args:
        request: its caller is the author.

    Returns:
        The model as it is then; None if it is removed.

    Raises:
        HeadraceError: the change is refused; Conflict if its turn has not come in TURN_S.
    """
    registry = registry_of(services)
    by = request.caller.key_id or "a client of TorchServe's API"
    changed = await registry.change(name, make, by, turn_s=TURN_S)
    await _until_in_snapshot(services, registry.registry.generation)
    return changed


async def _until_in_snapshot(services: Services, generation: int) -> None:
    """Wait until a snapshot has a change: a server that is stopped after the answer keeps it.

    If none can be written, the server logs that, and the request goes on after a moment.
    """
    state_dir = services.settings.state_dir
    deadline_s = time.monotonic() + SNAPSHOT_S
    while config_of(services).snapshot_folder is not None and time.monotonic() < deadline_s:
        written = last_written(state_dir)[1]
        if written is None or written >= generation:
            return
        await asyncio.sleep(_LOOK_S)


async def until_scaled(services: Services, name: str, version: str) -> tuple[ChangeState, str]:
    """Wait for the model processes of a version; return the state, and why a load has failed."""
    registry = registry_of(services)
    model = registry.registry.models.get(name)
    if model is None or version not in model.versions:
        return "pending", ""
    least, most = worker_range(model.versions[version].options)
    generation = registry.registry.generation

    def look(reports: Collection[WorkerReport]) -> tuple[ChangeState, str]:
        state, error = change_state(reports, generation, name, [version])
        serving = serving_of(name, version, reports)
        ready = sum(one.state.ready for one in serving)
        # Each worker may have the most, unless all workers share a total.
        running = max((len(one.state.pids) for one in serving), default=0)
        if state == "ready" and (ready < least or running > most):
            return "pending", ""
        return state, error

    config = services.catalog.versions.get(name, {}).get(version)
    seconds = SLACK_S + (config.load_timeout_s if config is not None else 0.0)
    return await registry.until(look, seconds)


async def until_followed(services: Services, name: str) -> None:
    """Wait a moment until the workers do what the registry has for a model."""
    registry = registry_of(services)
    generation = registry.registry.generation

    def look(reports: Collection[WorkerReport]) -> tuple[ChangeState, str]:
        followers = [one.registry for one in reports if one.registry is not None]
        behind = any(one.generation < generation or name in one.updating for one in followers)
        return "pending" if behind else "ready", ""

    await registry.until(look, FOLLOW_S)


def load_failure(services: Services, name: str, version: str, error: str) -> TorchServeError:
    """Return the error for a version that was not loaded; `error` is "" if the time was up."""
    reason = last_line(error)
    model = services.catalog.versions.get(name, {}).get(version)
    if reason:
        why = reason
    elif model is not None and (unfit := services.model_statuses.why_unfit(model)):
        why = unfit
    else:
        why = "no worker has loaded it in time; see the log of the worker"
    kind = Kind.NO_MEMORY if any(word in reason for word in _NO_MEMORY) else Kind.INTERNAL
    return TorchServeError(
        kind, f"Failed to start workers for model {name} version: {version}. {why}"
    )
