"""Serves TorchServe's URLs. Each request comes here before it comes to the native API's router.

The port of a request decides which interfaces it may reach. On the inference port, a path of the
native API is left to its router.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

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
    segments_of,
)
from api.routes.admission import refuse_foreign_page
from api.services import Services
from extensions.torchserve.api import descriptions, metrics, tokens
from extensions.torchserve.api.endpoints import Found, Interfaces, Parts, config_of, parts_of
from extensions.torchserve.api.errors import (
    NOT_FOUND,
    TorchServeError,
    error_reply,
    reply_to,
    unexpected,
)
from extensions.torchserve.api.management import endpoints
from extensions.torchserve.api.predictions import predict
from extensions.torchserve.api.replies import REQUEST_ID, fixed_headers, new_request_id
from extensions.torchserve.api.reporter import TorchServeReporter
from extensions.torchserve.config.settings import TorchServeConfig, read_config
from extensions.torchserve.metrics.recorder import TorchServeMetrics, metrics_output
from headrace.errors import HeadraceError, drop_tracebacks

#: The label of requests for unknown paths in metrics, as in api.router.
_NO_ROUTE: Final = "none"
#: The first segments of the native API's paths.
_NATIVE: Final = frozenset(one.path.split("/")[1] for one in operations()) - {"", "v1"}
#: The second segments of OpenAI's paths.
_NATIVE_V1: Final = frozenset(
    one.path.split("/")[2] for one in operations() if one.path.startswith("/v1/")
)
_METRICS: Final = "metrics"
_HTTPS_PORT: Final = 443
_HTTP_PORT: Final = 80


_ALL: Final = Interfaces(inference=True, management=True, metrics=True)


class TorchServe:
    """Serves TorchServe's URLs.

    Args:
        services: the services, which have its parts.
    """

    def __init__(self, services: Services) -> None:
        config = config_of(services)
        self._services = services
        self._reporter = parts_of(services).reporter
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
        interfaces = self._interfaces(scope)
        segments = stripped(segments_of(scope))
        if interfaces.inference and is_native(segments, interfaces):
            return False
        began = time.perf_counter()
        request = Request(scope, receive)
        found = find(interfaces, request.method, segments)
        trace = scope.get(REQUEST_TRACE)
        if trace is not None:
            trace.routed(_NO_ROUTE if found is None else found.label, "", request)
        try:
            answer = await self._answer(services, request, found)
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
        label = _NO_ROUTE if found is None else found.label
        services.counters.answered(label, request.method, answer.status)
        if isinstance(answer, Reply):
            await send_reply(send, answer._replace(headers=headers), request)
        else:
            await send_stream(send, answer._replace(headers=headers))
        self._reporter.finished(scope, answer.status, began)
        return True

    async def _answer(self, services: Services, request: Request, found: Found | None) -> Answer:
        if found is None:
            return error_reply(
                404,
                NOT_FOUND,
                f"there is nothing at {request.path[:256]} on this port. OPTIONS / lists the paths",
            )
        try:
            if services.authenticator is None and self._origin != "*" and request.has(b"origin"):
                allowed = (self._origin, *services.settings.cors_origins)
                refuse_foreign_page(request, allowed)
            if found.token:
                await tokens.check(services, request, found.token)
            return await found.run(services, request)
        except (TorchServeError, HeadraceError) as error:
            return reply_to(error)
        except ClientGone:
            raise
        except Exception as error:  # noqa: BLE001 - logged; the client receives its id
            return unexpected(error, request.path)

    def _interfaces(self, scope: Scope) -> Interfaces:
        server = scope.get("server")
        return self._ports.get(server[1] if server else None, _ALL)


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
    for address, interface in (
        (config.inference_address, "inference"),
        (config.management_address, "management"),
        (config.metrics_address, "metrics"),
    ):
        if interface == "metrics" and not config.enable_metrics_api:
            continue
        port = port_of(address)
        found[port] = found.get(port, Interfaces())._replace(**{interface: True})
    return found


def port_of(address: str) -> int | None:
    """Return the port of an address of the configuration; None for a Unix socket."""
    url = urlsplit(address)
    if url.scheme == "unix":
        return None
    return url.port or (_HTTPS_PORT if url.scheme == "https" else _HTTP_PORT)


def stripped(segments: list[str]) -> list[str]:
    """Return the segments of a path without the first one, and without empty ones at its end."""
    del segments[0]
    while segments and not segments[-1]:
        segments.pop()
    return segments


def is_native(segments: Sequence[str], interfaces: Interfaces) -> bool:
    """Return whether a path belongs to the native API, even if a model has its name."""
    if not segments:
        return False
    first = segments[0]
    if first == "v1":
        known = len(segments) > 1 and segments[1] in _NATIVE_V1
        return known and not _is_kserve(segments, interfaces)
    if first == _METRICS:
        return not interfaces.metrics
    return first in _NATIVE


def _is_kserve(segments: Sequence[str], interfaces: Interfaces) -> bool:
    """Return whether a path is `/v1/models/{model}:predict`, or shows whether a model is ready.

    The latter is also a path of OpenAI's API, which has it where TorchServe's management is not
    served.
    """
    if len(segments) != len(("v1", "models", "model")) or segments[1] != "models":
        return False
    return ":" in segments[2] or interfaces.management


def find(interfaces: Interfaces, method: str, segments: Sequence[str]) -> Found | None:
    """Return the endpoint of a request; None for an unknown path."""
    found = descriptions.find(interfaces, method, segments)
    if found is None and interfaces.metrics and segments and segments[0] == _METRICS:
        found = metrics.find(method, segments)
    if found is None and interfaces.inference:
        found = predict.find(method, segments)
    if found is None and interfaces.management:
        found = endpoints.find(method, segments)
    return found
