"""The door: serves the hot routes itself and hands everything else to FastAPI.

FastAPI's middleware and router cost more time per request than all the rest of a submit; the routes
below are found by their path alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from starlette.routing import BaseRoute, Match

from api.auth.scopes import ROUTES
from api.http.messages import (
    CALLER,
    SEEN,
    ChunkedReply,
    ClientGone,
    Receive,
    Reply,
    Request,
    ResponseCutShort,
    Scope,
    Send,
    StreamingReply,
    send_parts,
    send_reply,
    send_stream,
)
from api.http.openai_errors import envelope, unexpected_envelope
from api.http.problems import problem, unexpected
from api.routes.jobs.bulk_status import cancel_many, forget_many, read_many, read_outcomes
from api.routes.jobs.bulk_submit import submit_bulk
from api.routes.jobs.events import get_events
from api.routes.jobs.job import cancel_job, get_job, get_result
from api.routes.jobs.listing import list_jobs
from api.routes.jobs.submit import put_job, submit_input, submit_job
from api.routes.openai.batches import cancel_batch, create_batch, get_batch, list_batches
from api.routes.openai.files import create_file, delete_file, get_content, get_file, list_files
from api.routes.service.metrics import get_metrics
from api.services import Services
from headrace.errors import Forbidden, HeadraceError, MethodNotAllowed, PathNotFound

Endpoint = Callable[[Services, Request, str], Awaitable[Reply | ChunkedReply | StreamingReply]]
Methods = dict[str, Endpoint]

#: Methods that change nothing.
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
PREFIX: Final = "/api/v1/"
_MODELS: Final = "/api/v1/models/"
MODEL_JOBS: Final = "/api/v1/models/{model}/jobs"
JOBS: Final = "/api/v1/jobs"
JOB: Final = "/api/v1/jobs/{job_id}"
RESULT: Final = "/api/v1/jobs/{job_id}/result"
EVENTS: Final = "/api/v1/jobs/{job_id}/events"
BULK: Final = "/api/v1/jobs/bulk"
STATUS: Final = "/api/v1/jobs/status"
CANCEL: Final = "/api/v1/jobs/cancel"
OUTCOMES: Final = "/api/v1/jobs/outcomes"
FORGET: Final = "/api/v1/jobs/forget"
#: By OpenAI's conventions, for its SDK; nothing else stands below.
OPENAI_PREFIX: Final = "/v1/"
FILES: Final = "/v1/files"
FILE: Final = "/v1/files/{file_id}"
CONTENT: Final = "/v1/files/{file_id}/content"
BATCHES: Final = "/v1/batches"
BATCH: Final = "/v1/batches/{batch_id}"
BATCH_CANCEL: Final = "/v1/batches/{batch_id}/cancel"
METRICS: Final = "/metrics"

#: What counters call the route of a path at which there is nothing.
NO_ROUTE: Final = "none"
HOT_ROUTES: Final[dict[str, Methods]] = {
    MODEL_JOBS: {"POST": submit_input, "PUT": submit_input},
    JOBS: {"GET": list_jobs, "HEAD": list_jobs, "POST": submit_job},
    JOB: {"GET": get_job, "HEAD": get_job, "PUT": put_job, "DELETE": cancel_job},
    RESULT: {"GET": get_result, "HEAD": get_result},
    EVENTS: {"GET": get_events, "HEAD": get_events},
    BULK: {"POST": submit_bulk},
    STATUS: {"POST": read_many},
    CANCEL: {"POST": cancel_many},
    OUTCOMES: {"POST": read_outcomes},
    FORGET: {"POST": forget_many},
    FILES: {"GET": list_files, "HEAD": list_files, "POST": create_file},
    FILE: {"GET": get_file, "HEAD": get_file, "DELETE": delete_file},
    CONTENT: {"GET": get_content, "HEAD": get_content},
    BATCHES: {"GET": list_batches, "HEAD": list_batches, "POST": create_batch},
    BATCH: {"GET": get_batch, "HEAD": get_batch},
    BATCH_CANCEL: {"POST": cancel_batch},
    METRICS: {"GET": get_metrics, "HEAD": get_metrics},
}
#: What each of them wants of whoever asks; see api/auth/scopes.py.
HOT_NEEDS: Final = {
    endpoint: ROUTES.get(("GET" if method == "HEAD" else method, path))
    for path, methods in HOT_ROUTES.items()
    for method, endpoint in methods.items()
}
#: These paths are also those of jobs that clients have named so: no id is reserved.
_ALSO_JOBS: Final = {
    path.rpartition("/")[2]: (path, {**HOT_ROUTES[JOB], **HOT_ROUTES[path]})
    for path in (BULK, STATUS, CANCEL, OUTCOMES, FORGET)
}
_ONE_JOB: Final = (JOB, HOT_ROUTES[JOB])


class Route(NamedTuple):
    """A hot route that was asked for.

    Attributes:
        template: its path, with the names of what stands in it.
        methods: what answers, by method.
        name: the model, the job or the file in the path; empty where there is none.
    """

    template: str
    methods: Methods
    name: str


def find(path: str) -> Route | None:
    """The hot route of a path; None where it is none."""
    if path.startswith(OPENAI_PREFIX):
        return _find_openai(path)
    if not path.startswith(PREFIX):
        return Route(METRICS, HOT_ROUTES[METRICS], "") if path == METRICS else None
    if path.startswith(_MODELS):
        return _find_model(path)
    match path[len(PREFIX) :].split("/"):
        case ["jobs", job_id]:
            return Route(*_ALSO_JOBS.get(job_id, _ONE_JOB), job_id)
        case ["jobs"]:
            return Route(JOBS, HOT_ROUTES[JOBS], "")
        case ["jobs", job_id, "result"]:
            return Route(RESULT, HOT_ROUTES[RESULT], job_id)
        case ["jobs", job_id, "events"]:
            return Route(EVENTS, HOT_ROUTES[EVENTS], job_id)
        case _:
            return None


@lru_cache(maxsize=256)
def _find_model(path: str) -> Route | None:
    match path[len(_MODELS) :].split("/"):
        case [model, "jobs"]:
            return Route(MODEL_JOBS, HOT_ROUTES[MODEL_JOBS], model)
        case _:
            return None


def _find_openai(path: str) -> Route:
    match path[len(OPENAI_PREFIX) :].split("/"):
        case ["files"]:
            return Route(FILES, HOT_ROUTES[FILES], "")
        case ["files", file_id]:
            return Route(FILE, HOT_ROUTES[FILE], file_id)
        case ["files", file_id, "content"]:
            return Route(CONTENT, HOT_ROUTES[CONTENT], file_id)
        case ["batches"]:
            return Route(BATCHES, HOT_ROUTES[BATCHES], "")
        case ["batches", batch_id]:
            return Route(BATCH, HOT_ROUTES[BATCH], batch_id)
        case ["batches", batch_id, "cancel"]:
            return Route(BATCH_CANCEL, HOT_ROUTES[BATCH_CANCEL], batch_id)
        case _:
            return Route(NO_ROUTE, {}, "")


async def serve(
    services: Services, found: Route, scope: Scope, receive: Receive, send: Send
) -> None:
    """Answer a request for a hot route; whatever goes wrong is a problem, or OpenAI's error."""
    template, methods, name = found
    request = Request(scope, receive)
    seen = scope.get(SEEN)
    if seen is not None:
        seen.found(template, name, request)
    openai = request.path.startswith(OPENAI_PREFIX)
    try:
        endpoint = methods.get(request.method)
        if services.authenticator is not None:
            needs = HOT_NEEDS[endpoint] if endpoint is not None else None
            await services.authenticator.admit(
                request, needs, listed=needs is not None or endpoint is None
            )
        elif request.has(b"origin"):
            refuse_foreign_page(request, services.settings.cors_origins)
        if endpoint is None:
            reply: Reply | ChunkedReply | StreamingReply = _refuse_method(request, methods)
        else:
            reply = await endpoint(services, request, name)
    except HeadraceError as error:
        reply = envelope(error) if openai else problem(error, request.path)
    except ClientGone:
        return
    except Exception as error:  # noqa: BLE001 - logged; the client is told its id
        answer = unexpected_envelope if openai else unexpected
        reply = answer(error, request.path)
    services.counters.answered(template, request.method, reply.status)
    if isinstance(reply, Reply):
        await send_reply(send, reply, request)
        return
    if isinstance(reply, ChunkedReply):
        await send_parts(send, reply)
        return
    # uvicorn cuts the connection of an answer that is not complete.
    with contextlib.suppress(ClientGone, ResponseCutShort):
        await send_stream(send, reply)


