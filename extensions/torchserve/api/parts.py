"""What TorchServe's endpoints share in one process, besides the services."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from api.services import Services
from extensions.torchserve.api.reporter import TorchServeReporter
from extensions.torchserve.config.settings import TorchServeConfig


@dataclass(frozen=True)
class Parts:
    """What the endpoints here share; `tickets` counts requests by model for `useJobTicket`."""

    config: TorchServeConfig
    reporter: TorchServeReporter
    tickets: Counter[str] = field(default_factory=Counter)


def config_of(services: Services) -> TorchServeConfig:
    """Return the configuration."""
    return services.of(Parts).config
