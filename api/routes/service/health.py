"""`GET /live`, `GET /ready`, and the meaning of a problem type: `GET /problems/{code}`."""

from __future__ import annotations

from typing import Any, Final

from api.components.model_status import ModelStatus
from api.http.messages import Reply, Request, json_reply
from api.http.problems import explain, problem
from api.services import Services
from headrace.errors import BrokerError, InvalidRequest, ModelsNotReady

_READY: Final = frozenset({"models"})


async def live(_services: Services, _: Request) -> Reply:
    """Answer that the process runs, without asking Redis."""
    return json_reply({"status": "live"})


async def ready(services: Services, request: Request) -> Reply:
    """Answer whether the API can accept requests.

    A model without a worker accepts jobs, so that its state is reported but not required;
    `?models=all` requires a loaded replica of each.
    """
    # An unknown parameter is refused: a misspelt `models` would make the check weaker.
    models = request.query(_READY).get("models", "")
    if models not in ("", "all"):
        raise InvalidRequest(
            f"query parameter models: {models[:32]!r} is not known",
            hint="Give all, or leave it out.",
        )
    try:
        statuses = await services.model_statuses.statuses()
    except BrokerError as error:
        return problem(error, request.path, broker="unavailable")
    states = {name: _state(status) for name, status in statuses.items()}
    missing = [name for name, status in statuses.items() if not status.ready]
    if models == "all" and missing:
        strict = ModelsNotReady(
            f"no loaded replica of: {', '.join(missing)}",
            hint="GET /api/v1/models/{model} has the traceback of a load that failed.",
        )
        return problem(strict, request.path, broker="ok", models=states)
    return json_reply({"status": "ready", "broker": "ok", "models": states})


def _state(status: ModelStatus) -> dict[str, Any]:
    state: dict[str, Any] = {"state": status.state, "ready_replicas": status.ready}
    if status.error:
        state["error"] = status.error
    return state


async def problem_type(_services: Services, _: Request, code: str) -> Reply:
    """Return the meaning of a problem type; the `type` of a problem is this path."""
    return json_reply(explain(code))
