"""Threads that run next to a worker's main loop."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

logger = logging.getLogger(__name__)

#: EX_SOFTWARE of sysexits.h: an internal error, as bad as a crash.
SOFTWARE_ERROR_STATUS: Final = 70

TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")


def run_critical(run: Callable[[], object], what: str) -> None:
    """Run the body of a thread that the process needs; an error ends the process.

    A worker that sends heartbeats and does nothing is worse than none. When the process ends, its
    supervisor starts another, and the jobs that it held return to their queues.
    """
    try:
        run()
    except BaseException:
        logger.critical("%s thread ended by an error", what, exc_info=True)
        os._exit(SOFTWARE_ERROR_STATUS)


class BackgroundThreads(Generic[TaskT, ResultT]):
    """Threads that do blocking work, and the mailbox through which a selector loop talks to them.

    `work` does a task, in a thread. It passes results to `deliver`, and returns the seconds after
    which to try the task again, or None if it is done.

    The loop submits tasks and takes results. The pipe behind `fileno` is readable while there are
    results. Threads start when they are first needed.
    """

    def __init__(
        self, work: Callable[[TaskT], float | None], name: str, max_threads: int = 1
    ) -> None:
        self._work = work
        self._name = name
        self._max_threads = max_threads
        # In Python 3.11 a SimpleQueue that several threads read can outwait its timeout for ever.
        self._changed = threading.Condition()
        self._tasks: deque[TaskT] = deque()
        self._later: list[tuple[float, int, TaskT]] = []
        self._order = itertools.count()
        self._idle = 0
        self._closing = False
        self._results: deque[ResultT] = deque()
        self._out, self._in = os.pipe()
        os.set_blocking(self._out, False)
        os.set_blocking(self._in, False)
        self._threads: list[threading.Thread] = []

    def fileno(self) -> int:
        """Return the descriptor for a selector: readable while there are results."""
        return self._out

    def submit(self, task: TaskT) -> None:
        """Queue a task, and start a thread for it if none is idle."""
        with self._changed:
            self._tasks.append(task)
            idle = self._idle >= len(self._tasks)
            self._changed.notify()
        if not idle and len(self._threads) < self._max_threads:
            name = f"{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def deliver(self, result: ResultT) -> None:
        """Add a result and wake the loop; called by the threads."""
        self._results.append(result)
        # A full pipe wakes the loop too.
        with contextlib.suppress(BlockingIOError):
            os.write(self._in, b"x")

    def take_results(self) -> list[ResultT]:
        """Return the results since the last call."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._out, 4096):
                pass
        results = []
        while self._results:
            results.append(self._results.popleft())
        return results

    def close(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for the queued tasks, and end the threads.

        Tasks that wait for another try are dropped.

        Returns:
            Whether all threads have ended. One that is blocked ends with the process.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            return False
        os.close(self._out)
        os.close(self._in)
        return True

    def _run(self) -> None:
        while (task := self._next()) is not None:
            again_s = self._work(task)
            if again_s is not None:
                with self._changed:
                    due = (time.monotonic() + again_s, next(self._order), task)
                    heapq.heappush(self._later, due)
                    # A waiting thread may have to wake earlier.
                    self._changed.notify()

    def _next(self) -> TaskT | None:
        """Return a task that is due again, or else a new task; None if the thread must end."""
        with self._changed:
            while True:
                now = time.monotonic()
                if self._later and self._later[0][0] <= now and not self._closing:
                    if self._tasks:
                        # The thread that was woken for it may be this thread.
                        self._changed.notify()
                    return heapq.heappop(self._later)[2]
                if self._tasks:
                    return self._tasks.popleft()
                if self._closing:
                    return None
                self._idle += 1
                self._changed.wait(self._later[0][0] - now if self._later else None)
                self._idle -= 1
