"""The models as a repository: which there are and are ready, and how one is loaded and unloaded.

An unloaded model has `total_replicas: 0` in the registry. So it stays unloaded after a restart, and
its jobs wait in their queue.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any, Final

from api.components.model_registry import ChangeState, ModelRegistry
from api.components.model_status import ModelStatus
from api.services import Services
from extensions.inference_protocols.tensors.requests import Unsupported
from headrace.access.api_key import Caller
from headrace.config.model.catalog import ModelConfig
from headrace.errors import BrokerError, InvalidRequest, ModelNotFound, ModelNotLoaded, last_line
from headrace.observability.worker_report import UNLOADED_STATE, WorkerReport
from headrace.redis.keys import VERSION_SEPARATOR
from headrace.registry.model import Change, Registry, reload, set_options

_REPLICAS: Final = "total_replicas"


async def model_for(services: Services, name: str, version: str = "") -> ModelConfig:
    """Return a model, or a version of it; "1" also names the version 1.0.

    It raises ModelNotFound for what is unknown or unloaded.
    """
    about = "Request for unknown model:"
    try:
        model = services.catalog.get(name)
    except ModelNotFound:
        raise ModelNotFound(f"{about} '{name[:256]}' is not found") from None
    if version:
        statuses = services.model_statuses
        await statuses.refresh()
        known = statuses.versions(model)
        full = version if version in known else f"{version}.0"
        if full not in known:
            raise ModelNotFound(f"{about} '{name}' version {version[:64]} is not found")
        model = statuses.for_version(model, full)
    if model.has_no_replicas:
        raise ModelNotFound(f"{about} '{name}' has no available versions")
    return model


async def status_of(services: Services, model: ModelConfig) -> ModelStatus | None:
    """Return the status of a model; None while Redis does not answer."""
    try:
        return (await services.model_statuses.statuses()).get(model.name)
    except BrokerError:
        return None


async def all_ready(services: Services) -> bool:
    """Return whether each model is loaded that should be; raise BrokerError without Redis."""
    statuses = await services.model_statuses.statuses()
    return all(
        model.has_no_replicas or is_ready(statuses.get(model.name), model)
        for model in services.catalog.served
    )


async def ready_model(services: Services, name: str, version: str = "") -> ModelConfig | None:
    """Return a model, or a version of it, if it is ready; raise BrokerError without Redis."""
    try:
        model = await model_for(services, name, version)
    except ModelNotFound:
        return None
    status = (await services.model_statuses.statuses()).get(model.name)
    return model if is_ready(status, model) else None


def is_ready(status: ModelStatus | None, model: ModelConfig) -> bool:
    """Return whether a model serves, or is loaded at its first job."""
    if status is None:
        return False
    if model.on_demand and status.state == UNLOADED_STATE:
        return True
    if not model.asked_version:
        return status.ready > 0
    served = (worker.state for worker in status.workers if worker.state.ready)
    return any(state.version in ("", model.version) for state in served)


async def index_of(services: Services, *, ready: bool = False) -> list[dict[str, Any]]:
    """Return the models with their states, or only the ready ones; BrokerError without Redis."""
    statuses = await services.model_statuses.statuses()
    rows = []
    for model in services.catalog.served:
        status = statuses.get(model.name)
        state = {"state": "READY"}
        if model.has_no_replicas:
            state = {"state": "UNAVAILABLE", "reason": "unloaded"}
        elif not is_ready(status, model):
            reason = last_line(status.error) or status.state if status else ""
            state = {"state": "UNAVAILABLE", "reason": reason}
        if state["state"] == "READY" or not ready:
            rows.append({"name": model.name, "version": model.version, **state})
    return rows


async def load(services: Services, caller: Caller, name: str, parameters: Any) -> None:
    """Load a model, or load it again, and wait until the workers serve it.

    Several loads of it at once wait for their turn, and each for its end.

    Raises:
        Unsupported: it has parameters.
        ModelNotFound: it is not registered.
        ModelNotLoaded: no worker has loaded it within `max_wait_s`.
    """
    if parameters:
        raise Unsupported(
            "a load takes no parameters: register a version at /api/v1/models/{model}/versions"
        )
    registry = _registry_of(services)

    def make(present: Registry) -> list[Change]:
        model = present.models.get(name)
        if model is None:
            raise ModelNotFound(
                f"failed to load '{name[:256]}', failed to poll from model repository"
            )
        version = model.default_version
        if model.version(version).options.get(_REPLICAS) == 0:
            return set_options(present, name, version, {_REPLICAS: None})
        return reload(present, name, version)

    limit_s = services.settings.max_wait_s
    changed = await registry.change(name, make, _author(caller), turn_s=limit_s)
    if changed is None:
        raise ModelNotFound(f"failed to load '{name[:256]}', it was removed meanwhile")
    version = changed.default_version
    state, error = await registry.until_served(name, [version], limit_s)
    if state != "ready":
        why = last_line(error) or f"no worker has loaded it in {limit_s:g} s"
        raise ModelNotLoaded(f"failed to load '{name}', {why}")
    # The next request must not read the state of before.
    await services.model_statuses.statuses()


async def unload(services: Services, caller: Caller, name: str, _parameters: Any) -> None:
    """Unload all versions of a model. No model depends on it, so no parameter changes that.

    Raises:
        ModelNotFound: it is not registered.
        InvalidRequest: its processes are scaled by demand.
    """
    registry = _registry_of(services)
    model = (await registry.read()).models.get(name)
    if model is None:
        raise ModelNotFound(f"failed to unload '{name[:256]}', it is not in the model repository")
    if any(entry.options.get("max_replicas") is not None for entry in model.versions.values()):
        raise InvalidRequest(
            f"failed to unload '{name}', its option max_replicas scales it by demand. Remove that "
            "option, or use load: on_demand"
        )
    limit_s = services.settings.max_wait_s
    for version in model.versions:
        make = partial(set_options, name=name, version=version, options={_REPLICAS: 0})
        await registry.change(name, make, _author(caller), turn_s=limit_s)
    generation = registry.registry.generation

    def look(reports: Collection[WorkerReport]) -> tuple[ChangeState, str]:
        running = any(
            state.pids
            for report in reports
            for label, state in report.models.items()
            if label.partition(VERSION_SEPARATOR)[0] == name
        )
        following = (report.registry for report in reports if report.registry is not None)
        behind = any(progress.generation < generation for progress in following)
        return "pending" if running or behind else "ready", ""

    await registry.until(look, limit_s)
    await services.model_statuses.statuses()


def _author(caller: Caller) -> str:
    return caller.key_id or "a client of Triton's protocol"


def _registry_of(services: Services) -> ModelRegistry:
    if services.registry is None:
        raise ModelNotLoaded("explicit model load / unload is not allowed if polling is enabled")
    return services.registry
