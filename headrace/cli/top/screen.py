"""The terminal: the view is kept on it, keys are answered, and it is given back as it was."""

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
from headrace.cli.top.layout import KEYS, SORTS, Shown, lines
from headrace.cli.top.poller import Poller, PollResult
from headrace.cli.top.tables import one_line
from headrace.cli.top.view import View

#: Drawn anew at least so often, as it says how long a server has not answered.
REDRAW_S: Final = 1.0
_UP: Final = ("\x1b[A", "\x1bOA", "k")
_DOWN: Final = ("\x1b[B", "\x1bOB", "j")
_QUIT: Final = ("q", "Q", "\x1b")


class Screen:
    """What the viewer sees, and what keys change of it.

    Args:
        watch: what looks at the server.
        console: the terminal.
        url: stands in the last line.
    """

    def __init__(self, watch: Poller, console: Console, url: str) -> None:
        self._watch = watch
        self._console = console
        self._url = url
        self._shown = Shown(width=80)
        self._held: PollResult | None = None  # what was seen as it was paused

    def key(self, pressed: str) -> bool:
        """Answer a key; whether to go on."""
        if pressed in _QUIT:
            return False
        shown = self._shown
        if pressed == "s":
            at = (SORTS.index(shown.sort) + 1) % len(SORTS)
            self._shown = replace(shown, sort=SORTS[at], offset=0)
        elif pressed == "r":
            self._shown = replace(shown, reverse=not shown.reverse, offset=0)
        elif pressed == "p":
            self._held = None if self._held is not None else self._watch.seen
        elif pressed in _DOWN:
            view = self._seen().view
            most = max(len(view.models) - 1, 0) if view is not None else 0
            self._shown = replace(shown, offset=min(shown.offset + 1, most))
        elif pressed in _UP:
            self._shown = replace(shown, offset=max(shown.offset - 1, 0))
        return True

    def _seen(self) -> PollResult:
        return self._watch.seen if self._held is None else self._held

    def drawn(self) -> Group:
        """The whole screen, to the terminal's present size."""
        width, height = self._console.size
        seen = self._seen()
        note, bad = self._note(seen)
        shown = replace(self._shown, width=width, height=max(height - 1, 1), note=note, bad=bad)
        body = waiting(self._url, shown) if seen.view is None else lines(seen.view, shown)
        body += [Text("")] * (shown.height - len(body))
        order = self._shown.sort.lower() or "file"
        now = time.strftime("%H:%M:%S")
        foot = Text(f"{now}  {KEYS}  by {order}  {self._url}", style="bright_black")
        foot.truncate(width, overflow="ellipsis")
        for line in (*body, foot):
            line.no_wrap, line.overflow = True, "crop"
        return Group(*body, foot)

    def _note(self, seen: PollResult) -> tuple[str, bool]:
        if self._held is not None:
            return "paused: p goes on", False
        if seen.error is not None:
            silent_s = time.monotonic() - seen.since_s
            return f"no answer for {silent_s:.0f} s: {error_text(seen.error)}", True
        if seen.view is not None and not seen.view.broker:
            return "Redis does not answer the API", True
        return "", False


def waiting(url: str, shown: Shown) -> list[Text]:
    """What is shown before the first answer."""
    text = one_line(shown.note or f"looking at {url}")
    wrapped = Text(text, style="bold red" if shown.bad else "")
    return list(wrapped.wrap(Console(width=shown.width), shown.width))[: shown.height]


def run(watch: Poller, url: str) -> None:
    """Show it until somebody quits."""
    # Where a shell has exported them, they would stay what they were when it is resized.
    sizes = ("COLUMNS", "LINES")
    console = Console(_environ={k: v for k, v in os.environ.items() if k not in sizes})
    screen = Screen(watch, console, url)
    with _winch(watch), _keys(sys.stdin.fileno()) as keyboard:
        live = Live(screen.drawn(), console=console, screen=True, auto_refresh=False)
        with live:
            watch.start()
            going = True
            while going:
                live.update(screen.drawn(), refresh=True)
                ready, _, _ = select.select([keyboard, watch.wake_fd], [], [], REDRAW_S)
                if watch.wake_fd in ready:
                    watch.drain()
                if keyboard in ready:
                    going = all(screen.key(one) for one in pressed(keyboard))


def pressed(keyboard: int) -> list[str]:
    """The keys that were pressed, arrows as one each; `q` where nobody can press any more."""
    typed = os.read(keyboard, 1024).decode("utf-8", "replace")
    if not typed:
        return ["q"]
    found, at = [], 0
    while at < len(typed):
        # An arrow is an escape and two more; an escape alone is itself.
        length = 3 if typed[at] == "\x1b" and typed[at + 1 : at + 2] in ("[", "O") else 1
        found.append(typed[at : at + length])
        at += length
    return found


def once(view: View, console: Console) -> list[Text]:
    """A view as it is printed, to the width of the terminal or of COLUMNS."""
    return lines(view, Shown(width=console.width))


@contextmanager
def _keys(keyboard: int) -> Iterator[int]:
    """Keys come one by one and are not echoed; Ctrl-Z would leave the screen behind, and does not.

    Raises:
        termios.error: there is no terminal.
    """
    before = termios.tcgetattr(keyboard)
    stopped = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    try:
        tty.setcbreak(keyboard)
        yield keyboard
    finally:
        # The terminal may be gone.
        with contextlib.suppress(termios.error):
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTSTP, stopped)


@contextmanager
def _winch(watch: Poller) -> Iterator[None]:
    """A terminal that changes its size is drawn anew at once."""

    def changed(*_: Any) -> None:
        watch.poke()

    before = signal.signal(signal.SIGWINCH, changed)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
