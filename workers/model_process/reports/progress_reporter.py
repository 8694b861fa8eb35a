"""Sends the progress that a handler reports, out of the process that runs the handler.

A handler may report as often as it likes. The newest report of each item is kept, and a thread
sends the reports a few times a second. A report is sent before its batch's outcomes, or not at all.
"""

from __future__ import annotations

import logging
import operator
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.jobs.progress import Progress

logger = logging.getLogger("headrace.model")

#: The minimum time between two frames of a process, in seconds.
INTERVAL_S: Final = 0.2

#: A job's id, then the fields of its Progress.
Row = list[Any]
#: (job id, input, content type) of each item.
Inputs = Sequence[tuple[str, *tuple[Any, ...]]]


@dataclass(slots=True, eq=False)
class BatchProgress:
    """The unsent reports of a batch.

    Attributes:
        latest: the newest unsent report of each job, by its id.
        reported: the handler has reported something.
        over: the batch's outcomes are known, and later reports are ignored.
    """

    seq: int = 0
    latest: dict[str, Progress] = field(default_factory=dict)
    reported: bool = False
    over: bool = False


#: The items of the running verb: item n of its argument is job `inputs[places[n]]`, or `inputs[n]`
#: without places; then come `padding` added items. A tuple, because each batch makes three of them
#: and most handlers report nothing.
_Current = tuple[BatchProgress | None, Inputs, Sequence[int] | None, int]
_NONE: Final[_Current] = (None, (), None, 0)


class ProgressReporter:
    """Takes the handler's reports and sends them.

    `send` is called by one thread. If `shared`, only one batch runs at a time, so reports of any
    thread are about that batch. Otherwise a report is about the batch of its thread (or
    `contextvars` context).
    """

    def __init__(self, send: Callable[[int, list[Row]], None], *, shared: bool) -> None:
        self._send = send
        self._shared = shared
        self._only: _Current | None = None
        self._own: ContextVar[_Current | None] = ContextVar("headrace_current_batch", default=None)
        self._changed = threading.Condition()
        self._waiting: dict[BatchProgress, None] = {}
        self._thread: threading.Thread | None = None
        self._warned = False

    def enter(
        self,
        progress: BatchProgress | None,
        inputs: Inputs,
        places: Sequence[int] | None = None,
        padding: int = 0,
    ) -> None:
        """Set the items that a verb begins to work on; `progress` None discards its reports."""
        if self._shared:
            self._only = (progress, inputs, places, padding)
        else:
            self._own.set((progress, inputs, places, padding))

    def leave(self) -> None:
        """Note that the verb has ended."""
        if self._shared:
            self._only = None
        else:
            self._own.set(None)

    def narrow(self, inputs: Inputs) -> None:
        """Set this thread's share of the batch that the verb works on."""
        current = None if self._shared else self._own.get()
        if current is not None and current[1] is not inputs:
            self._own.set((current[0], inputs, None, 0))

    def report(self, item: Any, report: Progress) -> None:
        """Note the handler's report about an item; None means all of them."""
        progress, inputs, places, padding = self._current()
        if progress is None:
            return
        count = len(inputs if places is None else places)
        if item is None:
            wanted: Sequence[int] = range(count) if places is None else places
        else:
            nth = _index(item)
            if not 0 <= nth < count:
                # An item that was added to reach an allowed size belongs to no job.
                if not 0 <= nth < count + padding:
                    self._warn(item, count)
                return
            wanted = (nth if places is None else places[nth],)
        self._put(progress, {inputs[place][0]: report for place in wanted})

    def forward(self, rows: Sequence[Row]) -> None:
        """Take reports that a preprocess process has sent about this thread's batch."""
        progress, inputs, _, _ = self._current()
        if progress is None:
            return
        known = {job_id for job_id, *_ in inputs}
        self._put(progress, {job_id: Progress(*rest) for job_id, *rest in rows if job_id in known})

    def close(self, progress: BatchProgress) -> None:
        """Drop the batch's unsent reports, as its outcomes are about to be sent."""
        progress.over = True
        if progress.reported:
            with self._changed:
                self._waiting.pop(progress, None)

    def _current(self) -> _Current:
        return (self._only if self._shared else self._own.get()) or _NONE

    def _put(self, progress: BatchProgress, reports: dict[str, Progress]) -> None:
        with self._changed:
            if progress.over or not reports:
                return
            progress.reported = True
            progress.latest.update(reports)
            self._waiting[progress] = None
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="headrace-progress", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                # Under the lock, so that no batch ends in between; see `close`.
                for progress in self._waiting:
                    rows = [
                        [job_id, report.fraction, report.done, report.total, report.message]
                        for job_id, report in progress.latest.items()
                    ]
                    progress.latest = {}
                    try:
                        self._send(progress.seq, rows)
                    except OSError:  # the reader has ended, and this process ends too
                        return
                self._waiting.clear()
            time.sleep(INTERVAL_S)

    def _warn(self, item: Any, count: int) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "progress(item=%.40r) ignored: the batch has %d items, counted from 0; further "
                "warnings are suppressed",
                item,
                count,
            )


def _index(item: Any) -> int:
    try:
        return operator.index(item)
    except TypeError:
        return -1
