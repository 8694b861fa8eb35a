"""Connecting to Redis in a thread: where nobody answers, each try takes seconds.

The consumer goes on with its model processes meanwhile, and is woken when the try is over.
"""

from __future__ import annotations

import os
import selectors
import threading
from collections.abc import Callable, Iterable
from typing import Any


class BackgroundConnect:
    """One try to connect.

    Args:
        connect: connects, or raises; nobody else touches its connections until the try is over.
        wake_fd: a byte is written there when it is over.

    Attributes:
        error: why it failed; None where it did not.
    """

    def __init__(self, connect: Callable[[], None], wake_fd: int) -> None:
        self.error: Exception | None = None
        self._connect = connect
        self._wake_fd = wake_fd
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._left = False
        # A daemon: a worker that stops does not wait for a server that does not answer.
        threading.Thread(target=self._try, name="headrace-dialing", daemon=True).start()

    @property
    def over(self) -> bool:
        """Whether it has connected or failed."""
        return self._over.is_set()

    def leave(self) -> None:
        """Nobody is to be woken any more."""
        with self._lock:
            self._left = True

    def _try(self) -> None:
        try:
            self._connect()
        except Exception as error:  # noqa: BLE001 - the consumer looks at it
            self.error = error
        self._over.set()
        with self._lock:
            if not self._left:
                os.write(self._wake_fd, b"x")


def watch_sockets(
    selector: selectors.BaseSelector, watched: list[Any], found: Iterable[Any]
) -> list[Any]:
    """Watch the sockets that there are now in place of those that were; None is none."""
    sockets = [sock for sock in found if sock is not None]
    for old in [old for old in watched if old not in sockets]:
        selector.unregister(old)
    for new in [new for new in sockets if new not in watched]:
        selector.register(new, selectors.EVENT_READ)
    return sockets
