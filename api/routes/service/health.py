"""`GET /live`, `GET /ready`, and what a problem type means: `GET /problems/{code}`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from api.components.model_status import ModelStatus
from api.fastapi_bridge import json_response, response_of, services_of
from api.http.messages import unknown_name
from api.http.problems import explain, problem
from headrace.errors import BrokerError, InvalidRequest, ModelsNotReady

router = APIRouter(tags=["health"])


@router.get("/live", summary="The process answers")
async def live() -> Response:
    """Whether the process is to be left alone; knows nothing of Redis."""
    return json_response({"status": "live"})


@router.get("/ready", summary="Redis answers and the models are registered")
async def ready(request: Request, models: str = "") -> Response:
    """Whether requests can be taken.

    A model without a worker takes jobs, so that its state is told and not asked for;
    `?models=all` wants a loaded replica of each.
    """
    services = services_of(request)
    for name in request.query_params:
        if name != "models":
            # A misspelt name would make the strict question a lax one.
            raise unknown_name("query parameter", name, frozenset({"models"}))
    if models not in ("", "all"):
        raise InvalidRequest(
            f"query parameter models: {models[:32]!r} is not known", hint="Give all, or leave it."
        )
    try:
        statuses = await services.model_statuses.statuses()
    except BrokerError as error:
        return response_of(problem(error, request.url.path, broker="unavailable"))
    states = {name: _state(status) for name, status in statuses.items()}
    missing = [name for name, status in statuses.items() if not status.ready]
    if models == "all" and missing:
        strict = ModelsNotReady(
            f"no loaded replica of: {', '.join(missing)}",
            hint="GET /api/v1/models/{model} has the traceback of a load that failed.",
        )
        return response_of(problem(strict, request.url.path, broker="ok", models=states))
    return json_response({"status": "ready", "broker": "ok", "models": states})


def _state(status: ModelStatus) -> dict[str, Any]:
    state: dict[str, Any] = {"state": status.state, "ready_replicas": status.ready}
    if status.error:
        state["error"] = status.error
    return state


@router.get("/problems/{code}", summary="What a problem type means")
async def problem_type(code: str) -> Response:
    """The `type` of a problem is this path."""
    return json_response(explain(code))
