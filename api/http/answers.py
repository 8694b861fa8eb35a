"""Send answers on ASGI."""

from __future__ import annotations

from api.http.messages import (
    BODILESS,
    ClientGone,
    Reply,
    ResponseCutShort,
    Send,
    StreamingReply,
)
from api.http.uvicorn_protocol import write_whole
from headrace.errors import drop_tracebacks


async def send_reply(send: Send, reply: Reply) -> None:
    """Send an answer. What its client still sends of the request is dropped by the protocol."""
    bodiless = reply.status in BODILESS
    body = b"" if bodiless else reply.body
    if bodiless:  # a 204 may have neither length nor type, and a 304 would have those of the 200
        headers = [*reply.headers]
    else:
        headers = [(b"content-length", b"%d" % len(body)), *reply.headers]
        if reply.content_type:
            headers.insert(0, (b"content-type", reply.content_type))
    if not bodiless and write_whole(send, reply.status, headers, body):
        return
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


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
