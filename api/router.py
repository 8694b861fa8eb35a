"""The router: finds the operation of a request, admits the request, and sends the answer.

It runs before FastAPI, whose middleware and router would take longer than the rest of a submit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from api.extension import api_parts, hint_of, path_parameters
from api.http.answers import send_reply, send_stream
from api.http.messages import (
    REQUEST_TRACE,
    Answer,
    ClientGone,
    Delegated,
    Message,
    Receive,
    Reply,
    Request,
    Scope,
    Send,
    segments_of,
)
from api.http.problems import internal_error, problem
from api.routes.admission import admit
from api.routes.audited import with_audit
from api.routes.paths import Paths, Route, Routes
from api.routes.table import Operation
from api.services import Services
from headrace.errors import HeadraceError, MethodNotAllowed, PathNotFound, drop_tracebacks

App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Of unknown paths, with their label in metrics.
_NO_ROUTES: Final[Routes[Operation]] = Routes("none", {})


class Router:
    """Serves every HTTP request; `app` answers what an operation delegates to it."""

    def __init__(self, table: Iterable[Operation], app: App) -> None:
        self._app = app
        known = path_parameters().items()
        self._paths: Paths[Operation] = Paths({name for name, one in known if one.may_be_empty})
        for operation in map(with_audit, table):
            # The static files have one label.
            label = operation.path.removesuffix("/{file:path}")
            for method in ("GET", "HEAD") if operation.method == "GET" else (operation.method,):
                self._paths.add(method, operation.path, operation, label)
        self._paths.inherit()

    async def serve(self, services: Services, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; an error is a problem, or has the form of an extension."""
        request = Request(scope, receive)
        segments = segments_of(scope)
        label, by_method = self._paths.find(segments) or _NO_ROUTES
        route = by_method.get(request.method)
        parameters: Sequence[str] = ()
        if route is not None:
            label, parameters = route.label, route.parameters(segments)
        trace = scope.get(REQUEST_TRACE)
        if trace is not None:
            shown = label if by_method else ""
            trace.routed(shown, parameters[0] if parameters else "", request)
        try:
            await admit(services, request, None if route is None else route.row.needs)
            if route is None:
                reply: Answer = _refuse(request, by_method)
            else:
                reply = await route.row.endpoint(services, request, *parameters)
        except HeadraceError as error:
            reply = _error_reply(error, request.path)
        except ClientGone as gone:
            drop_tracebacks(gone)
            return
        except Exception as error:  # noqa: BLE001 - logged; the client receives its id
            failure, error_id = internal_error(error, request.path)
            reply = _error_reply(failure, request.path, id=error_id)
        if isinstance(reply, Delegated):
            await self._app(scope, receive, _counting(send, services, label, request.method))
            return
        services.counters.answered(label, request.method, reply.status)
        if isinstance(reply, Reply):
            await send_reply(send, reply, request)
        else:
            await send_stream(send, reply)


def _error_reply(error: HeadraceError, path: str, **members: str) -> Reply:
    """Return an error in the form of the extension to which a path belongs, or as a problem."""
    for part in api_parts():
        if part.error_reply is not None and (reply := part.error_reply(path, error)) is not None:
            return reply
    return problem(error, path, **members)


def _refuse(request: Request, by_method: dict[str, Route[Operation]]) -> Reply:
    """Return a 405 with the methods of the path; for an unknown path raise PathNotFound."""
    path = request.path
    if not by_method:
        hint = hint_of(request.method, path) or "See /docs, or docs/api.md, for the routes."
        raise PathNotFound(f"there is nothing at {path[:256]}", hint=hint)
    allowed = ", ".join(by_method)
    error = MethodNotAllowed(
        f"{request.method[:32]} is not allowed on {path[:256]}", hint=f"Allowed here: {allowed}."
    )
    reply = _error_reply(error, path)
    return reply._replace(headers=(*reply.headers, (b"allow", allowed.encode())))


def _counting(send: Send, services: Services, label: str, method: str) -> Send:
    """Return a `send` that counts the request when its answer begins."""

    async def counted(message: Message) -> None:
        if message["type"] == "http.response.start":
            services.counters.answered(label, method, message["status"])
        await send(message)

    return counted
