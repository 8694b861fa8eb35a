"""Fixtures of the integration tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery

from tests.harness.deployments.deployment import Deployment, deployment
from tests.harness.servers.api_server import ApiServer, api_server, catalog
from tests.harness.servers.redis_servers import RedisServer

BODY_LIMIT_BYTES = 256 * 1024


@pytest.fixture(scope="module")
def _api(_servers: dict[str, RedisServer]) -> Iterator[ApiServer]:
    models = catalog(echo={}, tiny={"max_queue_depth": 100, "version": "2.1"})
    url = _servers["valkey9"].url
    # The fake workers of these tests know no payloads: tests/integration/payloads/test_api.py.
    limits = {"body_limit_bytes": BODY_LIMIT_BYTES, "inline_limit_bytes": BODY_LIMIT_BYTES}
    with api_server(url, models, **limits) as server:
        yield server


@pytest.fixture
def api(_api: ApiServer, redis_db: RedisServer) -> ApiServer:
    """An API over `redis_db`, with the models echo and tiny; one server a test module."""
    assert redis_db.url == _api.redis_url
    return _api


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One worker and both kinds of client; one deployment a test module."""
    with deployment(tmp_path_factory.mktemp("interop")) as running:
        yield running


@pytest.fixture
def app(site: Deployment) -> Celery:
    """The stock Celery client of the deployment."""
    return site.app
