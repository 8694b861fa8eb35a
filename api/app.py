"""The application: FastAPI, with the hot routes in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override

from api import router
from api.build import build
from api.fastapi_bridge import ANSWERED, answer_errors
from api.observability.access_log import (
    AccessLog,
    RequestTrace,
    incoming_request_id,
    observe_request,
)
from api.openapi import document
from api.routes.admin import dead_letters, models, queues, runs
from api.routes.jobs import webhooks
from api.routes.service import documentation, health
from api.services import Services
from headrace import __version__
from headrace.config.model_catalog import Catalog
from headrace.config.settings import Settings

#: What pages of other origins may send, and read of an answer.
_CORS_REQUEST: Final = (
    "Authorization", "X-API-Key", "Content-Type", "Idempotency-Key", "Prefer", "Range", "If-Range",
    "Last-Event-ID", "traceparent", "tracestate", "X-Request-ID",
)  # fmt: skip
_CORS_ANSWER: Final = (
    "Location", "Retry-After", "Idempotency-Replayed", "Preference-Applied", "ETag",
    "Content-Range", "Accept-Ranges", "X-Request-ID",
)  # fmt: skip


class Application(FastAPI):
    """FastAPI behind the hot routes.

    Attributes:
        services: what the routes share, while the application runs.
        settings: what it was made with.
    """

    settings: Settings

    services: Services | None = None
    #: In front of everything, where pages of other origins may call.
    cors: ASGIApp | None = None

    #: Has a line written for each request.
    access_log: AccessLog | None = None

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request_id = incoming_request_id(scope)
            spans = self.services.spans if self.services is not None else None
            if request_id or self.access_log is not None or spans is not None:
                seen = RequestTrace(scope, send, request_id)
                await observe_request(self.answer, seen, receive, self.access_log, spans)
                return
        await self.answer(scope, receive, send)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, of whatever origin."""
        if self.cors is not None and scope["type"] == "http":
            await self.cors(scope, receive, send)
        else:
            await self.serve(scope, receive, send)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request by the hot routes, or by FastAPI's."""
        if scope["type"] == "http" and self.services is not None:
            found = router.find(scope["path"])
            if found is not None:
                await router.serve(self.services, found, scope, receive, send)
                return
            method = scope["method"]
            if method == "HEAD":
                # Whatever can be got has a head. uvicorn sends no body, by its own scope.
                scope = {**scope, "method": "GET"}
            send = _counting(send, self.services, scope, method)
            if not await router.admit(self.services, self.routes, scope, receive, send):
                return
        try:
            await super().__call__(scope, receive, send)
        except Exception:
            # Starlette raises what it has answered again, and uvicorn would reset the connection.
            if not scope.get(ANSWERED):
                raise

    @override
    def openapi(self) -> dict[str, Any]:
        """The description of every route."""
        if self.openapi_schema is None:
            self.openapi_schema = document(self.version)
        return self.openapi_schema


def _counting(send: Send, services: Services, scope: Scope, method: str) -> Send:
    """`send`, which counts the request once its answer begins: by then its route is known."""

    async def counted(message: Message) -> None:
        if message["type"] == "http.response.start":
            services.counters.answered(_template(scope), method, message["status"])
        await send(message)

    return counted


def _template(scope: Scope) -> str:
    """The path of the route that answers, with the names of what stands in it."""
    path = getattr(scope.get("route"), "path", None)
    if isinstance(path, str):
        return path
    is_file = str(scope["path"]).startswith(f"{documentation.STATIC_PATH}/")
    return documentation.STATIC_PATH if is_file else router.NO_ROUTE


def create_app(settings: Settings, catalog: Catalog) -> Application:
    """The API over one Redis and one models file. It connects when it starts.

    Raises:
        ConfigError: the settings name no Redis, or one whose URL cannot be read.
    """

    @asynccontextmanager
    async def lifespan(app: Application) -> AsyncIterator[None]:
        services = build(settings, catalog)
        app.services = app.state.services = services
        await services.start()
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
        docs_url=None,
        redoc_url=None,
    )
    app.settings = settings
    if settings.cors_origins:
        app.cors = CORSMiddleware(
            app.serve,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "HEAD", "POST", "PUT", "DELETE"),
            allow_headers=_CORS_REQUEST,
            expose_headers=_CORS_ANSWER,
        )
    answer_errors(app)
    for module in (models, queues, dead_letters, runs, webhooks, health, documentation):
        app.include_router(module.router)
    app.mount(documentation.STATIC_PATH, documentation.static_files)
    return app
