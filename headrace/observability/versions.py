"""Which versions of what run here: told by workers, compared by `headrace doctor`."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from headrace._version import __version__

#: What parts of one deployment have in common. None of them is imported.
PACKAGES: Final = ("celery", "kombu", "redis", "torch")


def running() -> dict[str, str]:
    """The versions of Headrace, of Python, and of those packages that are installed."""
    found = {"headrace": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
