"""The models as a repository: which there are, and how one is loaded and unloaded.

An unloaded model has `total_replicas: 0` in the registry. So it stays unloaded after a restart, and
its jobs wait in their queue.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from api.components.model_registry import ChangeState, ModelRegistry
from api.services import Services
from extensions.inference_protocols.models.lookup import is_ready, is_unloaded
from extensions.inference_protocols.tensors.requests import Unsupported
from headrace.access.api_key import Caller
from headrace.errors import InvalidRequest, ModelNotFound, ModelNotLoaded, last_line
from headrace.observability.worker_report import WorkerReport
from headrace.redis.keys import VERSION_SEPARATOR
from headrace.registry.model import Change, Registry, reload, set_options

_REPLICAS: Final = "total_replicas"


async def index_of(services: Services, *, ready: bool = False) -> list[dict[str, Any]]:
    """Return the models with their states, or only those that are ready.

    Raises:
        BrokerError: Redis does not answer.
    """
    statuses = await services.model_statuses.statuses()
    found = []
    for model in services.catalog.served:
        row = {"name": model.name, "version": model.version, "state": "READY"}
        status = statuses.get(model.name)
        if is_unloaded(model):
            row |= {"state": "UNAVAILABLE", "reason": "unloaded"}
        elif not is_ready(status, model):
            why = last_line(status.error) if status else ""
            row |= {"state": "UNAVAILABLE", "reason": why or (status.state if status else "")}
        if row["state"] == "READY" or not ready:
            found.append(row)
    return found


async def load(services: Services, caller: Caller, name: str, parameters: Any) -> None:
    """Load a model, or load it again, and wait until the workers serve it.

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

    changed = await registry.change(name, make, _author(caller))
    if changed is None:
        raise ModelNotFound(f"failed to load '{name[:256]}', it was removed meanwhile")
    version = changed.default_version
    limit_s = services.settings.max_wait_s
    state, error = await registry.until_served(name, [version], limit_s)
    if state != "ready":
        why = last_line(error) or f"no worker has loaded it in {limit_s:g} s"
        raise ModelNotLoaded(f"failed to load '{name}', {why}")
    # The next request must not read the state of before.
    await services.model_statuses.statuses()


async def unload(services: Services, caller: Caller, name: str) -> None:
    """Unload all versions of a model.

    Raises:
        ModelNotFound: it is not registered.
        InvalidRequest: its processes are scaled by demand.
    """
    registry = _registry_of(services)
    model = (await registry.read()).models.get(name)
    if model is None:
        raise ModelNotFound(f"failed to unload '{name[:256]}', it is not in the model repository")
    for version, entry in model.versions.items():
        if entry.options.get("max_replicas") is not None:
            raise InvalidRequest(
                f"failed to unload '{name}', its option max_replicas scales it by demand. Remove "
                "that option, or use load: on_demand"
            )

        def make(present: Registry, version: str = version) -> list[Change]:
            return set_options(present, name, version, {_REPLICAS: 0})

        await registry.change(name, make, _author(caller))
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

    await registry.until(look, services.settings.max_wait_s)
    await services.model_statuses.statuses()


def _author(caller: Caller) -> str:
    return caller.key_id or "a client of Triton's protocol"


def _registry_of(services: Services) -> ModelRegistry:
    if services.registry is None:
        raise ModelNotLoaded("explicit model load / unload is not allowed if polling is enabled")
    return services.registry
