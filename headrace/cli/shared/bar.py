"""The drawn progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text
from typing_extensions import override

_REFRESHES_PER_S: Final = 4
_SPEED_OVER_S: Final = 20
_WHOLE_FROM: Final = 10


class DrawnBar(Progress):
    """A progress bar on standard error.

    Args:
        name: label of the bar.
        total: number of jobs; None if it is unknown.
        counts: returns how many have ended and how many of those failed; called at each refresh,
            so that counting itself costs nothing.
    """

    def __init__(self, name: str, total: int | None, counts: Callable[[], tuple[int, int]]) -> None:
        self._counts = counts
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            _Rate(),
            TimeRemainingColumn(),
            _Failed(),
            console=Console(stderr=True),
            refresh_per_second=_REFRESHES_PER_S,
            speed_estimate_period=_SPEED_OVER_S,
            # Output to a pipe must not be redirected to the terminal.
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self.add_task(name, total=total, failed=0)

    def above(self, text: str) -> None:
        """Print a line above the bar, without markup."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    @override
    def get_renderables(self) -> Iterable[RenderableType]:
        ended, failed = self._counts()
        for task in self.task_ids:  # none during __init__
            self.update(task, completed=ended, failed=failed)
        yield from super().get_renderables()


class _Rate(ProgressColumn):
    """Jobs that ended per second, over the last _SPEED_OVER_S seconds."""

    @override
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        if speed is None:
            return Text("")
        return Text(f"{speed:,.0f}/s" if speed >= _WHOLE_FROM else f"{speed:.1f}/s")


class _Failed(ProgressColumn):
    """The number of failed jobs, if there are any."""

    @override
    def render(self, task: Task) -> Text:
        failed = task.fields["failed"]
        return Text(f"{failed:,} failed" if failed else "", style="red")
