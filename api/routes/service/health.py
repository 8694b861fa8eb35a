"""`GET /live`, `/ready` and `/metrics`; the meaning of a problem type: `GET /problems/{code}`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from prometheus_client import CONTENT_TYPE_LATEST

from api.components.model_status import ModelStateName
from api.http.messages import Reply, Request, json_reply
from api.http.problems import explain, problem
from api.routes.admission import may_read
from api.routes.service.metrics import metrics_of
from api.services import Services
from api.submission.decoding import read_query
from headrace.errors import BrokerError, ModelsNotReady, Stopping
from headrace.jobs.job import Count
from headrace.observability.worker_report import UNLOADED_STATE


class ReadyQuery(msgspec.Struct):
    """The query of a readiness probe."""

    models: Annotated[
        Literal["", "all"],
        Meta(
            description="`all` requires a loaded replica of every model, but of those that load on "
            "demand."
        ),
    ] = ""


class Live(msgspec.Struct):
    """The process answers."""

    status: Literal["live"] = "live"


class Readiness(msgspec.Struct):
    """Whether a model is loaded."""

    state: ModelStateName
    ready_replicas: Count
    error: str | UnsetType = UNSET


class Ready(msgspec.Struct):
    """The API can accept requests."""

    models: dict[str, Readiness]
    status: Literal["ready"] = "ready"
    broker: Literal["ok"] = "ok"


async def live(_services: Services, _: Request) -> Reply:
    """Answer that the process runs, without asking Redis."""
    return json_reply(Live())


async def ready(services: Services, request: Request) -> Reply:
    """Answer whether the API can accept requests.

    A model without a worker accepts jobs, so its state is reported but not required. `?models=all`
    requires a loaded replica of each model that does not load on demand. This route never needs an
    API key or a token. Where these are required, tracebacks are shown only to one that may read.
    """
    # An unknown parameter is refused: a misspelt `models` would make the check weaker.
    models = read_query(request, ReadyQuery).models
    if services.stopping:
        return problem(
            Stopping("this API process stops", hint="Send requests to another."), request.path
        )
    try:
        statuses = await services.model_statuses.statuses()
    except BrokerError as error:
        return problem(error, request.path, broker="unavailable")
    shown = await may_read(services, request)
    states = {
        name: Readiness(status.state, status.ready, (shown and status.error) or UNSET)
        for name, status in statuses.items()
    }
    missing = [n for n, one in statuses.items() if not one.ready and one.state != UNLOADED_STATE]
    if models == "all" and missing:
        strict = ModelsNotReady(
            f"no loaded replica of: {', '.join(missing)}",
            hint="GET /api/v1/models/{model} has the traceback of a load that failed.",
        )
        return problem(strict, request.path, broker="ok", models=states)
    return json_reply(Ready(states))


async def problem_type(_services: Services, _: Request, code: str) -> Reply:
    """Return the meaning of a problem type; the `type` of a problem is this path."""
    return json_reply(explain(code))


async def get_metrics(services: Services, _: Request) -> Reply:
    """Return the metrics of queues, workers and API processes as Redis has them now.

    The answer is not compressed: even at zlib's fastest level that would take two thirds of the
    time of all the rest.
    """
    text = services.exposition.text(await metrics_of(services))
    return Reply(200, text, CONTENT_TYPE_LATEST.encode())
