"""The application: FastAPI as the shell, with the router of all operations before it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override

from api.extension import Surface, add_services, api_parts, operations, surfaces_of
from api.http.messages import incoming_request_id
from api.observability.access_log import AccessLog, observe_request
from api.observability.request_trace import RequestTrace
from api.openapi import document
from api.router import Router
from api.routes.service import documentation
from api.routes.table import answer_headers
from api.services import Part, Services
from headrace import __version__
from headrace.config.model.catalog import Catalog, ModelConfig
from headrace.config.settings import Settings
from headrace.errors import HeadraceError
from headrace.registry.model import DeclaredModels

#: The headers that any operation reads, besides those that the table declares.
_READ_BY_ALL: Final = (
    "Authorization", "X-API-Key", "Content-Type", "traceparent", "tracestate", "X-Request-ID",
)  # fmt: skip


class Cors(CORSMiddleware):
    """Answers the preflight requests of pages: they may send the headers of table and models."""

    def __init__(self, app: ASGIApp, origins: Sequence[str], catalog: Catalog) -> None:
        table = operations()
        declared = {header.name for operation in table for header in operation.headers}
        answered = {header.name for operation in table for header in answer_headers(operation)}
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=sorted({operation.method for operation in table} | {"HEAD"}),
            allow_headers=(*_READ_BY_ALL, *declared),
            expose_headers=sorted({*answered, "Retry-After", "X-Request-ID"}),
        )
        self._catalog = catalog
        self._fixed = frozenset(self.allow_headers)
        # Clients of an extension may add headers that no operation reads.
        self._prefixes = tuple(prefix for part in api_parts() for prefix in part.header_prefixes)

    @override
    def preflight_response(self, request_headers: Headers) -> Response:
        asked = request_headers.get("access-control-request-headers", "").lower().split(",")
        of_clients = {name.strip() for name in asked if name.strip().startswith(self._prefixes)}
        # The models may change while the server runs.
        of_models = {name for model in self._catalog.served for name in model.headers}
        self.allow_headers = sorted(self._fixed | of_models | of_clients)
        self.preflight_headers["Access-Control-Allow-Headers"] = ", ".join(self.allow_headers)
        return super().preflight_response(request_headers)


class Application(FastAPI):
    """FastAPI, which serves the mounted files, behind the router.

    Attributes:
        surfaces: those of extensions, which see each request before the router.
        cors: handles requests of pages of other origins; None if none may call.
        access_log: writes a line for each request; None writes none.
        refusal: why it has not started; the process reports it.
    """

    settings: Settings
    operations: Router
    catalog: Catalog
    services: Services | None = None
    surfaces: Sequence[Surface] = ()
    cors: ASGIApp | None = None
    access_log: AccessLog | None = None
    refusal: HeadraceError | None = None
    _described: dict[bool, tuple[list[ModelConfig], dict[str, Any]]]

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.serve(scope, receive, self._without_refusal(send))
            return
        answer = self.serve if self.cors is None else self.cors
        request_id = incoming_request_id(scope)
        spans = self.services.spans if self.services is not None else None
        if request_id or self.access_log is not None or spans is not None:
            trace = RequestTrace(scope, send, request_id)
            await observe_request(answer, trace, receive, self.access_log, spans)
        else:
            await answer(scope, receive, send)

    def _without_refusal(self, send: Send) -> Send:
        """Return a `send` that leaves the traceback of `refusal` out of the log."""

        async def sent(message: Message) -> None:
            if message["type"] == "lifespan.startup.failed" and self.refusal is not None:
                message = {**message, "message": ""}
            await send(message)

        return sent

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request by the router; FastAPI handles everything else."""
        services = self.services
        if scope["type"] != "http" or services is None:
            await super().__call__(scope, receive, send)
            return
        for surface in self.surfaces:
            if await surface.serve(scope, receive, send):
                return
        await self.operations.serve(services, scope, receive, send)

    def describe(self, *, with_models: bool) -> dict[str, Any]:
        """Return the description, with the models that declare inputs or without."""
        models = self.catalog.served if with_models else []
        known = self._described.get(with_models)
        if known is None or known[0] != models:
            # The models may change while the server runs.
            known = self._described[with_models] = (models, document(self.version, models))
        return known[1]


def create_app(
    settings: Settings, catalog: Catalog, declared: DeclaredModels | None = None
) -> Application:
    """Build the application for a Redis and a models file. It connects when it starts.

    With what the models file declares, the catalog follows the registry. The start raises
    ConfigError if redis_url is not valid, or a surface cannot be built.
    """

    @asynccontextmanager
    async def lifespan(app: Application) -> AsyncIterator[None]:
        try:
            services = Services(settings, catalog, app.describe, declared)
            add_services(services)
            app.services = services
            app.surfaces = surfaces_of(services)
            services.parts += [Part(surface.stop, surface.start) for surface in app.surfaces]
            await services.start()
        except HeadraceError as error:
            app.services, app.refusal = None, error.kept()
            raise
        try:
            yield
        finally:
            await services.stop()
            app.services = None

    app = Application(
        title="Headrace",
        version=__version__,
        lifespan=lifespan,
        redirect_slashes=False,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    app.settings = settings
    app.catalog = catalog
    app._described = {}
    app.operations = Router(operations(), super(Application, app).__call__)
    if settings.cors_origins:
        app.cors = Cors(app.serve, settings.cors_origins, catalog)
    app.mount(documentation.STATIC_PATH, documentation.static_files)
    return app
