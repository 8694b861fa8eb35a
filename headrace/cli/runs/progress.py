"""What is said of a run while it lasts: a bar on a terminal, lines in a log, and its record."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections import deque
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final, Self

from headrace.cli.shared import output
from headrace.cli.shared.progress_bar import Bar
from headrace.errors import HeadraceError
from headrace.runs.checkpoint_file import path_text

if TYPE_CHECKING:
    from headrace.runs.engine.engine import Engine
    from headrace.runs.engine.spec import RunProgress

#: The record is told so often, and a server that is away is not waited for.
TELL_S: Final = 3.0
TELL_TIMEOUT_S: Final = 2.0
#: In a log the first line comes after so long, and each next one after twice as long, up to this.
FIRST_LINE_S: Final = 10.0
LINES_APART_S: Final = 60.0
#: The rate is that of so many last seconds.
RATE_OVER_S: Final = 30.0


class Pacer:
    """How fast inputs end, and how long the rest may take.

    Args:
        ended: how many had when it began.
        now: seconds of a clock.
    """

    def __init__(self, ended: int, now: float) -> None:
        self._seen: deque[tuple[float, int]] = deque([(now, ended)])

    def see(self, ended: int, now: float) -> None:
        """So many have ended by now."""
        self._seen.append((now, ended))
        while len(self._seen) > 2 and self._seen[1][0] <= now - RATE_OVER_S:
            self._seen.popleft()

    @property
    def per_second(self) -> float:
        """The rate of the last seconds."""
        (began, before), (now, ended) = self._seen[0], self._seen[-1]
        return (ended - before) / (now - began) if now > began else 0.0

    def left_s(self, total: int | None) -> float | None:
        """Seconds until all have ended; None where nobody can tell."""
        rate = self.per_second
        if total is None or not rate:
            return None
        return max(0, total - self._seen[-1][1]) / rate


class RunProgressDisplay:
    """Told by the engine a few times a second.

    Args:
        url: the server.
        engine: the run.
        quiet: say nothing on standard error.
        source: what the user named, for the record.
    """

    def __init__(self, url: str | None, engine: Engine, *, quiet: bool, source: str) -> None:
        self._url = url
        self._engine = engine
        self._source = source
        self._stack = ExitStack()
        progress = engine.progress
        self._bar = Bar(engine.checkpoint.model, lambda: progress.total, quiet=quiet)
        self._bar.ended, self._bar.failed = progress.ended, progress.failed
        self._lines = not quiet and not sys.stderr.isatty()
        now = time.monotonic()
        self._pacer = Pacer(progress.ended, now)
        self._apart_s = FIRST_LINE_S
        self._next_line = now + FIRST_LINE_S
        self._next_word = now
        self._begun = False

    def __enter__(self) -> Self:
        self._stack.enter_context(self._bar)
        return self

    def __exit__(self, *_: object) -> None:
        progress = self._engine.progress
        self._bar.ended, self._bar.failed = progress.ended, progress.failed
        self._stack.close()

    def look(self, progress: RunProgress) -> None:
        """Say what there is to say by now."""
        now = time.monotonic()
        self._bar.ended, self._bar.failed = progress.ended, progress.failed
        self._pacer.see(progress.ended, now)
        if self._lines and now >= self._next_line:
            output.say(line_of(self._engine.checkpoint.model, progress, self._pacer))
            self._apart_s = min(2 * self._apart_s, LINES_APART_S)
            self._next_line = now + self._apart_s
        if now >= self._next_word:
            self.tell("running")
            self._next_word = time.monotonic() + TELL_S

    def tell(self, state: str, why: str = "") -> None:
        """Tell the run's record, which nobody has to be there for; hear whether to stop."""
        from headrace import Client
        from headrace.client.offline import tell_run

        kept, progress = self._engine.checkpoint, self._engine.progress
        told = {
            "model": kept.model, "name": kept.name, "source": path_text(self._source),
            "output": kept.output, "state": state, "total": progress.total,
            "succeeded": progress.succeeded, "failed": progress.failed,
            "in_flight": progress.in_flight, "per_second": round(self._pacer.per_second, 3),
            "started_at": kept.started_at,
            "command": ["headrace", *map(path_text, sys.argv[1:])],
            "host": socket.gethostname(), "folder": path_text(os.getcwd()), "error": why,
        }  # fmt: skip
        begun = not self._begun
        with (
            suppress(HeadraceError),
            Client(self._url, timeout_s=TELL_TIMEOUT_S, retry_s=0) as client,
        ):
            cancelled = client.run(tell_run(client.session, kept.run, told, begun=begun))
            self._begun = True
            if cancelled:
                self._engine.stop(cancel=True)


def line_of(name: str, progress: RunProgress, pacer: Pacer) -> str:
    """How far a run is, on one line."""
    ended, total = progress.ended, progress.total
    parts = [f"{ended:,}" if total is None else f"{ended:,} of {total:,}"]
    if total:
        parts[0] += f" ({100 * min(ended / total, 1):.1f} %)"
    rate = pacer.per_second
    parts.append(f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s")
    if progress.failed:
        parts.append(f"{progress.failed:,} failed")
    left_s = pacer.left_s(total)
    if left_s is not None:
        parts.append(f"{output.span(left_s)} left")
    return f"{name}: {', '.join(parts)}"
