"""uvicorn's HTTP protocol with one write a response where it makes two."""

from __future__ import annotations

import asyncio
from typing import Any

from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEAD_END = b"\r\n\r\n"
_CONTINUE = b"HTTP/1.1 100"


class JoinedWrites:
    """A transport that keeps the head of a response back until its body comes, or the loop turns.

    uvicorn writes both by themselves, and each write is a system call here and a wake-up there.

    Args:
        transport: the connection's own; all but writing goes to it.
        loop: the connection's event loop.
    """

    __slots__ = ("_flush_soon", "_head", "_loop", "_transport", "_write")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._write = transport.write
        self._loop = loop
        self._head: bytes | None = None
        self._flush_soon = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write, together with the head that was kept back; keep back what is only a head."""
        head = self._head
        if head is not None:
            self._head = None
            self._write(head + data)
        elif data.endswith(_HEAD_END) and not data.startswith(_CONTINUE):
            self._head = data
            if not self._flush_soon:
                self._flush_soon = True
                self._loop.call_soon(self._flush)
        else:
            self._write(data)

    def close(self) -> None:
        """Close once all is written."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        self._flush_soon = False
        head, self._head = self._head, None
        if head is not None and not self._transport.is_closing():
            self._write(head)


class Protocol(HttpToolsProtocol):
    """One connection."""

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        joined: Any = JoinedWrites(transport, self.loop)
        super().connection_made(joined)
