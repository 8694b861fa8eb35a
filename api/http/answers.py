"""Send answers on ASGI."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from typing import Final

from api.http.messages import (
    BODILESS,
    ClientGone,
    Receive,
    Reply,
    Request,
    ResponseCutShort,
    Send,
    StreamingReply,
)
from api.http.uvicorn_protocol import write_whole
from headrace.errors import drop_tracebacks

#: How many bytes of refused bodies make the collector run. It counts objects, and a body that a
#: cycle still holds is a few objects.
COLLECT_BYTES: Final = 64 * 1024 * 1024

#: For how long the rest of a refused body is read and dropped, and for how long none of it may
#: come. A client that sends everything before it reads gets the answer, and no reset connection.
DRAIN_MAX_S: Final = 60.0
DRAIN_IDLE_S: Final = 2.0


class _RefusedBodies:
    """Counts the bytes of refused bodies since the last collection."""

    def __init__(self) -> None:
        self._bytes = 0

    def add(self, size: int) -> None:
        """Count a body; collect if they are many bytes."""
        self._bytes += size
        if self._bytes >= COLLECT_BYTES:
            self._bytes = 0
            gc.collect()


_refused_bodies: Final = _RefusedBodies()


async def send_reply(send: Send, reply: Reply, request: Request) -> None:
    """Send an answer; after a refused body drain the rest and close the connection."""
    if reply.status >= 400 and request.body_bytes:
        _refused_bodies.add(request.body_bytes)
    bodiless = reply.status in BODILESS
    body = b"" if bodiless else reply.body
    if bodiless:  # a 204 may have neither length nor type, and a 304 would have those of the 200
        headers = [*reply.headers]
    else:
        headers = [(b"content-length", b"%d" % len(body)), *reply.headers]
        if reply.content_type:
            headers.insert(0, (b"content-type", reply.content_type))
    if request.drain:
        headers.append((b"connection", b"close"))
    elif not bodiless and write_whole(send, reply.status, headers, body):
        return
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    if not request.drain:
        await send({"type": "http.response.body", "body": body})
        return
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await _drain(request.receive)
    await send({"type": "http.response.body", "body": b""})


async def send_stream(send: Send, stream: StreamingReply) -> None:
    """Send an answer whose body is produced while it is sent."""
    headers = [*stream.headers]
    if stream.content_type:
        headers.insert(0, (b"content-type", stream.content_type))
    await send({"type": "http.response.start", "status": stream.status, "headers": headers})

    async def write(data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})

    try:
        await stream.run(write)
        await send({"type": "http.response.body", "body": b""})
    except (ClientGone, ResponseCutShort) as error:
        # uvicorn closes the connection of an incomplete answer.
        drop_tracebacks(error)


async def _drain(receive: Receive) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_MAX_S), asyncio.timeout(DRAIN_IDLE_S) as idle:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body"):
                    return
                idle.reschedule(loop.time() + DRAIN_IDLE_S)
