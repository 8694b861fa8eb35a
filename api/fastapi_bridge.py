"""Between FastAPI's routes and ours: replies, services, and errors as problems."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match, Mount

from api.http.messages import CALLER, ClientGone, Reply
from api.http.problems import problem, unexpected
from api.services import Services
from headrace.access.api_key import EVERYBODY, Caller
from headrace.errors import HeadraceError, InvalidRequest, MethodNotAllowed, PathNotFound

_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
#: Where TorchServe's clients post their inputs.
_TORCHSERVE: Final = ("/predictions/", "/explanations/", "/invocations", "/wfpredict/")
#: Set in the scope of a request whose unforeseen error was logged and answered.
ANSWERED: Final = "headrace.answered"


def services_of(request: Request) -> Services:
    """What the routes share, as the application's start left it."""
    services: Services = request.app.state.services
    return services


def caller_of(request: Request) -> Caller:
    """On whose behalf a request is."""
    caller: Caller = request.scope.get(CALLER, EVERYBODY)
    return caller


def json_response(document: Any, status: int = 200) -> Response:
    """A document that no cache may keep."""
    body = msgspec.json.encode(document)
    headers = {"cache-control": "no-store"}
    return Response(body, status, headers, media_type="application/json")


def response_of(reply: Reply) -> Response:
    """A reply of the hot routes' kind, for FastAPI."""
    response = Response(reply.body, reply.status, media_type=reply.content_type.decode())
    for name, value in reply.headers:
        response.headers[name.decode()] = value.decode()
    return response


def answer_errors(app: FastAPI) -> None:
    """Have every error of FastAPI's routes answered as a problem."""
    app.add_exception_handler(HeadraceError, _on_ours)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_unexpected)


async def _on_ours(request: Request, error: Exception) -> Response:
    if not isinstance(error, HeadraceError):
        return await _on_unexpected(request, error)
    return response_of(problem(error, request.url.path))


async def _on_invalid(request: Request, error: Exception) -> Response:
    found = error.errors() if isinstance(error, RequestValidationError) else []
    text = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in found[:5])
    return response_of(problem(InvalidRequest(text or str(error)), request.url.path))


async def _on_http(request: Request, error: Exception) -> Response:
    path = request.url.path
    if not isinstance(error, HTTPException):
        return await _on_unexpected(request, error)
    headers = dict(error.headers or {})
    ours: HeadraceError
    if error.status_code == 405:
        allowed = headers["Allow"] = ", ".join(_allowed(request))
        ours = MethodNotAllowed(
            f"{request.method[:32]} is not allowed on {path[:256]}",
            hint=f"Allowed here: {allowed}.",
        )
    elif error.status_code == 404:
        hint = "See /docs, or docs/api.md, for the routes."
        if path.startswith(_TORCHSERVE):
            hint = "Here it is POST /api/v1/models/{model}/jobs?wait=30; see docs/torchserve.md."
        ours = PathNotFound(f"there is nothing at {path[:256]}", hint=hint)
    else:
        ours = InvalidRequest(str(error.detail))
    response = response_of(problem(ours, path))
    response.headers.update(headers)
    return response


def _allowed(request: Request) -> list[str]:
    """The methods that the path has, on whichever routes; Starlette names those of the first."""
    # Files are mounted as one, which takes any method and can only be got.
    routes = [route for route in request.app.router.routes if not isinstance(route, Mount)]
    found = []
    for method in _METHODS:
        scope = {**request.scope, "method": method}
        if any(route.matches(scope)[0] is Match.FULL for route in routes):
            found.append(method)
    # Whatever can be got has a head.
    return [*found, "HEAD"] if "GET" in found else found or ["GET", "HEAD"]


async def _on_unexpected(request: Request, error: Exception) -> Response:
    if isinstance(error, ClientGone):
        request.scope[ANSWERED] = True
        return Response(status_code=499)  # which nobody reads
    request.scope[ANSWERED] = True
    return response_of(unexpected(error, request.url.path))
