"""What ends a run from outside: Ctrl-C, SIGTERM, SIGHUP, and the time limit.

Each is an exception wherever the run happens to be, except where it says that it must not be
disturbed: what is under way is told once, and never one outcome too few or too many.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, Self

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
#: 0 would switch the timer off.
_SOON_S: Final = 0.001


class Terminated(BaseException):
    """SIGTERM or SIGHUP: the machine stops, a batch system's time is over, the terminal is gone."""


class TimeUp(BaseException):
    """The time limit. No TimeoutError, which the client would take for one of its connection."""


class InterruptHandler:
    """Turns signals into exceptions while it is entered. Only for the main thread.

    Args:
        timeout_s: after so many seconds the run is over; None for never.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._before: dict[signal.Signals, Any] = {}
        self._shielded = False
        self._pending: BaseException | None = None

    @contextmanager
    def shield(self) -> Iterator[None]:
        """What comes in here is raised at the end; a second one is raised at once."""
        self._shielded = True
        try:
            yield
        finally:
            self._shielded = False
        if self._pending is not None:
            error, self._pending = self._pending, None
            raise error

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            before = signal.getsignal(number)
            # `nohup` and shells' background jobs ignore some, and that stays so.
            if before is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._came)
        if self._timeout_s is not None:
            signal.setitimer(signal.ITIMER_REAL, max(self._timeout_s, _SOON_S))
        return self

    def __exit__(self, *_: object) -> None:
        if self._timeout_s is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, before in self._before.items():
            signal.signal(number, before)

    def ignore(self) -> None:
        """Nothing disturbs any more, until the end."""
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)

    def _came(self, number: int, frame: FrameType | None) -> None:
        error: BaseException
        if number == signal.SIGALRM:
            error = TimeUp(f"not all jobs have ended within {self._timeout_s:g} s")
        elif number == signal.SIGINT:
            error = KeyboardInterrupt()
        else:
            error = Terminated(signal.Signals(number).name)
        if self._shielded and self._pending is None:
            self._pending = error
        else:
            raise error
