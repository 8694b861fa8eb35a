"""Headrace: asynchronous inference for PyTorch models on a message queue.

Users' handlers and clients import from this package alone. It needs no torch, no Celery and no
web framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.handler import Context, Handler, Response

__version__ = "0.1.0"
__all__ = [
    "AsyncClient",
    "Client",
    "Context",
    "Handler",
    "InputRef",
    "Pipeline",
    "Response",
    "__version__",
]

if TYPE_CHECKING:
    from headrace.client import AsyncClient, Client, InputRef
    from headrace.pipelines import Pipeline
else:

    def __getattr__(name: str) -> object:
        # The clients bring httpx2, which servers and model processes need not wait for.
        if name in ("AsyncClient", "Client", "InputRef"):
            from headrace import client

            return getattr(client, name)
        if name == "Pipeline":
            from headrace import pipelines

            return pipelines.Pipeline
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
