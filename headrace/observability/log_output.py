"""Writes lines to standard output or error, and never stops its process.

If nothing reads a pipe or a socket, it fills up, and a write waits without end. Here a write waits
for room for a moment. After that, lines are left out until there is room again, and the next line
follows a notice of how many are missing. Files and terminals are written as usual.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import threading
from collections.abc import Callable
from functools import partial
from typing import Final, TextIO

#: How long a write waits for a reader that is slow, in seconds. After one such wait the next writes
#: do not wait, until there is room.
WAIT_S: Final = 0.1
#: A pipe that can be written takes at least as many bytes (PIPE_BUF on Linux).
_PIPE_ROOM_BYTES: Final = 4096

Send = Callable[[bytes], int]


class LogOutput:
    """A stream for lines of a log, for any thread.

    Args:
        stream: standard output or error, or any other text stream.
        notice: returns the line with the number of missing lines, and its end of line.
    """

    def __init__(self, stream: TextIO, notice: Callable[[int], str]) -> None:
        self._stream = stream
        self._notice = notice
        # A handler of a signal may log within a line of its own thread.
        self._lock = threading.RLock()
        self._close: Callable[[], object] = lambda: None
        self._send: Send | None = None
        self._open()
        self._rest = b""
        self._missing = 0
        self._stuck = False

    def write(self, text: str | bytes) -> None:
        """Write whole lines, or leave them out. A closed reader raises no error."""
        data = text if isinstance(text, bytes) else text.encode("utf-8", "backslashreplace")
        with self._lock:
            try:
                if self._send is None:
                    self._write_through(data)
                else:
                    self._write_now(data, self._send)
            except (OSError, ValueError):
                # The reader is gone; the process continues without its log.
                self._close()
                self._send, self._close, self._rest = len, lambda: None, b""

    def close(self) -> None:
        """Write nothing more; the stream stays open."""
        with self._lock:
            self._close()
            self._send, self._close = len, lambda: None

    def _open(self) -> None:
        """Choose how to write; a stream that needs nothing of this is written as usual.

        The flags of the stream itself stay as they are: it can be shared with other processes.
        """
        self._fd = -1
        try:
            self._stream.flush()  # what was printed before comes first
            fd = self._stream.fileno()
            kind = os.fstat(fd).st_mode
        except (OSError, ValueError):
            return
        self._fd = fd
        if stat.S_ISSOCK(kind):
            sock = socket.socket(fileno=os.dup(fd))
            flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
            self._send, self._close = lambda data: sock.send(data, flags), sock.close
        elif stat.S_ISFIFO(kind):
            try:
                own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                # Another user's pipe, or a system without /proc. Another writer may take the room
                # between the look and the write, which is then late.
                self._send = partial(_write_if_room, fd)
            else:
                self._send, self._close = partial(os.write, own), partial(os.close, own)

    def _write_through(self, data: bytes) -> None:
        buffer = getattr(self._stream, "buffer", None)
        if buffer is None:
            self._stream.write(data.decode())
            self._stream.flush()
        else:
            buffer.write(data)
            buffer.flush()

    def _write_now(self, data: bytes, send: Send) -> None:
        if self._rest and not self._sent_rest(send):
            self._missing += data.count(b"\n")
            return
        if self._missing:
            data = self._notice(self._missing).encode() + data
        self._rest = data
        if self._sent_rest(send):
            self._missing = 0
        elif self._rest is data:
            # Nothing of it was written.
            self._rest = b""
            self._missing += data.count(b"\n") - bool(self._missing)
        else:
            self._missing = 0

    def _sent_rest(self, send: Send) -> bool:
        """Write the remaining text; return False if there is no room for all of it."""
        while self._rest:
            try:
                sent = send(self._rest)
            except BlockingIOError:
                if self._stuck or not _has_room(self._fd, WAIT_S):
                    self._stuck = True
                    return False
                continue
            self._stuck = False
            self._rest = self._rest[sent:] if sent < len(self._rest) else b""
        return True


def _write_if_room(fd: int, data: bytes) -> int:
    if not _has_room(fd, 0):
        raise BlockingIOError
    return os.write(fd, data[:_PIPE_ROOM_BYTES])


def _has_room(fd: int, wait_s: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(wait_s * 1000))
