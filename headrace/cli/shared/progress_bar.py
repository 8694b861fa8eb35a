"""The bar on standard error: how many have ended, how fast, how long it may still take."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from headrace.cli.shared import output

if TYPE_CHECKING:
    from headrace.cli.shared.bar import DrawnBar


class Bar:
    """Shows progress on a terminal; elsewhere, and when it is to be quiet, it does nothing.

    Args:
        name: what is done.
        count: says how many there are, None where nobody knows; asked only when a bar is shown.
        quiet: show nothing.

    Attributes:
        ended: how many have.
        failed: how many of those did not succeed.
    """

    def __init__(self, name: str, count: Callable[[], int | None], *, quiet: bool) -> None:
        self.ended = self.failed = 0
        self._drawn: DrawnBar | None = None
        if not quiet and sys.stderr.isatty():
            from headrace.cli.shared.bar import DrawnBar

            self._drawn = DrawnBar(name, count(), lambda: (self.ended, self.failed))

    def advance(self, *, failed: bool) -> None:
        """One more has ended."""
        self.ended += 1
        self.failed += failed

    def say(self, text: str) -> None:
        """A line for people on standard error, above the bar where there is one."""
        if self._drawn is None:
            output.say(text)
        else:
            self._drawn.above(f"headrace: {text}")

    def print_result(self, text: str) -> None:
        """A line on standard output; where that is the bar's own terminal, above the bar."""
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
