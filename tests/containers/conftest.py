"""The images of this checkout, built once, and the projects that several modules run."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.harness.deploy import engine
from tests.harness.servers.up import ROOT

#: Of this run alone, as it removes them.
TAG = f"tests-{os.getpid()}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # A first build downloads a gigabyte, and a stop takes its grace period.
    for item in items:
        item.add_marker(pytest.mark.timeout(1800))


@pytest.fixture(scope="session")
def images() -> Iterator[str]:
    """The tag of all images."""
    engine.require_engine()
    engine.build(ROOT, TAG)
    yield TAG
    engine.remove(TAG)
