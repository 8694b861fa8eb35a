"""The archives, built once by TorchServe's own archiver, and both servers."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.extensions.torchserve.compat import servers
from tests.extensions.torchserve.compat.archives import ARCHIVES, NOOP_2, build, build_broken


@pytest.fixture(scope="session")
def _real() -> None:
    reason = servers.missing()
    if reason:
        assert "CI" not in os.environ, reason
        pytest.skip(f"tests/extensions/torchserve/compat needs the real TorchServe: {reason}")


@pytest.fixture(scope="session")
def store(_real: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store with all archives."""
    folder = tmp_path_factory.mktemp("model-store")
    with ThreadPoolExecutor(3) as pool:
        archives = [*ARCHIVES.values(), NOOP_2]
        list(pool.map(partial(build, store=folder, archiver=servers.ARCHIVER), archives))
    build_broken(folder)
    return folder
