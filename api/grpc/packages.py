"""Whether the packages that gRPC needs are installed: the extra `grpc`."""

from __future__ import annotations

import importlib.util
from typing import Final

from headrace.errors import ConfigError

_NEEDED: Final = {
    "grpc": "grpcio", "grpc_health": "grpcio-health-checking",
    "grpc_reflection": "grpcio-reflection",
}  # fmt: skip


def need_grpc(setting: str) -> None:
    """Raise ConfigError if a package is missing that this setting needs."""
    missing = [name for module, name in _NEEDED.items() if not importlib.util.find_spec(module)]
    if missing:
        raise ConfigError(
            f"{setting} is set, but {', '.join(missing)} is not installed",
            hint="Run `pip install headrace[grpc]`, or remove the setting.",
        )
