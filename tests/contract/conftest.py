"""One queue on each flavour of server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.clients.script_calls import Queue
from tests.harness.servers.redis_servers import RedisServer


@pytest.fixture
def queue(any_redis: RedisServer) -> Iterator[Queue]:
    with any_redis.client() as client:
        yield Queue(client)
