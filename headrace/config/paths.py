"""The folders of the code, and the variable with the URL of the API."""

from __future__ import annotations

from pathlib import Path
from typing import Final

#: Here and not in the client, which servers do not import.
ENV_URL: Final = "HEADRACE_URL"


def package_root() -> Path:
    """Return the folder that holds the package `headrace`."""
    return Path(__file__).resolve().parents[2]


def server_root() -> Path:
    """Return the folder of the packages `api`, `workers` and `handlers`, for PYTHONPATH.

    In a checkout it also holds `headrace`; in a wheel it is inside `headrace`.
    """
    inside = package_root() / "headrace" / "_server"
    return inside if (inside / "workers").is_dir() else package_root()
