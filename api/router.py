"""The router: finds the operation of a request, admits and notes it, and sends the answer.

It runs before FastAPI, whose middleware and router would take longer than the rest of a submit.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

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
from api.routes.paths import Paths, Route, Routes
from api.routes.table import Operation
from api.services import Services
from headrace.access.api_key import Scope as KeyScope
from headrace.access.audit import NO_KEY, Note, noted
from headrace.errors import (
    BrokerError,
    HeadraceError,
    MethodNotAllowed,
    PathNotFound,
    drop_tracebacks,
)

logger = logging.getLogger(__name__)

App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Of unknown paths, with their label in metrics.
_NO_ROUTES: Final[Routes[Operation]] = Routes("none", {})
_READING: Final = ("GET", "HEAD")
_REFUSED: Final = 400


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


def with_audit(operation: Operation) -> Operation:
    """Return an operation that notes who changes what, if it manages and notes nothing itself.

    An operation is noted after it has succeeded. The log cannot undo it: an entry that Redis does
    not take is a warning in the server's log, with the same members.
    """
    audited = operation.audited
    if audited is None:
        audited = operation.needs is KeyScope.MANAGE and operation.method not in _READING
    if not audited:
        return operation

    async def endpoint(services: Services, request: Request, *parameters: str) -> Answer:
        answer = await operation.endpoint(services, request, *parameters)
        # Who may not manage can only cancel its own jobs.
        noted = request.noted
        succeeded = getattr(answer, "status", _REFUSED) < _REFUSED
        if request.caller.sees_all and succeeded and noted is not None:
            by = request.caller.key_id or NO_KEY
            target = parameters[0] if parameters else request.target
            await _note(services, Note(by, operation.name, target, noted))
        return answer

    return operation._replace(endpoint=endpoint)


async def _note(services: Services, note: Note) -> None:
    members: dict[str, Any] = {"by": note.by, "action": note.action, "target": note.target}
    try:
        await services.queue.call_once(noted(note))
    except BrokerError as error:
        extra = {**members, "detail": note.detail}
        logger.warning("audit entry not written: %s", error.message, extra=extra)
