"""A real Redis that answers but takes no writes for now, each way for its own reason, for tests."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import redis
from redis.exceptions import RedisError

from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until


@contextmanager
def _misconf(server: RedisServer, client: Any) -> Iterator[None]:
    """It is to keep snapshots, and the last one could not be written."""
    obstacle = server.folder / "dump.rdb"
    obstacle.mkdir()
    client.config_set("save", "3600 1000000")
    client.bgsave()

    def failed() -> bool:
        told = client.info("persistence")
        return not told["rdb_bgsave_in_progress"] and told["rdb_last_bgsave_status"] == "err"

    try:
        wait_until(failed, "the snapshot fails", 30)
        yield
    finally:
        client.config_set("save", "")
        obstacle.rmdir()


@contextmanager
def _noreplicas(_: RedisServer, client: Any) -> Iterator[None]:
    """It is to write only where a replica hears of it, and has none."""
    client.config_set("min-replicas-to-write", 1)
    try:
        yield
    finally:
        client.config_set("min-replicas-to-write", 0)


@contextmanager
def _busy(server: RedisServer, client: Any) -> Iterator[None]:
    """A script of somebody else runs and runs."""
    client.config_set("lua-time-limit", 10)

    def run() -> None:
        with (
            redis.Redis(port=server.port, socket_timeout=None) as other,
            contextlib.suppress(RedisError),
        ):
            other.eval("while true do end", 0)

    def is_busy() -> bool:
        # redis-py may open a connection for it, and its handshake with a busy server never ends.
        with socket.create_connection(("127.0.0.1", server.port), 60) as plain:
            plain.sendall(b"PING\r\n")
            return plain.recv(64).startswith(b"-BUSY")

    running = Thread(target=run)
    running.start()
    try:
        wait_until(is_busy, "it is busy", 30)
        yield
    finally:
        client.script_kill()
        running.join(60)


_WAYS: dict[str, Callable[[RedisServer, Any], contextlib.AbstractContextManager[None]]] = {
    "MISCONF": _misconf,
    "NOREPLICAS": _noreplicas,
    "BUSY": _busy,
}
#: The codes of what such a server answers.
REFUSALS = tuple(_WAYS)


@contextmanager
def refusing(server: RedisServer, code: str) -> Iterator[None]:
    """Writes are answered with this code while the context lasts."""
    with server.client() as client, _WAYS[code](server, client):
        yield
