"""The progress bar on standard error: count, rate, remaining time, failures."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from headrace.cli.shared import output

if TYPE_CHECKING:
    from headrace.cli.shared.bar import DrawnBar


class Bar:
    """Shows progress on a terminal; does nothing elsewhere, or if `quiet`.

    Args:
        name: label of the bar.
        count: returns the total, or None if it is unknown; called only if a bar is shown.
        quiet: show no bar.

    Attributes:
        ended: number of jobs that have ended.
        failed: number of those that failed.
    """

    def __init__(self, name: str, count: Callable[[], int | None], *, quiet: bool) -> None:
        self.ended = self.failed = 0
        self._drawn: DrawnBar | None = None
        if not quiet and sys.stderr.isatty():
            from headrace.cli.shared.bar import DrawnBar

            self._drawn = DrawnBar(name, count(), lambda: (self.ended, self.failed))

    def advance(self, *, failed: bool) -> None:
        """Count one more job that has ended."""
        self.ended += 1
        self.failed += failed

    def message(self, text: str) -> None:
        """Print a line for people on standard error, above the bar if there is one."""
        if self._drawn is None:
            output.message(text)
        else:
            self._drawn.above(f"headrace: {text}")

    def print_result(self, text: str) -> None:
        """Print a line on standard output; above the bar if both use the same terminal."""
        if self._drawn is None or not sys.stdout.isatty():
            output.line(text)
        else:
            self._drawn.above(text)

    def __enter__(self) -> Self:
        if self._drawn is not None:
            self._drawn.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn is not None:
            self._drawn.stop()
