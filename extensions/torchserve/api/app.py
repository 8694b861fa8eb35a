"""Serves TorchServe's URLs. Each request comes here before it comes to the native API's router.

The port of a request decides which interfaces it may reach. On the inference port, a path of the
native API is left to its router.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, get_args

from api.extension import operations
from api.http.answers import send_reply, send_stream
from api.http.messages import (
    REQUEST_TRACE,
    Answer,
    ClientGone,
    Delegated,
    Receive,
    Reply,
    Request,
    Scope,
    Send,
    StreamingReply,
    segments_of,
)
from api.routes.admission import refuse_foreign_page
from api.routes.paths import Route, Routes
from api.services import Services
from extensions.torchserve.api import tokens
from extensions.torchserve.api.descriptions import Interface, Row, TokenKind
from extensions.torchserve.api.parts import Parts, config_of
from extensions.torchserve.api.replies import (
    REQUEST_ID,
    Kind,
    TorchServeError,
    error_reply,
    fixed_headers,
    new_request_id,
    reply_to,
    unexpected,
)
from extensions.torchserve.api.reporter import TorchServeReporter
from extensions.torchserve.api.table import ANY, in_table, paths_of
from extensions.torchserve.config.launch import CONFIG_NAME, address_of
from extensions.torchserve.config.settings import TorchServeConfig, read_config
from extensions.torchserve.metrics.recorder import TorchServeMetrics, metrics_output
from headrace.errors import HeadraceError, drop_tracebacks

#: The label of requests for unknown paths in metrics, as in api.router.
_NO_ROUTE: Final[Routes[Row]] = Routes("none", {})
#: The first segments of the native API's paths. TorchServe has its own /v2.
_NATIVE: Final = frozenset(one.path.split("/")[1] for one in operations()) - {"", "v1", "v2"}
#: The second segments of OpenAI's paths.
_NATIVE_V1: Final = frozenset(
    one.path.split("/")[2] for one in operations() if one.path.startswith("/v1/")
)
#: What one port serves.
Interfaces = frozenset[Interface]
_ALL: Final[Interfaces] = frozenset(get_args(Interface))


class TorchServe:
    """Serves TorchServe's URLs; the services have its parts."""

    def __init__(self, services: Services) -> None:
        config = config_of(services)
        self._services = services
        self._reporter = services.of(Parts).reporter
        self._ports = interfaces_by_port(config)
        self._headers = fixed_headers(config)
        self._origin = config.cors_allowed_origin

    async def start(self) -> None:
        """Start to report metrics."""
        await self._reporter.start()

    async def stop(self) -> None:
        """Report the last metrics."""
        await self._reporter.stop()

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Answer a request; return False for one of the native API."""
        services = self._services
        server = scope.get("server")
        interfaces = self._ports.get(server[1] if server else None, _ALL)
        segments = stripped(segments_of(scope))
        if "inference" in interfaces:
            if is_native(segments, interfaces):
                return False
            segments = in_table(segments)
        began = time.perf_counter()
        request = Request(scope, receive)
        label, by_method = paths_of(interfaces).find(segments) or _NO_ROUTE
        trace = scope.get(REQUEST_TRACE)
        if trace is not None:
            trace.routed(label, "", request)
        try:
            answer = await self._answer(request, by_method, segments)
        except ClientGone as gone:
            drop_tracebacks(gone)
            return True
        if isinstance(answer, Delegated):
            return False
        headers = (*answer.headers, *self._headers)
        has_id = bool(answer.headers) and answer.headers[0][0] == REQUEST_ID
        if request.drain:  # the 413 for a body that is too large has no further headers
            headers = answer.headers
        elif trace is not None and trace.id:  # the access log adds the id
            headers = headers[1:] if has_id else headers
        elif not has_id:
            headers = (new_request_id(), *headers)
        services.counters.answered(label, request.method, answer.status)
        if isinstance(answer, Reply):
            await send_reply(send, answer._replace(headers=headers), request)
        else:
            await send_stream(send, answer._replace(headers=headers))
        self._reporter.finished(scope, answer.status, began)
        return True

    async def answer(
        self,
        request: Request,
        interface: Interface,
        segments: Sequence[str],
        *,
        checked: TokenKind = "",
    ) -> Answer:
        """Answer a request of another protocol, by its path on the port of an interface.

        Args:
            checked: the kind of token that it has, as `tokens.check` has found.

        Raises:
            ClientGone: the client hung up.
        """
        label, by_method = paths_of(frozenset({interface})).find(segments) or _NO_ROUTE
        answer = await self._answer(request, by_method, segments, checked=checked)
        if isinstance(answer, (Reply, StreamingReply)):
            self._services.counters.answered(label, request.method, answer.status)
        return answer

    async def _answer(
        self,
        request: Request,
        by_method: Mapping[str, Route[Row]],
        segments: Sequence[str],
        *,
        checked: TokenKind = "",
    ) -> Answer:
        route = by_method.get(request.method) or by_method.get(ANY)
        token: TokenKind = next((one.row.token for one in by_method.values()), "")
        if route is None and not token:  # the root of the metrics port has its description only
            return error_reply(
                Kind.NOT_FOUND,
                f"there is nothing at {request.path[:256]} on this port. OPTIONS / lists the paths",
            )
        services = self._services
        try:
            if services.authenticator is None and self._origin != "*" and request.has(b"origin"):
                allowed = (self._origin, *services.settings.cors_origins)
                refuse_foreign_page(request, allowed)
            if token != checked:
                await tokens.check(services, request, token)
            if route is None:
                return _refuse(request, by_method)
            return await route.row.endpoint(services, request, *route.parameters(segments))
        except (TorchServeError, HeadraceError) as error:
            return reply_to(error)
        except ClientGone:
            raise
        except Exception as error:  # noqa: BLE001 - logged; the client receives its id
            return unexpected(error, request.path)


def _refuse(request: Request, by_method: Iterable[str]) -> Reply:
    allowed = ", ".join(method for method in by_method if method != "HEAD")
    message = (
        f"{request.method[:32]} is not allowed on {request.path[:256]}. Allowed here: {allowed}"
    )
    return error_reply(Kind.METHOD_NOT_ALLOWED, message, ((b"allow", allowed.encode()),))


def build(services: Services, file: Path) -> TorchServe:
    """Return the surface of a configuration.

    Raises:
        ConfigError: it cannot be read.
    """
    config = read_config(file)
    metrics = TorchServeMetrics(config, "api", metrics_output(services.settings.log_format))
    reporter = TorchServeReporter(metrics, services.client, services.catalog)
    services.added[Parts] = Parts(config, reporter)
    services.counters.observers.append(reporter)
    if not config.disable_token_authorization:
        services.check_token = tokens.check_native
    return TorchServe(services)


def interfaces_by_port(config: TorchServeConfig) -> dict[int | None, Interfaces]:
    """Return what each port serves; None is the port of a Unix socket."""
    found: dict[int | None, Interfaces] = {}
    for interface in get_args(Interface):
        if interface == "metrics" and not config.enable_metrics_api:
            continue
        key = f"{interface}_address"
        port = address_of(key, getattr(config, key), CONFIG_NAME).port or None
        found[port] = found.get(port, frozenset()) | {interface}
    return found


def stripped(segments: list[str]) -> list[str]:
    """Return the segments of a path without empty ones at its end; the first one stays."""
    while len(segments) > 1 and not segments[-1]:
        segments.pop()
    return segments


def is_native(segments: Sequence[str], interfaces: Interfaces) -> bool:
    """Return whether a path belongs to the native API, even if a model has its name."""
    match segments:
        case ["", "v1", "models", model] if ":" in model or "management" in interfaces:
            # The latter is also a path of OpenAI's API, which has it where TorchServe's management
            # is not served.
            return False
        case ["", "v1", second, *_]:
            return second in _NATIVE_V1
        case ["", "metrics", *_]:
            return "metrics" not in interfaces
        case ["", first, *_]:
            return first in _NATIVE
    return False
