"""What the modules of TorchServe's interfaces give to app.py for a request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from api.http.messages import Answer, Request
from api.services import Services
from extensions.torchserve.api.reporter import TorchServeReporter
from extensions.torchserve.config.settings import TorchServeConfig

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


@dataclass(frozen=True)
class Parts:
    """What the endpoints here share, besides the services.

    Attributes:
        reporter: takes the metrics.
        tickets: the requests that this process has taken for each model that takes one only if a
            model process is idle.
    """

    config: TorchServeConfig
    reporter: TorchServeReporter
    tickets: Counter[str] = field(default_factory=Counter)


def parts_of(services: Services) -> Parts:
    """Return the shared parts; the endpoints here run only where they are."""
    return services.of(Parts)


def config_of(services: Services) -> TorchServeConfig:
    """Return the configuration."""
    return parts_of(services).config
