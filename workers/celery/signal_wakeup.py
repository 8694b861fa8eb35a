"""Celery's loop hears a signal at once.

Python runs a signal's handler and then goes on with the poll that it interrupted, so that Celery
would see that it is to stop only when its next timer is due: up to a second later.
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
        """For a selector."""
        return self._reader.fileno()

    def listen(self) -> None:
        """From now on signals make it readable, where this thread is the one that gets them."""
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
            self._listens = True

    def wake(self, hub: Any) -> None:
        """Let it end the polls of Celery's loop, which forgets it whenever it begins anew."""
        hub.add_reader(self.fileno(), self._clear)

    def close(self) -> None:
        """Listen no more, when the loop is over."""
        if self._listens:
            signal.set_wakeup_fd(-1)
        self._reader.close()
        self._writer.close()

    def _clear(self) -> None:
        try:
            self._reader.recv(4096)
        except BlockingIOError:
            return
