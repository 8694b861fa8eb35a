"""Threads that run next to a worker's main loop."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import os
import queue
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
    """Run the body of a thread without which the process is useless; an error ends the process.

    A worker that sends heartbeats and does nothing is worse than none. When the process ends, its
    supervisor starts another, and the jobs that it held return to their queues.

    Args:
        run: the body of the thread.
        what: the name of the thread, for the log.
    """
    try:
        run()
    except BaseException:
        logger.critical("%s thread ended by an error", what, exc_info=True)
        os._exit(SOFTWARE_ERROR_STATUS)


class BackgroundThreads(Generic[TaskT, ResultT]):
    """Threads that do blocking work, and the mailbox through which a selector loop talks to them.

    The loop submits tasks and takes results. The pipe behind `fileno` is readable while there are
    results. Threads start when they are first needed.

    Args:
        work: does one task, in a thread. It passes results to `deliver`, and returns the seconds
            after which to try the task again, or None if it is done.
        name: of the threads, to which their number is added.
        max_threads: how many tasks may run at once.
    """

    def __init__(
        self, work: Callable[[TaskT], float | None], name: str, max_threads: int = 1
    ) -> None:
        self._work = work
        self._name = name
        self._max_threads = max_threads
        self._tasks: queue.SimpleQueue[TaskT | None] = queue.SimpleQueue()
        self._results: deque[ResultT] = deque()
        self._out, self._in = os.pipe()
        os.set_blocking(self._out, False)
        os.set_blocking(self._in, False)
        self._threads: list[threading.Thread] = []
        self._idle = threading.Semaphore(0)

    def fileno(self) -> int:
        """Return the descriptor for a selector: readable while there are results."""
        return self._out

    def submit(self, task: TaskT) -> None:
        """Queue a task, and start a thread for it if none is idle."""
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._max_threads:
            name = f"{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._tasks.put(task)

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

        Returns:
            Whether all threads have ended. One that is blocked ends with the process.
        """
        for _ in self._threads:
            self._tasks.put(None)
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            return False
        os.close(self._out)
        os.close(self._in)
        return True

    def _run(self) -> None:
        later: list[tuple[float, int, TaskT]] = []
        order = itertools.count()
        while (task := self._next(later)) is not None:
            again_s = self._work(task)
            if again_s is None:
                self._idle.release()
            else:
                heapq.heappush(later, (time.monotonic() + again_s, next(order), task))

    def _next(self, later: list[tuple[float, int, TaskT]]) -> TaskT | None:
        """Return a task that is due again, or else a new one; None if the thread must end."""
        while True:
            now = time.monotonic()
            if later and later[0][0] <= now:
                return heapq.heappop(later)[2]
            with contextlib.suppress(queue.Empty):
                return self._tasks.get(timeout=later[0][0] - now if later else None)
