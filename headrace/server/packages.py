"""Checks that the packages of a component are installed, before it starts."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, requires, version
from typing import Final

from packaging.requirements import Requirement

from headrace.errors import ConfigError

#: The extras of pyproject.toml with which `headrace up` runs, apart from its Redis.
SERVER_EXTRAS: Final = ("api", "worker")


def require_extras(command: str, *extras: str) -> None:
    """Raise a ConfigError, which names the extra to install, if a package of these is missing."""
    missing = missing_packages(*extras)
    if missing:
        extra = extras[0] if len(extras) == 1 else "server"
        raise ConfigError(
            f"headrace {command} needs packages that are not installed: {', '.join(missing)}",
            hint=f"pip install 'headrace[{extra}]'; docs/install.md explains the extras",
        )


def missing_packages(*extras: str) -> list[str]:
    """Return the packages of these extras that are not installed, as their distributions' names."""
    try:
        texts = requires("headrace") or []
    except PackageNotFoundError:  # a source tree that is not installed
        return []
    wanted = [Requirement(text) for text in texts]
    return sorted(
        requirement.name
        for requirement in wanted
        if requirement.marker
        and any(requirement.marker.evaluate({"extra": extra}) for extra in extras)
        and not _installed(requirement.name)
    )


def _installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True
