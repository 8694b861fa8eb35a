"""What the modules of TorchServe's interfaces give to app.py for a request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple

from api.http.messages import Answer, Request
from api.services import Services
from headrace.torchserve.config import TorchServeConfig

Endpoint = Callable[[Services, Request], Awaitable[Answer]]
#: The token that a request needs; "" for none.
TokenKind = Literal["inference", "management", ""]


class Interfaces(NamedTuple):
    """What one port serves."""

    inference: bool = False
    management: bool = False
    metrics: bool = False


class Found(NamedTuple):
    """The endpoint of a request.

    Attributes:
        run: answers the request. It may raise a TorchServeError or a HeadraceError.
        label: the template of its path, for metrics and logs.
        token: the token that the request needs.
    """

    run: Endpoint
    label: str
    token: TokenKind


def config_of(services: Services) -> TorchServeConfig:
    """Return the configuration; the endpoints here run only where there is one."""
    config = services.torchserve
    assert config is not None  # noqa: S101 - app.py is not there without it
    return config