def each_route(routes: Iterable[BaseRoute]) -> Iterator[BaseRoute]:
    """Routes, and those of the routers among them, in the order in which they are tried."""
    for route in routes:
        router = getattr(route, "original_router", None)
        if router is None:
            yield route
        else:
            yield from each_route(router.routes)


async def admit(
    services: Services, routes: Sequence[BaseRoute], scope: Scope, receive: Receive, send: Send
) -> bool:
    """Let a request for any other route in, or answer why not.

    On whose behalf it is, routes find in its scope, under CALLER.
    """
    request = Request(scope, receive)
    if services.authenticator is None and not request.has(b"origin"):
        return True
    matching = (route for route in each_route(routes) if route.matches(scope)[0] is Match.FULL)
    route = next(matching, None)
    # For whoever counts it, where it goes no further.
    scope["route"] = route
    needs = ROUTES.get((request.method, getattr(route, "path", "")))
    try:
        if services.authenticator is not None:
            await services.authenticator.admit(
                request, needs, listed=needs is not None or route is None
            )
        else:
            refuse_foreign_page(request, services.settings.cors_origins)
    except HeadraceError as error:
        reply = problem(error, request.path)
    except Exception as error:  # noqa: BLE001 - logged; the client is told its id
        reply = unexpected(error, request.path)
    else:
        scope[CALLER] = request.caller
        return True
    await send_reply(send, reply, request)
    return False


def refuse_foreign_page(request: Request, allowed: Sequence[str]) -> None:
    """Where no keys are asked for, a page of another origin changes nothing.

    Any page that somebody opens can send a POST to his own machine, and needs no answer to purge a
    queue; but its browser says where it comes from.

    Raises:
        Forbidden: it is such a page.
    """
    origin = request.header(b"origin").decode("latin-1")
    if request.method in _SAFE or origin in allowed:
        return
    if origin.partition("://")[2] != request.header(b"host").decode("latin-1"):
        raise Forbidden(
            f"a web page of {origin[:128]} may change nothing here",
            hint="Name its origin in cors_origins, or ask for API keys (auth: on).",
        )


def _refuse_method(request: Request, methods: Methods) -> Reply:
    if not methods:
        raise PathNotFound(f"there is nothing at {request.path[:256]}", hint="See docs/api.md.")
    allowed = ", ".join(methods)
    error = MethodNotAllowed(
        f"{request.method[:32]} is not allowed on {request.path[:256]}",
        hint=f"Allowed here: {allowed}.",
    )
    openai = request.path.startswith(OPENAI_PREFIX)
    reply = envelope(error) if openai else problem(error, request.path)
    return reply._replace(headers=(*reply.headers, (b"allow", allowed.encode())))
