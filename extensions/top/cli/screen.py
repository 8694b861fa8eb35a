"""The live view of a server, which keys change; or one view, printed once."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from extensions.top.cli.layout import KEYS, SORTS, ViewOptions, lines
from extensions.top.cli.sample import Sample, read
from extensions.top.cli.view import View, view_of
from headrace import Client
from headrace.cli.shared import output
from headrace.cli.shared.exit_codes import ExitCode
from headrace.cli.shared.interrupts import InterruptHandler, Terminated
from headrace.client.sync_client import run_plan
from headrace.errors import HeadraceError

#: Seconds between two looks for a new view or another size of the terminal.
LOOK_S: Final = 0.1
#: Rates are measured over about this many seconds; workers report once per second.
WINDOW_S: Final = 5.0
#: Samples that are further apart give no present rate.
GAP_S: Final = 60.0
#: A series that a server without Redis does not have.
_NEEDS_REDIS: Final = "headrace_queue_depth"
_UP: Final = ("\x1b[A", "\x1bOA", "k")
_DOWN: Final = ("\x1b[B", "\x1bOB", "j")
_QUIT: Final = ("q", "Q", "\x1b")


def print_once(client: Client, interval_s: float) -> None:
    """Print one view, with rates over an interval."""
    before = run_plan(client, read(client.session))
    time.sleep(interval_s)
    view = view_of(run_plan(client, read(client.session)), before)
    coloured = output.coloured()
    console = Console(no_color=not coloured)
    for line in lines(view, ViewOptions(width=console.width)):
        if coloured:
            line.rstrip()
            console.print(line, no_wrap=True, overflow="crop")
        else:
            output.line(line.plain.rstrip())


def live(client: Client, interval_s: float) -> ExitCode:
    """Show the view until a key or a signal ends it."""
    poller = Poller(client, interval_s)
    with InterruptHandler(None) as stops:
        try:
            _run(poller, client.session.url)
        except KeyboardInterrupt:
            return ExitCode.INTERRUPTED
        except Terminated:
            return ExitCode.TERMINATED
        finally:
            stops.ignore()
            poller.stop()
    return ExitCode.DONE


@dataclass(frozen=True, slots=True)
class PollResult:
    """The result of the last poll."""

    view: View | None = None
    error: HeadraceError | None = None
    since_s: float = 0.0


class History:
    """The samples of the last seconds, for rates."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._samples: deque[Sample] = deque()

    def add(self, sample: Sample) -> View:
        """Add the newest sample and return its view."""
        if self._samples and sample.at_s - self._samples[-1].at_s > GAP_S:
            self._samples.clear()
        # Keep the newest sample that is old enough.
        while len(self._samples) > 1 and sample.at_s - self._samples[1].at_s >= self._window_s:
            self._samples.popleft()
        before = next((one for one in self._samples if one.series.get(_NEEDS_REDIS)), None)
        self._samples.append(sample)
        return view_of(sample, before)


class Poller:
    """Polls a server in a thread until it is stopped, so that the screen reacts to keys at once.

    Args:
        client: the server; used only by the thread. It must not retry.
    """

    def __init__(self, client: Client, interval_s: float) -> None:
        self.result = PollResult()
        self._client = client
        self._interval_s = interval_s
        self._history = History()
        self._stopping = threading.Event()
        # A daemon thread: a server that never answers must not delay the exit.
        self._thread = threading.Thread(target=self._run, name="headrace-top", daemon=True)

    def start(self) -> None:
        """Start polling."""
        self._thread.start()

    def stop(self) -> None:
        """Stop polling."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.result = self._poll()
            # The second poll gives the first rates, so it follows soon.
            first = self.result.view is not None and self.result.view.requests_s is None
            self._stopping.wait(min(self._interval_s, 1.0) if first else self._interval_s)

    def _poll(self) -> PollResult:
        started_s = time.monotonic()
        try:
            sample = run_plan(self._client, read(self._client.session))
        except HeadraceError as error:
            since_s = self.result.since_s if self.result.error is not None else started_s
            return PollResult(self.result.view, error, since_s)
        return PollResult(self._history.add(sample))


class Screen:
    """The screen and the state that keys change."""

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
            return f"no answer for {silent_s:.0f} s: {output.error_text(result.error)}", True
        if result.view is not None and not result.view.broker:
            return "Redis does not answer the API", True
        return "", False


def waiting(url: str, options: ViewOptions) -> list[Text]:
    """Draw the screen before the first answer."""
    text = output.one_line(options.note or f"connecting to {url}")
    wrapped = Text(text, style="bold red" if options.bad else "")
    return list(wrapped.wrap(Console(width=options.width), options.width))[: options.height]


def _run(poller: Poller, url: str) -> None:
    """Show the view until the user quits."""
    # Exported COLUMNS and LINES would not change when the terminal is resized.
    sizes = ("COLUMNS", "LINES")
    console = Console(_environ={k: v for k, v in os.environ.items() if k not in sizes})
    screen = Screen(poller, console, url)
    with _keys(sys.stdin.fileno()) as keyboard:
        live = Live(screen.drawn(), console=console, screen=True, auto_refresh=False)
        with live:
            poller.start()
            going, drawn = True, None
            while going:
                # Each second too: the first line counts the seconds without an answer.
                state = (id(poller.result), console.size, int(time.monotonic()))
                if state != drawn:
                    live.update(screen.drawn(), refresh=True)
                    drawn = state
                if select.select([keyboard], [], [], LOOK_S)[0]:
                    going, drawn = all(screen.key(one) for one in pressed(keyboard)), None


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
