"""Reading an answer of HTTP/1.1 as it is sent: its chunks, and whether its end has come."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, Final
from urllib.parse import urlsplit

from tests.harness.wait import wait_until

READ_S: Final = 60


@dataclass
class ChunkReader:
    """Reads one answer in a thread of its own.

    Attributes:
        status: of the answer; 0 before it.
        headers: by their names in lower case.
        chunks: what has come so far; an answer with a length is one chunk.
        whole: the end of the answer has come.
        over: nothing more comes.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    chunks: list[bytes] = field(default_factory=list)
    whole: bool = False
    over: bool = False

    def read(self, stream: IO[bytes]) -> None:
        """Read the answer to its end."""
        # The connection may end anywhere.
        with suppress(OSError, ValueError, IndexError):
            status = int(stream.readline().split()[1])
            while line := stream.readline().strip():
                name, _, value = line.decode("latin-1").partition(":")
                self.headers[name.lower()] = value.strip()
            self.status = status
            if "content-length" in self.headers:
                length = int(self.headers["content-length"])
                self.chunks.append(stream.read(length))
                self.whole = len(self.chunks[0]) == length
            else:
                self._read_chunks(stream)
        self.over = True

    def _read_chunks(self, stream: IO[bytes]) -> None:
        while size := int(stream.readline(), 16):
            chunk = stream.read(size)
            if len(chunk) < size or stream.read(2) != b"\r\n":
                return
            self.chunks.append(chunk)
        self.whole = stream.readline() == b"\r\n"

    def wait_for(self, count: int) -> list[bytes]:
        """Wait for so many chunks; return all."""
        wait_until(
            lambda: len(self.chunks) >= count or self.over, f"{count} chunks; now {self}", READ_S
        )
        assert len(self.chunks) >= count, self
        return self.chunks

    def wait_over(self) -> ChunkReader:
        """Wait for the end of the answer, or of the connection."""
        wait_until(lambda: self.over, f"the answer ends; now {self}", READ_S)
        return self


@contextmanager
def asking(
    url: str,
    body: bytes = b"",
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
    **more: str,
) -> Iterator[ChunkReader]:
    """An answer that is read until the context ends; then the client hangs up.

    Args:
        more: further ones, with `_` for `-`.
    """
    address = urlsplit(url)
    given: Mapping[str, str] = {
        "host": address.netloc, "content-length": str(len(body)), **(headers or {}),
        **{name.replace("_", "-"): value for name, value in more.items()},
    }  # fmt: skip
    lines = [f"{method} {address.path} HTTP/1.1", *(f"{n}: {v}" for n, v in given.items()), "", ""]
    connection = socket.create_connection((address.hostname, address.port), timeout=READ_S)
    reader = ChunkReader()
    with connection, connection.makefile("rb") as stream:
        thread = threading.Thread(target=reader.read, args=(stream,), daemon=True)
        connection.sendall("\r\n".join(lines).encode() + body)
        thread.start()
        try:
            yield reader
        finally:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            thread.join(READ_S)
