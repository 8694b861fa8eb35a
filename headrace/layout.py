"""Where the servers' code lies: beside `headrace` in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path


def server_root() -> Path:
    """The folder that holds the packages `api`, `workers` and `handlers`, for a PYTHONPATH."""
    package = Path(__file__).resolve().parent
    inside = package / "_server"
    return inside if inside.is_dir() else package.parent
