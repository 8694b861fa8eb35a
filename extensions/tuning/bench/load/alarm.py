"""A timer with the precision of the kernel's."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from collections.abc import Callable
from typing import Final


class Alarm:
    """Calls back at a time, with the precision of the kernel's timers.

    Timers of asyncio are rounded up to a millisecond. That would be a part of each latency.
    """

    _MONOTONIC: Final = 1
    _ABSOLUTE: Final = 1

    class _Time(ctypes.Structure):
        _fields_ = [(name, ctypes.c_long) for name in ("repeat_s", "repeat_ns", "s", "ns")]

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        self._loop, self._call = loop, call
        libc = ctypes.CDLL(None, use_errno=True)
        self._settime = getattr(libc, "timerfd_settime", None)
        self._file = -1
        if self._settime is not None:
            self._file = libc.timerfd_create(self._MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file >= 0:
            loop.add_reader(self._file, self._ring)

    def set(self, at: float) -> None:
        """Call back at a time of `time.monotonic`; it replaces an earlier one."""
        if self._file < 0 or self._settime is None:
            self._loop.call_at(at, self._call)
            return
        seconds = int(at)
        when = self._Time(0, 0, seconds, max(1, int((at - seconds) * 1e9)))
        self._settime(self._file, self._ABSOLUTE, ctypes.byref(when), None)

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._file, 8)
        self._call()

    def close(self) -> None:
        """Free the timer."""
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1
