"""What the server of a process may hold: bytes of messages, and a port that others do not share."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from headrace.config.settings import Settings
from headrace.errors import ConfigError, HeadraceError, RequestTimeout

#: The messages of unary calls in progress have at most `body_limit_bytes` times this, in a room.
MESSAGES_MAX: Final = 16
Read = Callable[[], Awaitable[bytes]]


class MessagesFull(HeadraceError, status=429):
    """The messages in progress take all the memory that they may."""


class Room:
    """Counts the bytes of the messages in progress, of calls of this process.

    grpcio takes a message from the network only once it is asked for it, and its
    length is unknown before. So a message counts as the longest one while it comes.

    Args:
        messages: how many of the longest ones there is room for. One host's clients send half of
            them at a time, so that they never take all the room.
    """

    def __init__(self, messages: int = MESSAGES_MAX) -> None:
        self._messages = messages
        self._taken = 0
        self._reading = set[asyncio.Timeout]()
        self._line = asyncio.Lock()
        self._shares = WeakValueDictionary[str, asyncio.Semaphore]()
        self._waiting = 0  # for their shares
        self._freed = asyncio.Event()

    async def read(self, read: Read, host: str, settings: Settings) -> bytes:
        """Read a message as soon as there is room for the longest one, and count it.

        Raises:
            MessagesFull: those in progress leave no room for it.
            RequestTimeout: it has not come within `request_timeout_s`, and others wait.
        """
        self._refuse(settings.body_limit_bytes)
        share = self._shares.setdefault(host, asyncio.Semaphore(self._messages // 2))
        if share.locked():
            self._limit(settings)
        self._waiting += 1
        try:
            await share.acquire()
        finally:
            self._waiting -= 1
        try:
            return await self._read(read, settings)
        finally:
            share.release()

    async def _read(self, read: Read, settings: Settings) -> bytes:
        longest = settings.body_limit_bytes
        async with self._line:
            while self._no_room(longest, longest):
                self._refuse(longest)
                await self._change(settings)
        hurried = self._waiting or self._line.locked()
        timeout = asyncio.timeout(settings.request_timeout_s if hurried else None)
        self._reading.add(timeout)
        try:
            async with timeout:
                message = await read()
        except TimeoutError:
            raise RequestTimeout(
                f"the message has not come within {settings.request_timeout_s:g} s, and other "
                "calls wait to send theirs",
                hint="Send it faster, or raise request_timeout_s (HEADRACE_REQUEST_TIMEOUT_S).",
            ) from None
        finally:
            self._reading.discard(timeout)
            self._freed.set()
        self._taken += len(message)
        return message

    async def wait(self, size: int, settings: Settings) -> None:
        """Count a message that was read, as soon as there is room for it."""
        async with self._line:
            while self._taken and self._no_room(size, settings.body_limit_bytes):
                await self._change(settings)
        self._taken += size

    def free(self, size: int) -> None:
        """Count a message no more."""
        self._taken -= size
        self._freed.set()

    def _no_room(self, size: int, longest: int) -> bool:
        return self._taken + len(self._reading) * longest + size > self._messages * longest

    def _refuse(self, longest: int) -> None:
        limit = self._messages * longest
        if self._taken + longest > limit:
            raise MessagesFull(
                f"the messages in progress have {self._taken} bytes of {limit}, so there is no "
                "room for the longest one",
                hint="Try again, or raise body_limit_bytes (HEADRACE_BODY_LIMIT_BYTES), of which "
                f"it is {self._messages} times.",
            )

    async def _change(self, settings: Settings) -> None:
        """Wait until there may be more room."""
        self._limit(settings)
        self._freed.clear()
        await self._freed.wait()

    def _limit(self, settings: Settings) -> None:
        """Limit the time of the messages that come, as others wait now."""
        end = asyncio.get_running_loop().time() + settings.request_timeout_s
        for timeout in self._reading:
            if timeout.when() is None:
                timeout.reschedule(end)


ROOM: Final = Room()
#: For methods that need no API key: a client without one cannot fill the other room, or hold it up.
OPEN_ROOM: Final = Room()
#: For `grpc.health.v1`, so that no other call can make a probe fail. Its messages are short.
HEALTH_ROOM: Final = Room(messages=4)


def own_port(place: str, setting: str) -> socket.socket | None:
    """Let no other deployment share a port by SO_REUSEPORT, as the processes of this one do.

    The name of the returned socket shows it to others in the network's namespace, while it is open.
    None where a system has no such names.

    Raises:
        ConfigError: another deployment has the port.
    """
    if sys.platform != "linux":
        return None
    # Such a name has at most 107 characters, and a host may have more.
    every = f"headrace-grpc/{blake2b(place.encode(), digest_size=16).hexdigest()}/"
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
