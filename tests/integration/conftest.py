"""Fixtures of the integration tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from tests.harness.deployments.deployment import Deployment, deployment
from tests.harness.deployments.shared import SharedDeployment
from tests.harness.servers.api_server import ApiServer, api_server, catalog
from tests.harness.servers.redis_servers import RedisServer

BODY_LIMIT_BYTES = 256 * 1024


#: The fake workers of these tests know no payloads: tests/integration/payloads/test_api.py.
LIMITS: dict[str, Any] = {
    "body_limit_bytes": BODY_LIMIT_BYTES,
    "inline_limit_bytes": BODY_LIMIT_BYTES,
}


def _serve(
    servers: dict[str, RedisServer], request: pytest.FixtureRequest, **settings: Any
) -> Iterator[ApiServer]:
    """Serve with the settings of the test module: its `API_SETTINGS`, or else `LIMITS`."""
    models = catalog(echo={}, tiny={"max_queue_depth": 100, "version": "2.1"})
    settings = {**getattr(request.module, "API_SETTINGS", LIMITS), **settings}
    with api_server(servers["valkey9"].url, models, **settings) as server:
        yield server


@pytest.fixture(scope="module")
def _api(_servers: dict[str, RedisServer], request: pytest.FixtureRequest) -> Iterator[ApiServer]:
    yield from _serve(_servers, request)


@pytest.fixture(scope="module")
def _hasty(_servers: dict[str, RedisServer], request: pytest.FixtureRequest) -> Iterator[ApiServer]:
    yield from _serve(_servers, request, request_timeout_s=1.0)


@pytest.fixture
def api(_api: ApiServer, redis_db: RedisServer) -> ApiServer:
    """An API over `redis_db`, with the models echo and tiny; one server a test module."""
    assert redis_db.url == _api.redis_url
    return _api


@pytest.fixture
def hasty(_hasty: ApiServer, redis_db: RedisServer) -> ApiServer:
    """One that waits for a second; to the others this machine may stand still for longer."""
    assert redis_db.url == _hasty.redis_url
    return _hasty


@pytest.fixture(scope="module")
def site(
    shared_deployment: SharedDeployment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    """One worker and both kinds of client."""
    with deployment(shared_deployment, tmp_path_factory.mktemp("interop")) as running:
        yield running


@pytest.fixture
def app(site: Deployment) -> Celery:
    """The stock Celery client of the deployment."""
    return site.app
