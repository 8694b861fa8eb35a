"""Job tickets (`useJobTicket`): a request is taken only if a model process is idle for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from api.components.model_status import NO_WORKER
from api.services import Services
from extensions.torchserve.api.errors import UNAVAILABLE, TorchServeError
from extensions.torchserve.api.parts import parts_of
from extensions.torchserve.config.model_config import JOB_TICKET
from headrace.config.model.catalog import ModelConfig
from headrace.redis import keys


@asynccontextmanager
async def ticket(services: Services, model: ModelConfig) -> AsyncIterator[None]:
    """Hold a ticket for one request, if its model has tickets.

    Other API processes take tickets too: two requests in the same moment may get the same one.

    Raises:
        TorchServeError: no model process is idle.
    """
    if not model.options.get(JOB_TICKET):
        yield
        return
    held = parts_of(services).tickets
    reports = await services.queue.worker_states()
    (depth,) = await services.queue.depths([keys.queue_name(model.name)])
    ready = sum(
        state.ready
        for report in reports.values()
        for label, state in report.models.items()
        if label.partition(keys.VERSION_SEPARATOR)[0] == model.name
    )
    # A request of this process that is not in Redis yet counts too.
    busy = max(depth.total + depth.in_flight, held[model.name])
    if busy >= ready:
        services.counters.refused(model.name, NO_WORKER)
        raise TorchServeError(
            UNAVAILABLE,
            f"model {model.name} has {ready} model processes and {busy} requests: none is idle, "
            "and useJobTicket lets no request wait. Try again, or scale it up",
        )
    held[model.name] += 1
    try:
        yield
    finally:
        held[model.name] -= 1
