"""The progress bar on standard error: count, rate, remaining time, failures, a note."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Self

from headrace.cli.shared import output
from headrace.text import rate

if TYPE_CHECKING:
    from rich.progress import Progress

#: Minimum seconds between two updates of the drawn bar, so that counting a job costs nothing.
DRAW_S: Final = 0.1
#: The rate is measured over this many seconds.
_RATE_OVER_S: Final = 20


class Bar:
    """Shows progress on a terminal unless `quiet`; `count` returns the total, None if unknown."""

    def __init__(self, name: str, count: Callable[[], int | None], *, quiet: bool) -> None:
        self.ended = self.failed = 0
        self.note = ""
        self._next_draw = 0.0
        self._progress: Progress | None = None
        if not quiet and sys.stderr.isatty():
            self._progress = _progress()
            self._task = self._progress.add_task(name, total=count(), rate="", failed="", note="")

    def update(self, ended: int, failed: int, *, note: str = "") -> None:
        """Set the numbers of ended and failed jobs, and a note of a few words."""
        self.ended, self.failed, self.note = ended, failed, note
        if self._progress is not None and time.monotonic() >= self._next_draw:
            self._next_draw = time.monotonic() + DRAW_S
            self._draw(self._progress)

    def message(self, text: str) -> None:
        """Print a line for people on standard error, above the bar if there is one."""
        if self._progress is None:
            output.message(text)
        else:
            self._print_above(self._progress, f"headrace: {text}")

    def print_result(self, text: str) -> None:
        """Print a line on standard output; above the bar if both use the same terminal."""
        if self._progress is None or not sys.stdout.isatty():
            output.line(text)
        else:
            self._print_above(self._progress, text)

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._draw(self._progress)
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._draw(self._progress)
            self._progress.stop()

    def _draw(self, progress: Progress) -> None:
        task = progress.tasks[0]
        speed = task.finished_speed or task.speed
        shown = "" if speed is None else rate(speed)
        failed = f"{self.failed:,} failed" if self.failed else ""
        progress.update(self._task, completed=self.ended, rate=shown, failed=failed, note=self.note)

    @staticmethod
    def _print_above(progress: Progress, text: str) -> None:
        text = output.printable(text)
        progress.console.print(text, markup=False, highlight=False, soft_wrap=True)


def _progress() -> Progress:
    # Imported here: rich takes a tenth of a second to load, and only a terminal needs it.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(),
        TextColumn("{task.fields[failed]}", style="red", markup=False),
        TextColumn("{task.fields[note]}", markup=False),
        console=Console(stderr=True),
        refresh_per_second=4,
        speed_estimate_period=_RATE_OVER_S,
        # Output to a pipe must not be redirected to the terminal.
        redirect_stdout=False,
        redirect_stderr=False,
    )
