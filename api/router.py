"""The router: finds the operation of a request, admits the request, and sends the answer.

It runs before FastAPI, whose middleware and router would take longer than the rest of a submit.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple

from api.auth.authenticator import Needs
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
from api.routes.table import Endpoint, Operation
from api.services import Services
from headrace.errors import HeadraceError, MethodNotAllowed, PathNotFound, drop_tracebacks

App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: The label of requests for unknown paths in metrics.
NO_ROUTE: Final = "none"
_PARAMETER: Final = re.compile(r"\{(\w+)(:path)?\}")


class Route(NamedTuple):
    """One operation as the router serves it.

    Attributes:
        needs: what it requires of its caller.
        label: the template of its path, for metrics and logs.
        positions: which segments of the path are its parameters.
        rest: the first segment of a `:path` parameter; 0 for none.
    """

    endpoint: Endpoint
    needs: Needs
    label: str
    positions: tuple[int, ...]
    rest: int

    def parameters(self, segments: Sequence[str]) -> Sequence[str]:
        """Return the values of the path's parameters."""
        if not self.rest:
            return [segments[position] for position in self.positions]
        values = [segments[position] for position in self.positions]
        return [*values, "/".join(segments[self.rest :])]


class Routes(NamedTuple):
    """All operations on one path, by method."""

    label: str
    by_method: dict[str, Route]


_UNKNOWN_PATH: Final = Routes(NO_ROUTE, {})


class _Node:
    """One segment in the tree of all paths.

    Attributes:
        parameter: the next segment if it may be any text.
        may_be_empty: this text may be empty.
        routes: the operations whose path ends here; None for none.
    """

    __slots__ = ("literals", "may_be_empty", "parameter", "routes")

    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.may_be_empty = False
        self.routes: Routes | None = None

    def inherit(self) -> None:
        """Let every literal segment also be a value of the parameter at its level."""
        for child in self.literals.values():
            if self.parameter is not None:
                child.add(self.parameter)
            child.inherit()
        if self.parameter is not None and self.parameter is not self:
            self.parameter.inherit()

    def add(self, other: _Node) -> None:
        """Add the routes below another node; the routes of this node take precedence."""
        if other.routes is not None:
            own = self.routes or other.routes
            self.routes = Routes(own.label, {**other.routes.by_method, **own.by_method})
        for text, child in other.literals.items():
            if text in self.literals:
                self.literals[text].add(child)
            else:
                self.literals[text] = child
        if self.parameter is None:
            self.parameter, self.may_be_empty = other.parameter, other.may_be_empty


class Router:
    """Serves every HTTP request; `app` answers what an operation delegates to it."""

    def __init__(self, table: Iterable[Operation], app: App) -> None:
        self._app = app
        self._root = _Node()
        for operation in table:
            self._insert(operation)
        self._root.inherit()

    def find(self, segments: Sequence[str]) -> Routes:
        """Return the operations on a path, given its segments; none for an unknown path."""
        node = self._root
        for segment in segments:
            following = node.literals.get(segment)
            if following is None and (segment or node.may_be_empty):
                following = node.parameter
            if following is None:
                return _UNKNOWN_PATH
            node = following
        return node.routes or _UNKNOWN_PATH

    async def serve(self, services: Services, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; an error is a problem, or has the form of an extension."""
        request = Request(scope, receive)
        segments = segments_of(scope)
        label, by_method = self.find(segments)
        route = by_method.get(request.method)
        parameters: Sequence[str] = ()
        if route is not None:
            label, parameters = route.label, route.parameters(segments)
        _record_route(scope, request, label if by_method else "", parameters)
        try:
            await admit(services, request, None if route is None else route.needs)
            if route is None:
                reply: Answer = _refuse(request, by_method)
            else:
                reply = await route.endpoint(services, request, *parameters)
        except HeadraceError as error:
            reply = _error_reply(error, request.path)
        except ClientGone as gone:
            drop_tracebacks(gone)
            return
        except Exception as error:  # noqa: BLE001 - logged; the client receives its id
            reply = _unexpected_reply(error, request.path)
        if isinstance(reply, Delegated):
            await self._app(scope, receive, _counting(send, services, label, request.method))
            return
        services.counters.answered(label, request.method, reply.status)
        if isinstance(reply, Reply):
            await send_reply(send, reply, request)
        else:
            await send_stream(send, reply)

    def _insert(self, operation: Operation) -> None:
        node, positions, rest = self._root, [], 0
        for position, segment in enumerate(operation.path.split("/")):
            parameter = _PARAMETER.fullmatch(segment)
            if parameter is None:
                node = node.literals.setdefault(segment, _Node())
                continue
            following = node.parameter or _Node()
            node.parameter = following
            # A template may have a parameter that nothing describes, such as a static file.
            known = path_parameters().get(parameter[1])
            node.may_be_empty = bool(parameter[2]) or (known is not None and known.may_be_empty)
            node = following
            if parameter[2]:
                # The rest of the path: any number of segments.
                node.parameter, node.may_be_empty, rest = node, True, position
            else:
                positions.append(position)
        # The static files have one label.
        label = operation.path.removesuffix("/{file:path}")
        route = Route(operation.endpoint, operation.needs, label, tuple(positions), rest)
        if node.routes is None:
            node.routes = Routes(label, {})
        node.routes.by_method[operation.method] = route
        if operation.method == "GET":
            node.routes.by_method["HEAD"] = route


def _record_route(scope: Scope, request: Request, label: str, parameters: Sequence[str]) -> None:
    """Add the route to the trace of the request, for logs and spans."""
    trace = scope.get(REQUEST_TRACE)
    if trace is not None:
        trace.routed(label, parameters[0] if parameters else "", request)


def _error_reply(error: HeadraceError, path: str) -> Reply:
    return _reply_of_extension(error, path) or problem(error, path)


def _unexpected_reply(error: Exception, path: str) -> Reply:
    failure, error_id = internal_error(error, path)
    return _reply_of_extension(failure, path) or problem(failure, path, id=error_id)


def _reply_of_extension(error: HeadraceError, path: str) -> Reply | None:
    """Return an error in the form of the extension to which a path belongs; None for no such."""
    for part in api_parts():
        if part.error_reply is not None and (reply := part.error_reply(path, error)) is not None:
            return reply
    return None


def _refuse(request: Request, by_method: dict[str, Route]) -> Reply:
    """Return a 405 with the methods of the path; for an unknown path raise PathNotFound."""
    path = request.path
    if not by_method:
        hint = hint_of(request.method, path)
        hint = hint or "See /docs, or docs/api.md, for the routes."
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
