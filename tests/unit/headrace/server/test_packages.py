"""Which packages of an extra are not installed."""

from __future__ import annotations

from importlib import metadata

import pytest

from headrace.errors import ConfigError
from headrace.server import packages


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name in ("celery", "uvicorn"):
            raise metadata.PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(packages, "version", version)
    with pytest.raises(ConfigError, match=r"headrace up needs .*: celery, uvicorn") as found:
        packages.require_extras("up", "api", "worker")
    assert "headrace[server]" in found.value.hint
    with pytest.raises(ConfigError, match=r"needs .*: uvicorn") as found:
        packages.require_extras("api", "api")
    assert "headrace[api]" in found.value.hint


def test_nothing_is_missing_in_a_complete_installation() -> None:
    assert packages.missing_packages("api", "worker") == []
    packages.require_extras("up", "api", "worker")
