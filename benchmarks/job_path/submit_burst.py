"""Many submits at once on a short queue: time to the last response, and their statuses."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from urllib.parse import urlsplit

from typing_extensions import override


@dataclass(frozen=True, slots=True)
class Burst:
    """Seconds from the first byte sent to the last response, and responses by status."""

    seconds: float
    statuses: Counter[int]


class _Request(asyncio.Protocol):
    """One connection with one request, sent when all of them are open."""

    def __init__(self, status: asyncio.Future[int]) -> None:
        self.status = status

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    @override
    def data_received(self, data: bytes) -> None:
        if not self.status.done():
            self.status.set_result(int(data[9:12]))

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if not self.status.done():
            self.status.set_result(0)


async def _burst(url: str, body: bytes, count: int) -> Burst:
    parts = urlsplit(url)
    loop = asyncio.get_running_loop()
    head = (
        f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    request = head.encode() + body
    opened = [
        await loop.create_connection(
            lambda: _Request(loop.create_future()), str(parts.hostname), parts.port or 80
        )
        for _ in range(count)
    ]
    started = time.perf_counter()
    for transport, _ in opened:
        transport.write(request)
    statuses = await asyncio.gather(*(protocol.status for _, protocol in opened))
    seconds = time.perf_counter() - started
    for transport, _ in opened:
        transport.close()
    return Burst(seconds, Counter(statuses))


def burst(url: str, body: bytes, count: int) -> Burst:
    """Send `count` requests at once, each on its own open connection.

    A connection that ends without a response counts as status 0.
    """
    import uvloop

    return uvloop.run(_burst(url, body, count))
