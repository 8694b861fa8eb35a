"""Headrace: asynchronous inference for PyTorch models on a message queue.

Users' handlers and clients import from this package alone. It needs no torch, no Celery and no
web framework.
"""

from headrace.handler import Context, Handler, Response

__version__ = "0.1.0"
__all__ = ["Context", "Handler", "Response", "__version__"]
