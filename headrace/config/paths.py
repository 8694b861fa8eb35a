"""Where things are: the servers' code, and by which variable clients know the API."""

from __future__ import annotations

from pathlib import Path
from typing import Final

#: Beside the SDK, as who starts servers needs this name of it and nothing else.
ENV_URL: Final = "HEADRACE_URL"


def server_root() -> Path:
    """The folder that holds the packages `api`, `workers` and `handlers`, for a PYTHONPATH.

    They lie beside `headrace` in a checkout, and inside it in a wheel.
    """
    package = Path(__file__).resolve().parents[1]
    inside = package / "_server"
    return inside if inside.is_dir() else package.parent
