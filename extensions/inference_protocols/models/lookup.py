"""Models by the names and versions of a request, and whether they are ready."""

from __future__ import annotations

from api.components.model_status import ModelStatus
from api.services import Services
from headrace.config.model.catalog import ModelConfig
from headrace.errors import ModelNotFound
from headrace.observability.worker_report import UNLOADED_STATE


async def model_for(services: Services, name: str, version: str = "") -> ModelConfig:
    """Return a model, or a version of it; "1" also names the version 1.0.

    Raises:
        ModelNotFound: it is unknown, or it is unloaded.
    """
    try:
        model = services.catalog.get(name)
    except ModelNotFound:
        raise _unknown(f"'{name[:256]}' is not found") from None
    if version:
        statuses = services.model_statuses
        await statuses.refresh()
        known = statuses.versions(model)
        found = next((one for one in (version, f"{version}.0") if one in known), None)
        if found is None:
            raise _unknown(f"'{name}' version {version[:64]} is not found")
        model = statuses.for_version(model, found)
    if is_unloaded(model):
        raise _unknown(f"'{name}' has no available versions")
    return model


def _unknown(what: str) -> ModelNotFound:
    return ModelNotFound(f"Request for unknown model: {what}")


def is_unloaded(model: ModelConfig) -> bool:
    """Return whether no worker may run a model, by its options."""
    return model.total_replicas == 0 or (model.replicas == 0 and not model.on_demand)


async def all_ready(services: Services) -> bool:
    """Return whether each model is loaded that should be.

    Raises:
        BrokerError: Redis does not answer.
    """
    statuses = await services.model_statuses.statuses()
    return all(
        is_unloaded(model) or is_ready(statuses.get(model.name), model)
        for model in services.catalog.served
    )


async def ready_model(services: Services, name: str, version: str = "") -> ModelConfig | None:
    """Return a model, or a version of it, if it is ready, and else None.

    Raises:
        BrokerError: Redis does not answer.
    """
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
