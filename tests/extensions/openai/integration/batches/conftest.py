"""The batches of a `headrace up`, whose fixture each module has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.extensions.openai.harness.batches import Batches, batches_at
from tests.harness.servers.up import RunningUp


@pytest.fixture
def batches(up: RunningUp) -> Iterator[Batches]:
    with batches_at(f"http://127.0.0.1:{up.port}") as found:
        yield found
