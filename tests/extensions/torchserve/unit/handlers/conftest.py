"""An archive changes the folder, the path, the environment and the modules of its process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ts.metrics.emission import MetricRow, send_rows_to


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Here that process is the tests' own. The modules of `ts` stay, as test files hold them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    environ = dict(os.environ)
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        origin = getattr(sys.modules[name], "__file__", None) or ""
        if origin.startswith(str(tmp_path)):
            del sys.modules[name]
    os.environ.clear()
    os.environ.update(environ)


@pytest.fixture
def rows() -> Iterator[list[MetricRow]]:
    """The rows that the metrics of handlers write."""
    found: list[MetricRow] = []
    send_rows_to(found.append)
    yield found
    send_rows_to(None)
