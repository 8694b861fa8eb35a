"""gRPC servers of extensions, on grpcio's asyncio. Imported only where an extension has a port.

Start with server.py. May import all of the API below its extensions.
"""

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
