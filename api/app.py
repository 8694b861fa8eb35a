"""The application: FastAPI, with the hot routes in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from api import front
from api.openapi import document
from api.replies import ANSWERED, answer_errors
from api.routes import documentation, health, letters, metrics, models, queues, runs
from api.services import Services, build
from headrace import __version__
from headrace.catalog import Catalog
from headrace.settings import Settings


class Application(FastAPI):
    """FastAPI behind the hot routes.

    Attributes:
        services: what the routes share, while the application runs.
    """

    services: Services | None = None

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self.services is not None:
            found = front.find(scope["path"])
            if found is not None:
                await front.serve(self.services, found, scope, receive, send)
                return
            if scope["method"] == "HEAD":
                # Whatever can be got has a head. uvicorn sends no body, by its own scope.
                scope = {**scope, "method": "GET"}
            if not await front.admit(self.services, self.routes, scope, receive, send):
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
    answer_errors(app)
    for module in (models, queues, letters, runs, health, metrics, documentation):
        app.include_router(module.router)
    app.mount(documentation.STATIC_PATH, documentation.static_files)
    return app
