"""Turns Ctrl-C, SIGTERM, SIGHUP and the time limit into exceptions.

The exception is raised wherever the command is at that moment, except inside `shield`. There it
waits, so that every outcome is written exactly once.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, Final, Self

from headrace.cli.shared.exit_codes import ExitCode, exit_code
from headrace.cli.shared.output import error_text
from headrace.errors import HeadraceError

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
#: A timer of 0 seconds is off.
_SOON_S: Final = 0.001


class Terminated(BaseException):
    """SIGTERM or SIGHUP: the machine shuts down, a scheduler ends the job, the terminal closed."""


class TimeUp(BaseException):
    """The time limit. Not a TimeoutError: the client would read it as a connection timeout."""


def stop_reason(error: BaseException, written: str) -> tuple[ExitCode, str]:
    """Return the exit code and the reason for an error; an OSError is of writing `written`."""
    if isinstance(error, HeadraceError):
        return exit_code(error), error_text(error)
    if isinstance(error, OSError):
        return ExitCode.FAILED, f"{written} cannot be written: {error.strerror or error}"
    if isinstance(error, TimeUp):
        return ExitCode.TIMED_OUT, str(error)
    if isinstance(error, Terminated):
        return ExitCode.TERMINATED, f"ended by {error}"
    return ExitCode.INTERRUPTED, "interrupted"


@contextmanager
def handled_signals(
    numbers: Sequence[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> Iterator[Sequence[signal.Signals]]:
    """Handle signals inside a `with` block; return those that are handled.

    Ignored signals stay ignored: `nohup` and background jobs of a shell ignore some.
    """
    before: dict[signal.Signals, Any] = {n: signal.getsignal(n) for n in numbers}
    handled = [number for number in numbers if before[number] is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, handler)
    try:
        yield handled
    finally:
        for number in handled:
            signal.signal(number, before[number])


class InterruptHandler:
    """Turns signals into exceptions inside a `with` block. For the main thread only."""

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._stack = ExitStack()
        self._handled: Sequence[signal.Signals] = ()
        self._shielded = False
        self._pending: BaseException | None = None

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Delay the first signal until the end of the block; raise a second one at once."""
        self._shielded = True
        try:
            yield
        finally:
            self._shielded = False
        if self._pending is not None:
            error, self._pending = self._pending, None
            raise error

    def __enter__(self) -> Self:
        self._handled = self._stack.enter_context(handled_signals(_SIGNALS, self._on_signal))
        if self._timeout_s is not None:
            signal.setitimer(signal.ITIMER_REAL, max(self._timeout_s, _SOON_S))
        return self

    def __exit__(self, *_: object) -> None:
        if self._timeout_s is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self._stack.close()

    def ignore(self) -> None:
        """Ignore all further signals until the end of the block."""
        for number in self._handled:
            signal.signal(number, signal.SIG_IGN)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        error: BaseException
        if number == signal.SIGALRM:
            error = TimeUp(f"timed out: not all jobs ended within {self._timeout_s:g} s")
        elif number == signal.SIGINT:
            error = KeyboardInterrupt()
        else:
            error = Terminated(signal.Signals(number).name)
        if self._shielded and self._pending is None:
            self._pending = error
        else:
            raise error
