"""Long inputs and results through the client, by a real worker: they come back as they went."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.config.model.catalog import load_catalog
from tests.harness.clients.clients import SHELLS, client_of
from tests.harness.deployments.deployment import Deployment
from tests.harness.servers.api_server import api_server

LONG_BYTES = 200_000


@pytest.fixture(params=SHELLS)
def client(site: Deployment, request: pytest.FixtureRequest) -> Iterator[Any]:
    with (
        api_server(site.url, load_catalog(site.folder / "models.yaml")) as api,
        client_of(request.param, api.url) as made,
    ):
        yield made


def test_long_values_come_back_as_they_went(client: Any) -> None:
    values = [
        random.Random(7).randbytes(LONG_BYTES),
        "ü" * LONG_BYTES,
        list(range(LONG_BYTES // 5)),
    ]
    for value in values:
        job = client.submit("echo", value)
        assert client.result(job) == value
    mixed = [values[0], 1, values[1], None, values[2]] * 3
    assert [result.value for result in client.map("echo", mixed)] == mixed
