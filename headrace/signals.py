"""Signals that wake a selector loop, requests to stop, and the stack that signals run on."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final, Self

#: A terminal and a wrapper can both forward one Ctrl-C; that is one request.
_SAME_REQUEST_S: Final = 0.3
_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: At least the size of the C struct `stack_t`.
_STACK_T_BYTES: Final = 64


class SignalSocket:
    """A socket that a signal makes readable, for a selector loop."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor for a selector."""
        return self._reader.fileno()

    def clear(self) -> None:
        """Discard the wake-ups so far."""
        with suppress(BlockingIOError):
            self._reader.recv(4096)

    def close(self) -> None:
        """Close the socket."""
        self._reader.close()
        self._writer.close()


class StopSignals(SignalSocket):
    """While entered, counts SIGINT, SIGTERM and SIGHUP; `fileno` is readable after any signal.

    SIGCHLD wakes the loop too and is not counted. Afterwards the stop signals are ignored, because
    the process ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0
        self._last_s = 0.0

    def __enter__(self) -> Self:
        # Under nohup SIGHUP is ignored, and must stay ignored.
        self._caught = [s for s in _STOP_SIGNALS if signal.getsignal(s) != signal.SIG_IGN]
        for signum in self._caught:
            signal.signal(signum, self._count)
        signal.signal(signal.SIGCHLD, lambda _signum, _frame: None)
        self._old_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._old_fd)
        # Not restored: a third Ctrl-C while the process ends must not print a traceback.
        for signum in self._caught:
            signal.signal(signum, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.close()

    def _count(self, _signum: int, _frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if self.requests and now_s - self._last_s < _SAME_REQUEST_S:
            return
        self.requests += 1
        self._last_s = now_s


@contextmanager
def keeps_signal_stack() -> Iterator[None]:
    """Afterwards, this thread has the alternate signal stack that it has now.

    A `Core` of OpenVINO brings a stack and frees it at its end, perhaps while it is in use. The
    next signal that has a handler would then end the process by SIGSEGV.
    """
    import ctypes  # not for all who only wait for signals

    libc = ctypes.CDLL(None)
    stack = ctypes.create_string_buffer(_STACK_T_BYTES)
    libc.sigaltstack(None, stack)
    try:
        yield
    finally:
        libc.sigaltstack(stack, None)
