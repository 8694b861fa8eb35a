"""Wakes Celery's loop as soon as a signal arrives.

Python runs a signal's handler and then continues the poll that it interrupted. Without this, Celery
would notice a request to stop only when its next timer is due, up to a second later.
"""

from __future__ import annotations

import signal
import socket
import threading
from typing import Any


class SignalWakeup:
    """A socket that is readable after any signal."""

    def __init__(self) -> None:
        self._listens = False
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor, for selectors."""
        return self._reader.fileno()

    def listen(self) -> None:
        """Make it readable at each signal. Does nothing outside of the main thread."""
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
            self._listens = True

    def register(self, hub: Any) -> None:
        """Add it to the polls of Celery's loop."""
        hub.add_reader(self.fileno(), self._clear)

    def close(self) -> None:
        """Stop listening, after the loop has ended."""
        if self._listens:
            signal.set_wakeup_fd(-1)
        self._reader.close()
        self._writer.close()

    def _clear(self) -> None:
        try:
            self._reader.recv(4096)
        except BlockingIOError:
            return
