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
    #: The module of each name, imported on use: the clients import httpx2, the rest msgspec.
    _MODULES = {
        **dict.fromkeys(("AsyncClient", "Client", "InputRef"), "client"),
        **dict.fromkeys(("Command", "Extension"), "config.extensions"),
        **dict.fromkeys(("Budget", "Generator", "Piece"), "generator"),
        **dict.fromkeys(("Context", "Handler", "Response"), "handler"),
        "Pipeline": "config.model.pipelines",
    }

    def __getattr__(name: str) -> object:
        if name == "errors":
            return importlib.import_module("headrace.errors")
        if name in _MODULES:
            return getattr(importlib.import_module(f"headrace.{_MODULES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
