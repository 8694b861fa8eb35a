"""API keys for tests, in a real Redis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2

from headrace.access.api_key import Scope
from headrace.access.key_store import ApiKeyStore
from tests.harness.http.plain_http import PLAIN
from tests.harness.servers.api_server import ApiServer
from tests.harness.servers.redis_servers import RedisServer

ALL = (Scope.SUBMIT, Scope.READ, Scope.MANAGE)
USER = (Scope.SUBMIT, Scope.READ)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def make_key(server: RedisServer, *scopes: Scope, **limits: Any) -> tuple[str, str]:
    """A key's id and the key itself; without scopes one that submits and reads."""
    with server.client() as client:
        key, text = ApiKeyStore(client).create("test", scopes or USER, **limits)
    return key.id, text


def revoke_key(server: RedisServer, key_id: str) -> None:
    with server.client() as client:
        ApiKeyStore(client).revoke(key_id)


@contextmanager
def http_as(api: ApiServer, key: str) -> Iterator[httpx2.Client]:
    """A client that sends a key with each request."""
    with httpx2.Client(base_url=api.url, timeout=30, headers=bearer(key), verify=PLAIN) as http:
        yield http


def in_flight(server: RedisServer) -> dict[str, int]:
    """What is counted as in flight, by key."""
    with server.client() as client:
        stored: Any = client.hgetall("hr:inflight")
    return {name.decode(): int(count) for name, count in stored.items()}
