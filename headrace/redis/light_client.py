"""A client for a question that a short process asks: redis-py takes 0.15 s of CPU to import.

The health checks of containers run every few seconds for as long as a deployment lives.
"""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Any, Final, Protocol, Self

import hiredis

from headrace.redis.url import RedisUrl

_PORT: Final = 6379
_READ_BYTES: Final = 65_536


class Asks(Protocol):
    """A `LightClient`, or a client of redis-py."""

    def execute_command(self, *parts: Any) -> Any:
        """Return the reply to a command."""
        ...


def is_light(address: RedisUrl) -> bool:
    """Return whether a `LightClient` can connect: TLS and Sentinels need redis-py."""
    return address.scheme in ("redis", "unix")


class LightClient:
    """One connection, one command at a time; raises OSError or hiredis.HiredisError."""

    def __init__(self, address: RedisUrl, timeout_s: float) -> None:
        if address.path:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.settimeout(timeout_s)
        else:
            host, port = address.hosts[0]
            self._socket = socket.create_connection((host, port or _PORT), timeout_s)
        self._reader = hiredis.Reader()
        try:
            if address.path:
                self._socket.connect(address.path)
            login = ("AUTH", address.username or "default", address.password)
            self.execute_command("HELLO", "3", *(login if address.password else ()))
            if address.db:
                self.execute_command("SELECT", str(address.db))
        except BaseException:
            self._socket.close()
            raise

    def execute_command(self, *parts: Any) -> Any:
        """Return the reply; texts in it are bytes."""
        self._socket.sendall(hiredis.pack_command(parts))
        while (reply := self._reader.gets()) is False:
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionResetError("the server has closed the connection")
            self._reader.feed(data)
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()
