"""The versions of packages. Workers report them, and `headrace doctor` compares them."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from headrace._version import __version__

#: Packages that all components should have in the same version. None of them is imported.
PACKAGES: Final = ("celery", "kombu", "redis", "torch")


def running_versions() -> dict[str, str]:
    """Return the versions of Headrace, Python and the installed packages."""
    found = {"headrace": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
