"""Frames between a worker and its model processes: a 4-byte little-endian length, then msgpack.

Nothing is pickled.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
from typing import Any, Final

import msgspec

_LENGTH: Final = struct.Struct("<I")
_READ_BYTES: Final = 1 << 18
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder()


class FrameSocket:
    """One end of a socketpair. Several threads may send; only one may receive.

    Attributes:
        closed: the other end is gone.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.closed = False
        self._sock = sock
        self._buffer = bytearray()
        self._sending = threading.Lock()

    def fileno(self) -> int:
        """Return the descriptor for a selector."""
        return self._sock.fileno()

    def send(self, frame: list[Any]) -> None:
        """Send one frame; block until it is written.

        Raises:
            OSError: the other end is gone.
        """
        payload = _encoder.encode(frame)
        with self._sending:
            self._sock.sendall(_LENGTH.pack(len(payload)) + payload)

    def receive(self) -> list[list[Any]]:
        """Read once and return the complete frames; block if there is nothing to read.

        Raises:
            EOFError: the other end is gone.
        """
        try:
            chunk = self._sock.recv(_READ_BYTES)
        except ConnectionResetError:
            chunk = b""
        if not chunk:
            self.closed = True
            raise EOFError("the other end of the frame socket is gone")
        self._buffer += chunk
        frames = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            frames.append(_decoder.decode(bytes(memoryview(self._buffer)[_LENGTH.size : end])))
            del self._buffer[:end]
        return frames

    def readable(self) -> bool:
        """Return whether `receive` would not block."""
        return readable(self._sock.fileno())

    def close_in_children(self) -> None:
        """Close this end in processes that this process forks or starts.

        Otherwise a child that outlives this process hides its end from the other end.
        """
        self._sock.set_inheritable(False)
        os.register_at_fork(after_in_child=self.close)

    def close(self) -> None:
        """Close this end; the other end reads EOF."""
        self._sock.close()


def readable(descriptor: int, wait_s: float = 0.0) -> bool:
    """Return whether a descriptor is readable, or is so within `wait_s` seconds."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))
