"""Headrace: asynchronous inference for PyTorch models on a message queue.

Users' handlers and clients import only from this package. It needs no torch, no Celery and no web
framework.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from headrace._version import __version__

__all__ = [
    "AsyncClient",
    "Budget",
    "Client",
    "Command",
    "Context",
    "Extension",
    "Generator",
    "Handler",
    "InputRef",
    "Piece",
    "Pipeline",
    "Response",
    "__version__",
]

if TYPE_CHECKING:
    from headrace.client import AsyncClient, Client, InputRef
    from headrace.config.extensions import Command, Extension
    from headrace.config.model.pipelines import Pipeline
    from headrace.generator import Budget, Generator, Piece
    from headrace.handler import Context, Handler, Response
else:

    def __getattr__(name: str) -> object:
        # Imported on use: the clients import httpx2, the rest msgspec.
        if name in ("AsyncClient", "Client", "InputRef"):
            from headrace import client

            return getattr(client, name)
        if name in ("Context", "Handler", "Response"):
            from headrace import handler

            return getattr(handler, name)
        if name in ("Budget", "Generator", "Piece"):
            from headrace import generator

            return getattr(generator, name)
        if name in ("Command", "Extension"):
            from headrace.config import extensions

            return getattr(extensions, name)
        if name == "Pipeline":
            from headrace.config.model import pipelines

            return pipelines.Pipeline
        if name == "errors":
            return importlib.import_module("headrace.errors")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
