from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def imports_are_undone() -> Iterator[None]:
    """Loading a handler changes the import system; its own process has nobody else to mind."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        # numpy's extension cannot be loaded twice by one process; installed packages may stay.
        if "site-packages" not in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]
