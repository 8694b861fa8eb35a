"""The thread that deletes jobs from the server once their rows are durable."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from typing_extensions import override

from headrace.client.bulk import LOOKUP_JOBS

#: With this many jobs to delete the run waits: Redis should hold only what is in flight.
BACKLOG_MAX: Final = 50_000


class JobCleanup(threading.Thread):
    """Deletes jobs in the background.

    Attributes:
        error: what ended the thread early; the engine raises it again.
    """

    def __init__(self, forget: Callable[[Sequence[str]], object]) -> None:
        super().__init__(name="headrace-cleanup", daemon=True)
        self.error: BaseException | None = None
        self._forget = forget
        self._waiting: deque[str] = deque()
        self._changed = threading.Condition()
        self._ending = False

    def add(self, ids: Iterable[str]) -> None:
        """Add jobs to delete; wait while there are BACKLOG_MAX of them."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) < BACKLOG_MAX or self._ending)
            self._waiting.extend(ids)
            self._changed.notify_all()

    def end(self, *, drop: bool = False) -> None:
        """End the thread once nothing waits.

        Args:
            drop: do not delete what waits; it expires after its result_ttl.
        """
        with self._changed:
            self._ending = True
            if drop:
                self._waiting.clear()
            self._changed.notify_all()

    def finish(self) -> None:
        """Delete all that waits, with this thread's help.

        Raises:
            KeyboardInterrupt: the thread was interrupted. What is left expires after its
                result_ttl.
        """
        self.end()
        self.run()
        self.join()
        if isinstance(self.error, KeyboardInterrupt):
            raise self.error

    @override
    def run(self) -> None:
        """Delete jobs until the end."""
        try:
            while ids := self._next():
                self._forget(ids)
        except BaseException as error:  # noqa: BLE001 - raised again by the engine
            self.error = error
            self.end(drop=True)

    def _next(self) -> list[str]:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ending)
            count = min(LOOKUP_JOBS, len(self._waiting))
            ids = [self._waiting.popleft() for _ in range(count)]
            self._changed.notify_all()
            return ids
