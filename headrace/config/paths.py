"""The folders of the code, and the variable with the URL of the API."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

#: Here and not in the client, which servers do not import.
ENV_URL: Final = "HEADRACE_URL"


def package_root() -> Path:
    """Return the folder that holds the package `headrace`."""
    return Path(__file__).resolve().parents[2]


def name_problem(path: str) -> str:
    """Return why no file can have a path, whatever is on the disk; "" if one can."""
    try:
        os.lstat(path)
    except ValueError as error:
        return str(error)  # a NUL, or half of a surrogate pair
    except OSError as error:
        return "File name too long" if error.errno == errno.ENAMETOOLONG else ""
    return ""


def server_root() -> Path:
    """Return the folder of the packages `api`, `workers` and `handlers`, for PYTHONPATH.

    In a checkout it also holds `headrace`; in a wheel it is inside `headrace`.
    """
    inside = package_root() / "headrace" / "_server"
    return inside if (inside / "workers").is_dir() else package_root()
