"""A call as a request of HTTP, and the answer of HTTP as what the call returns."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import grpc
import msgspec

from api.http.messages import (
    Answer,
    ClientGone,
    Delegated,
    Message,
    Reply,
    Request,
    ResponseCutShort,
    StreamingReply,
)
from extensions.torchserve.api.app import TorchServe
from extensions.torchserve.api.descriptions import Interface
from extensions.torchserve.api.replies import Kind

_Code: Final = grpc.StatusCode
#: By the status of HTTP, as TorchServe has them.
_CODES: Final = {
    400: _Code.INVALID_ARGUMENT, 401: _Code.UNAUTHENTICATED, 403: _Code.PERMISSION_DENIED,
    404: _Code.NOT_FOUND, 405: _Code.PERMISSION_DENIED, 408: _Code.DEADLINE_EXCEEDED,
    409: _Code.ABORTED, 413: _Code.RESOURCE_EXHAUSTED, 429: _Code.RESOURCE_EXHAUSTED,
    499: _Code.CANCELLED, 501: _Code.UNIMPLEMENTED, 503: _Code.UNAVAILABLE,
    504: _Code.DEADLINE_EXCEEDED,
}  # fmt: skip
#: The text of a status is in the trailers, which clients limit to 8 KiB.
_TEXT_MAX: Final = 600
_QUOTED: Final = {ord('"'): "%22", ord("\r"): "%0D", ord("\n"): "%0A"}


class Asked(NamedTuple):
    """What a call asks for: the request of HTTP that does the same.

    Attributes:
        segments: those of the path.
        headers: further ones than the metadata.
    """

    interface: Interface
    method: str
    segments: tuple[str, ...]
    query: Mapping[str, Any] = {}
    body: bytes = b""
    headers: Mapping[str, str] = {}


class Failure(NamedTuple):
    """The status with which a call ends."""

    code: Any
    text: str


class Caller:
    """Sends the requests of one call. If the call is cancelled, their client hangs up."""

    def __init__(self, surface: TorchServe, context: Any) -> None:
        self._surface, self._gone = surface, asyncio.Event()
        self._headers = [
            (name.encode(), value if isinstance(value, bytes) else value.encode())
            for name, value in context.invocation_metadata() or ()
            if name != "te" and not name.startswith(("content-", "grpc-"))
        ]

    async def answer(self, asked: Asked) -> Answer:
        """Return the answer to a request."""
        task = asyncio.create_task(self._answer(asked))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # As over HTTP, the endpoint then decides whether its job goes on.
            self._gone.set()
            await asyncio.wait({task})
            raise

    async def _answer(self, asked: Asked) -> Answer:
        body = iter([asked.body])

        async def receive() -> Message:
            for whole in body:
                return {"type": "http.request", "body": whole}
            await self._gone.wait()
            return {"type": "http.disconnect"}

        own = [(name.lower().encode(), value.encode()) for name, value in asked.headers.items()]
        scope = {
            "method": asked.method,
            "path": "/".join(asked.segments),
            "query_string": urlencode(asked.query).encode(),
            "headers": [*self._headers, *own, (b"content-length", b"%d" % len(asked.body))],
        }
        try:
            return await self._surface.answer(
                Request(scope, receive), asked.interface, asked.segments
            )
        except ClientGone:
            return Reply(499, b"")


async def pieces_of(answer: Answer) -> AsyncIterator[bytes]:
    """Return the body of an answer as it comes; raise ResponseCutShort if it is incomplete."""
    if not isinstance(answer, StreamingReply):
        yield b"" if isinstance(answer, Delegated) else answer.body
        return
    written = asyncio.Queue[bytes | None](1)

    async def run() -> None:
        try:
            await answer.run(written.put)
        finally:
            await written.put(None)

    task = asyncio.create_task(run())
    try:
        while (piece := await written.get()) is not None:
            yield piece
        await task
    except ClientGone:
        raise ResponseCutShort from None
    finally:
        task.cancel()


def failure_of(answer: Answer, *, predicts: bool = False) -> Failure | None:
    """Return the status for an answer; None for OK. A prediction of no model is INTERNAL."""
    if isinstance(answer, Delegated) or answer.status < 300:
        return None
    try:
        body = answer.body if isinstance(answer, Reply) else b""
        found = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = {}
    name = str(found.get("type", ""))
    code = _CODES.get(
        answer.status, _Code.FAILED_PRECONDITION if answer.status < 500 else _Code.INTERNAL
    )
    if name == Kind.INVALID_KEY.value[1]:
        code = _Code.PERMISSION_DENIED
    elif predicts and answer.status == 404:
        code = _Code.INTERNAL
    text = str(found.get("message") or found.get("status") or f"HTTP status {answer.status}")
    return Failure(code, f"{text[:_TEXT_MAX]}\n{name}".rstrip())


def form_of(fields: Mapping[str, bytes]) -> tuple[bytes, str]:
    """Return values by name as the body of a form, and its content type."""
    boundary = secrets.token_hex(16)
    parts = [
        b'--%b\r\ncontent-disposition: form-data; name="%b"\r\n\r\n%b\r\n'
        % (boundary.encode(), name.translate(_QUOTED).encode(), value)
        for name, value in fields.items()
    ]
    body = b"%b--%b--\r\n" % (b"".join(parts), boundary.encode())
    return body, f"multipart/form-data; boundary={boundary}"
