"""The terminal: shows the view, handles keys, and restores the terminal at the end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from headrace.cli.shared.output import error_text
from headrace.cli.top.cells import one_line
from headrace.cli.top.layout import KEYS, SORTS, ViewOptions, lines
from headrace.cli.top.poller import Poller, PollResult
from headrace.cli.top.view import View

#: Maximum seconds between two redraws; the first line counts the seconds without an answer.
REDRAW_S: Final = 1.0
_UP: Final = ("\x1b[A", "\x1bOA", "k")
_DOWN: Final = ("\x1b[B", "\x1bOB", "j")
_QUIT: Final = ("q", "Q", "\x1b")


class Screen:
    """The screen and the state that keys change.

    Args:
        poller: polls the server.
        console: the terminal.
        url: the server's address, for the last line.
    """

    def __init__(self, poller: Poller, console: Console, url: str) -> None:
        self._poller = poller
        self._console = console
        self._url = url
        self._options = ViewOptions(width=80)
        self._paused: PollResult | None = None  # the result that a paused view shows

    def key(self, pressed: str) -> bool:
        """Handle a key; return False for quit."""
        if pressed in _QUIT:
            return False
        options = self._options
        if pressed == "s":
            at = (SORTS.index(options.sort) + 1) % len(SORTS)
            self._options = replace(options, sort=SORTS[at], offset=0)
        elif pressed == "r":
            self._options = replace(options, reverse=not options.reverse, offset=0)
        elif pressed == "p":
            self._paused = None if self._paused is not None else self._poller.result
        elif pressed in _DOWN:
            view = self._result().view
            most = max(len(view.models) - 1, 0) if view is not None else 0
            self._options = replace(options, offset=min(options.offset + 1, most))
        elif pressed in _UP:
            self._options = replace(options, offset=max(options.offset - 1, 0))
        return True

    def _result(self) -> PollResult:
        return self._poller.result if self._paused is None else self._paused

    def drawn(self) -> Group:
        """Draw the whole screen for the terminal's present size."""
        width, height = self._console.size
        result = self._result()
        note, bad = self._note(result)
        options = replace(self._options, width=width, height=max(height - 1, 1), note=note, bad=bad)
        body = waiting(self._url, options) if result.view is None else lines(result.view, options)
        body += [Text("")] * (options.height - len(body))
        order = self._options.sort.lower() or "file"
        now = time.strftime("%H:%M:%S")
        foot = Text(f"{now}  {KEYS}  by {order}  {self._url}", style="bright_black")
        foot.truncate(width, overflow="ellipsis")
        for line in (*body, foot):
            line.no_wrap, line.overflow = True, "crop"
        return Group(*body, foot)

    def _note(self, result: PollResult) -> tuple[str, bool]:
        if self._paused is not None:
            return "paused, p continues", False
        if result.error is not None:
            silent_s = time.monotonic() - result.since_s
            return f"no answer for {silent_s:.0f} s: {error_text(result.error)}", True
        if result.view is not None and not result.view.broker:
            return "Redis does not answer the API", True
        return "", False


def waiting(url: str, options: ViewOptions) -> list[Text]:
    """Draw the screen before the first answer."""
    text = one_line(options.note or f"connecting to {url}")
    wrapped = Text(text, style="bold red" if options.bad else "")
    return list(wrapped.wrap(Console(width=options.width), options.width))[: options.height]


def run(poller: Poller, url: str) -> None:
    """Show the view until the user quits."""
    # Exported COLUMNS and LINES would not change when the terminal is resized.
    sizes = ("COLUMNS", "LINES")
    console = Console(_environ={k: v for k, v in os.environ.items() if k not in sizes})
    screen = Screen(poller, console, url)
    with _redraw_on_resize(poller), _keys(sys.stdin.fileno()) as keyboard:
        live = Live(screen.drawn(), console=console, screen=True, auto_refresh=False)
        with live:
            poller.start()
            going = True
            while going:
                live.update(screen.drawn(), refresh=True)
                ready, _, _ = select.select([keyboard, poller.wake_fd], [], [], REDRAW_S)
                if poller.wake_fd in ready:
                    poller.drain()
                if keyboard in ready:
                    going = all(screen.key(one) for one in pressed(keyboard))


def pressed(keyboard: int) -> list[str]:
    """Read the pressed keys, an arrow as one key; return `q` if the terminal is closed."""
    typed = os.read(keyboard, 1024).decode("utf-8", "replace")
    if not typed:
        return ["q"]
    found, at = [], 0
    while at < len(typed):
        # An arrow is an escape with two more characters.
        length = 3 if typed[at] == "\x1b" and typed[at + 1 : at + 2] in ("[", "O") else 1
        found.append(typed[at : at + length])
        at += length
    return found


def once(view: View, console: Console) -> list[Text]:
    """Draw a view for printing, with the width of the terminal or of COLUMNS."""
    return lines(view, ViewOptions(width=console.width))


@contextmanager
def _keys(keyboard: int) -> Iterator[int]:
    """Read keys one by one without echo, and ignore Ctrl-Z, which would leave the screen behind.

    Raises:
        termios.error: standard input is not a terminal.
    """
    before = termios.tcgetattr(keyboard)
    stopped = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    try:
        tty.setcbreak(keyboard)
        yield keyboard
    finally:
        # The terminal may be closed.
        with contextlib.suppress(termios.error):
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTSTP, stopped)


@contextmanager
def _redraw_on_resize(poller: Poller) -> Iterator[None]:
    """Redraw at once when the terminal's size changes."""

    def changed(*_: Any) -> None:
        poller.poke()

    before = signal.signal(signal.SIGWINCH, changed)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
