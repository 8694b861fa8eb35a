"""A bulk request on a raw socket: what is sent and what is read is up to the test."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable
from typing import Any, Self

BULK = "/api/v1/jobs/bulk"
LAST_CHUNK = b"0\r\n\r\n"


def ndjson(lines: Iterable[Any]) -> bytes:
    """Lines of JSON; bytes stand as they are."""
    texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    return b"".join(text + b"\n" for text in texts)


class BulkSocket:
    """One bulk request in chunks, on a connection of its own.

    Attributes:
        whole: the answer has come to its end, and not just the connection.
    """

    def __init__(self, port: int, headers: str = "", wait_s: float = 60) -> None:
        self.whole = False
        self._socket = socket.create_connection(("127.0.0.1", port), wait_s)
        self._raw = b""
        self._body = b""
        self._head_seen = False
        head = (
            f"POST {BULK} HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\n"
            f"Transfer-Encoding: chunked\r\n{headers}\r\n"
        )
        self._socket.sendall(head.encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, body: bytes) -> None:
        """Send a part of the body."""
        self._socket.sendall(b"%x\r\n%s\r\n" % (len(body), body))

    def finish(self) -> None:
        """End the body."""
        self._socket.sendall(LAST_CHUNK)

    def line(self) -> Any:
        """The next line of the answer.

        Raises:
            EOFError: there is none.
        """
        while b"\n" not in self._body:
            if self.whole or not self._more():
                raise EOFError
        text, _, self._body = self._body.partition(b"\n")
        return json.loads(text)

    def rest(self) -> list[Any]:
        """All lines up to the end of the answer, or of the connection."""
        while not self.whole and self._more():
            pass
        *lines, last = self._body.split(b"\n")
        assert last == b"", "the answer ends in the midst of a line"
        self._body = b""
        return [json.loads(line) for line in lines]

    def _more(self) -> bool:
        data = self._socket.recv(1024 * 1024)
        self._raw += data
        if not self._head_seen:
            head, found, rest = self._raw.partition(b"\r\n\r\n")
            if not found:
                return bool(data)
            assert head.startswith(b"HTTP/1.1 200 "), head
            self._head_seen, self._raw = True, rest
        self._unchunk()
        return bool(data)

    def _unchunk(self) -> None:
        pieces, at = [], 0
        while not self.whole and (line_end := self._raw.find(b"\r\n", at)) >= 0:
            size = int(self._raw[at:line_end], 16)
            end = line_end + 2 + size + 2
            if len(self._raw) < end:
                break
            pieces.append(self._raw[line_end + 2 : end - 2])
            self.whole = size == 0
            at = end
        self._raw = self._raw[at:]
        self._body += b"".join(pieces)
