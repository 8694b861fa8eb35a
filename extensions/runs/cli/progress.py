"""Reports the progress of a run: a bar on a terminal, lines in a log, and the run's record."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from headrace.cli.shared import output
from headrace.cli.shared.progress_bar import Bar
from headrace.errors import Forbidden, HeadraceError, RunNotFound
from headrace.text import duration, path_text, rate

if TYPE_CHECKING:
    from headrace.client import Client
    from headrace.client.offline import RunProgress
    from headrace.runs.engine import Engine

#: Seconds between two updates of the record; an unreachable server is not waited for.
REPORT_S: Final = 3.0
REPORT_TIMEOUT_S: Final = 2.0
#: Seconds until the first line in a log; the interval doubles up to the second value.
FIRST_LINE_S: Final = 10.0
LINES_APART_S: Final = 60.0
#: The rate is measured over this many seconds.
RATE_OVER_S: Final = 30.0
#: What a run waits for, by the code of the limit (429).
_WAITS_FOR: Final = {
    "queue-full": "room in the queue",
    "rate-limited": "its API key's limit",
    "too-many-in-flight": "jobs of its API key to end",
}


class RateMeter:
    """Measures how fast inputs end, and estimates the remaining time."""

    def __init__(self, ended: int, now: float) -> None:
        self._samples: deque[tuple[float, int]] = deque([(now, ended)])

    def add(self, ended: int, now: float) -> None:
        """Add a sample: `ended` inputs have ended at `now`."""
        self._samples.append((now, ended))
        while len(self._samples) > 2 and self._samples[1][0] <= now - RATE_OVER_S:
            self._samples.popleft()

    @property
    def per_second(self) -> float:
        """Return the rate over the last RATE_OVER_S seconds."""
        (began, before), (now, ended) = self._samples[0], self._samples[-1]
        return (ended - before) / (now - began) if now > began else 0.0

    def left_s(self, total: int | None) -> float | None:
        """Return the seconds until all inputs have ended; None if that is unknown."""
        speed = self.per_second
        if total is None or not speed:
            return None
        return max(0, total - self._samples[-1][1]) / speed


class RunProgressDisplay:
    """Shows and records a run's progress; the engine calls `update` several times per second.

    Args:
        source: the source as the user gave it, for the record.
    """

    def __init__(self, url: str | None, engine: Engine, *, quiet: bool, source: str) -> None:
        self._url = url
        self._engine = engine
        self._source = source
        progress = engine.progress
        self._bar = Bar(engine.checkpoint.model, lambda: progress.total, quiet=quiet)
        self._bar.update(progress.ended, progress.failed)
        self._lines = not quiet and not sys.stderr.isatty()
        now = time.monotonic()
        self._meter = RateMeter(progress.ended, now)
        self._interval_s = FIRST_LINE_S
        self._next_line = now + FIRST_LINE_S
        self._next_report = now
        self._started = False
        # When the server was last sent this run's record before this process began; None: not read.
        self._last_report_before: str | None = None

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        progress = self._engine.progress
        self._bar.update(progress.ended, progress.failed)
        self._bar.__exit__(*error)

    def update(self, progress: RunProgress) -> None:
        """Update the bar; print a line and write the record if they are due."""
        now = time.monotonic()
        self._bar.update(progress.ended, progress.failed, note=waits_for(progress.limit))
        self._meter.add(progress.ended, now)
        if self._lines and now >= self._next_line:
            output.message(line_of(self._engine.checkpoint.model, progress, self._meter))
            self._interval_s = min(2 * self._interval_s, LINES_APART_S)
            self._next_line = now + self._interval_s
        if now >= self._next_report:
            self.report("running")
            self._next_report = time.monotonic() + REPORT_S

    def report(self, state: str, error: str = "") -> None:
        """Write the run's record, if the server answers; stop the run if it was cancelled."""
        from headrace import Client
        from headrace.client.admin import report_run
        from headrace.client.sync_client import run_plan

        checkpoint, progress = self._engine.checkpoint, self._engine.progress
        record = {
            "model": checkpoint.model, "name": checkpoint.name, "source": path_text(self._source),
            "output": checkpoint.output, "state": state, "total": progress.total,
            "succeeded": progress.succeeded, "failed": progress.failed,
            "in_flight": progress.in_flight, "per_second": round(self._meter.per_second, 3),
            "started_at": checkpoint.started_at,
            "command": ["headrace", *map(path_text, sys.argv[1:])],
            "host": socket.gethostname(), "folder": path_text(os.getcwd()), "error": error,
        }  # fmt: skip
        with (
            suppress(HeadraceError),
            Client(self._url, timeout_s=REPORT_TIMEOUT_S, retry_s=0) as client,
        ):
            begun = not self._started and not self._was_written(client)
            cancelled = run_plan(
                client, report_run(client.session, checkpoint.run, record, begun=begun)
            )
            self._started = True
            if cancelled:
                self._engine.stop(cancel=True)

    def _was_written(self, client: Client) -> bool:
        """Return whether a report of this process was written and its response was lost.

        The first report removes the cancellation of an earlier process of this run. A second first
        report would remove a cancellation of this one.
        """
        try:
            last_report = str(client.run_record(self._engine.checkpoint.run).told_at)
        except (RunNotFound, Forbidden):
            last_report = ""
        if self._last_report_before is None:
            self._last_report_before = last_report
        return last_report != self._last_report_before


def line_of(name: str, progress: RunProgress, meter: RateMeter) -> str:
    """Return a run's progress on one line."""
    ended, total = progress.ended, progress.total
    parts = [f"{ended:,}" if total is None else f"{ended:,} of {total:,}"]
    if total:
        parts[0] += f" ({100 * min(ended / total, 1):.1f} %)"
    parts.append(rate(meter.per_second))
    if progress.failed:
        parts.append(f"{progress.failed:,} failed")
    left_s = meter.left_s(total)
    if left_s is not None:
        parts.append(f"{duration(left_s)} left")
    if progress.limit:
        parts.append(waits_for(progress.limit))
    return f"{name}: {', '.join(parts)}"


def waits_for(limit: str) -> str:
    """Return what a run waits for, for people; "" for no limit."""
    return f"waits for {_WAITS_FOR.get(limit, 'a limit')}" if limit else ""
