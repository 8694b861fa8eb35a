"""A call as a request of HTTP, and the answer of HTTP as what the call returns."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Coroutine, Mapping
from typing import Any, Final, NamedTuple, cast
from urllib.parse import urlencode

import grpc
import msgspec

from api.grpc.calls import TEXT_MAX
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
from extensions.torchserve.api.descriptions import Interface, TokenKind
from extensions.torchserve.api.replies import Kind
from headrace.access import api_key

_Code: Final = grpc.StatusCode
#: By the status of HTTP, as TorchServe has them.
_CODES: Final = {
    400: _Code.INVALID_ARGUMENT, 401: _Code.UNAUTHENTICATED, 403: _Code.PERMISSION_DENIED,
    404: _Code.NOT_FOUND, 405: _Code.PERMISSION_DENIED, 408: _Code.DEADLINE_EXCEEDED,
    409: _Code.ABORTED, 413: _Code.RESOURCE_EXHAUSTED, 429: _Code.RESOURCE_EXHAUSTED,
    499: _Code.CANCELLED, 501: _Code.UNIMPLEMENTED, 503: _Code.UNAVAILABLE,
    504: _Code.DEADLINE_EXCEEDED,
}  # fmt: skip
#: Endpoints that run; asyncio itself keeps no task.
_RUNNING: Final[set[asyncio.Task[Any]]] = set()
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
    """Sends the requests of one call. If the call is cancelled, their client hangs up.

    Args:
        caller: the API key of the call.
        checked: the kind of token that was checked with the call, for its first request.
    """

    def __init__(
        self, surface: TorchServe, caller: api_key.Caller, context: Any, checked: TokenKind
    ) -> None:
        self._surface, self._gone = surface, asyncio.Event()
        self._caller, self._checked = caller, checked
        self._headers = [
            (name.encode(), value if isinstance(value, bytes) else value.encode())
            for name, value in context.invocation_metadata() or ()
            if name != "te" and not name.startswith(("content-", "grpc-"))
        ]

    async def answer(self, asked: Asked) -> Answer:
        """Return the answer to a request."""
        task = self._begun(self._answer(asked))
        try:
            return cast("Answer", await asyncio.shield(task))
        except asyncio.CancelledError:
            # As over HTTP, the endpoint then decides whether its job goes on.
            self._gone.set()
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
        request = Request(scope, receive)
        request.caller = self._caller
        checked, self._checked = self._checked, ""
        try:
            return await self._surface.answer(
                request, asked.interface, asked.segments, checked=checked
            )
        except ClientGone:
            return Reply(499, b"")

    async def pieces_of(self, answer: Answer) -> AsyncGenerator[bytes]:
        """Yield the body of an answer as it comes. Closed before its end, the client hangs up.

        Raises:
            ResponseCutShort: it is incomplete.
        """
        if not isinstance(answer, StreamingReply):
            yield b"" if isinstance(answer, Delegated) else answer.body
            return
        gone, written = self._gone, asyncio.Queue[bytes | None](1)

        async def write(data: bytes) -> None:
            await written.put(data)
            if gone.is_set():
                raise ClientGone

        async def run() -> None:
            try:
                await answer.run(write)
            finally:
                if not gone.is_set():
                    await written.put(None)

        task = self._begun(run())
        try:
            while (piece := await written.get()) is not None:
                yield piece
            await task
        except ClientGone:
            raise ResponseCutShort from None
        except (asyncio.CancelledError, GeneratorExit):
            gone.set()
            if not written.empty():
                written.get_nowait()
            raise

    def _begun(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Return a task that may outlive the call, as an endpoint whose client hangs up does."""
        task = asyncio.create_task(work)
        _RUNNING.add(task)

        def over(done: asyncio.Task[Any]) -> None:
            _RUNNING.discard(done)
            if not done.cancelled():
                done.exception()  # asyncio would log one that no call waits for

        task.add_done_callback(over)
        return task


def failure_of(answer: Answer, *, predicts: bool = False) -> Failure | None:
    """Return the status for an answer; None for OK. A prediction of no model is INTERNAL."""
    if isinstance(answer, Delegated) or answer.status < 300:
        return None
    try:
        body = answer.body if isinstance(answer, Reply) else b""
        document = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        document = {}
    name = str(document.get("type", ""))
    code = _CODES.get(
        answer.status, _Code.FAILED_PRECONDITION if answer.status < 500 else _Code.INTERNAL
    )
    if name == Kind.INVALID_KEY.value[1]:
        code = _Code.PERMISSION_DENIED
    elif predicts and answer.status == 404:
        code = _Code.INTERNAL
    text = document.get("message") or document.get("status") or f"HTTP status {answer.status}"
    return Failure(code, f"{str(text)[:TEXT_MAX]}\n{name}".rstrip())


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
