"""What the server of a process may hold: bytes of messages, and a port that others do not share."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Final

from headrace.errors import ConfigError, HeadraceError

#: The messages in progress have at most `body_limit_bytes` times this.
MESSAGES_MAX: Final = 16


class MessagesFull(HeadraceError, status=429):
    """The messages in progress take all the memory that they may."""


class Room:
    """Counts the bytes of the messages in progress, of all calls of this process."""

    def __init__(self) -> None:
        self._taken = 0
        self._freed = asyncio.Event()

    def take(self, size: int, limit: int) -> None:
        """Count a message.

        Raises:
            MessagesFull: it would be too much.
        """
        if self._taken and self._taken + size > limit:
            raise MessagesFull(
                f"the messages in progress have {self._taken} bytes, and this one {size}; at most "
                f"{limit} are taken at a time",
                hint="Try again, or raise body_limit_bytes (HEADRACE_BODY_LIMIT_BYTES), of which "
                f"it is {MESSAGES_MAX} times.",
            )
        self._taken += size

    async def wait(self, size: int, limit: int) -> None:
        """Count a message as soon as there is room for it."""
        while self._taken and self._taken + size > limit:
            self._freed.clear()
            await self._freed.wait()
        self._taken += size

    def free(self, size: int) -> None:
        """Count a message no more."""
        self._taken -= size
        self._freed.set()


ROOM: Final = Room()


def own_port(place: str, setting: str) -> socket.socket | None:
    """Let no other deployment share a port by SO_REUSEPORT, as the processes of this one do.

    The name of the returned socket shows it to others in the network's namespace, while it is open.
    None where a system has no such names.

    Raises:
        ConfigError: another deployment has the port.
    """
    if sys.platform != "linux":
        return None
    every = f"headrace-grpc/{place}/"
    ours = f"{every}{os.stat('/proc/self/ns/pid').st_ino}-{os.getppid()}/"
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    claim.bind(f"\0{ours}{os.getpid()}")
    names = [line.split()[-1][1:] for line in Path("/proc/net/unix").read_text().splitlines()]
    if any(name.startswith(every) and not name.startswith(ours) for name in names):
        claim.close()
        raise ConfigError(
            f"{setting}: {place} is served by another deployment",
            hint="Choose another port, or end the other deployment.",
        )
    return claim
