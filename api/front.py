"""The door: serves the hot routes itself and hands everything else to FastAPI.

FastAPI's middleware and router cost more time per request than all the rest of a submit; the routes
below are found by their path alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from api.asgi import ClientGone, Receive, Reply, Request, Scope, Send, send_reply
from api.problems import problem, unexpected
from api.routes.jobs import cancel_job, get_job, get_result
from api.routes.submit import put_job, submit_input, submit_job
from api.services import Services
from headrace.errors import HeadraceError, MethodNotAllowed

Endpoint = Callable[[Services, Request, str], Awaitable[Reply]]
Methods = dict[str, Endpoint]

PREFIX: Final = "/api/v1/"
MODEL_JOBS: Final = "/api/v1/models/{model}/jobs"
JOBS: Final = "/api/v1/jobs"
JOB: Final = "/api/v1/jobs/{job_id}"
RESULT: Final = "/api/v1/jobs/{job_id}/result"

HOT_ROUTES: Final[dict[str, Methods]] = {
    MODEL_JOBS: {"POST": submit_input, "PUT": submit_input},
    JOBS: {"POST": submit_job},
    JOB: {"GET": get_job, "HEAD": get_job, "PUT": put_job, "DELETE": cancel_job},
    RESULT: {"GET": get_result, "HEAD": get_result},
}


def find(path: str) -> tuple[Methods, str] | None:
    """The hot route of a path and the name in it; None where it is none."""
    if not path.startswith(PREFIX):
        return None
    match path[len(PREFIX) :].split("/"):
        case ["models", model, "jobs"]:
            return HOT_ROUTES[MODEL_JOBS], model
        case ["jobs", job_id]:
            return HOT_ROUTES[JOB], job_id
        case ["jobs"]:
            return HOT_ROUTES[JOBS], ""
        case ["jobs", job_id, "result"]:
            return HOT_ROUTES[RESULT], job_id
        case _:
            return None


async def serve(
    services: Services, found: tuple[Methods, str], scope: Scope, receive: Receive, send: Send
) -> None:
    """Answer a request for a hot route; whatever goes wrong is a problem."""
    methods, name = found
    request = Request(scope, receive)
    try:
        endpoint = methods.get(request.method)
        if endpoint is None:
            reply = _refuse_method(request, methods)
        else:
            reply = await endpoint(services, request, name)
    except HeadraceError as error:
        reply = problem(error, request.path)
    except ClientGone:
        return
    except Exception as error:  # noqa: BLE001 - logged; the client is told its id
        reply = unexpected(error, request.path)
    await send_reply(send, reply, request)


def _refuse_method(request: Request, methods: Methods) -> Reply:
    allowed = ", ".join(methods)
    error = MethodNotAllowed(
        f"{request.method[:32]} is not allowed on {request.path[:256]}",
        hint=f"Allowed here: {allowed}.",
    )
    reply = problem(error, request.path)
    return reply._replace(headers=(*reply.headers, (b"allow", allowed.encode())))
