"""The thread that has jobs forgotten whose rows are safe, beside those that feed and read."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from typing_extensions import override

from headrace.client.bulk import LOOKUP_JOBS

#: Where so many wait to be forgotten, the run waits too: Redis is to hold what is under way.
BACKLOG_MAX: Final = 50_000


class JobCleanup(threading.Thread):
    """Forgets what it is given, in its own time.

    Args:
        forget: makes the server forget some jobs.

    Attributes:
        error: what ended it before its time; raised again by the engine.
    """

    def __init__(self, forget: Callable[[Sequence[str]], object]) -> None:
        super().__init__(name="headrace-forgetter", daemon=True)
        self.error: BaseException | None = None
        self._forget = forget
        self._waiting: deque[str] = deque()
        self._changed = threading.Condition()
        self._last = False

    def add(self, ids: Iterable[str]) -> None:
        """Take these over, once there are not too many already."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) < BACKLOG_MAX or self._last)
            self._waiting.extend(ids)
            self._changed.notify_all()

    def end(self, *, drop: bool = False) -> None:
        """Nothing more comes.

        Args:
            drop: leave what waits; it goes after its result_ttl.
        """
        with self._changed:
            self._last = True
            if drop:
                self._waiting.clear()
            self._changed.notify_all()

    def finish(self) -> None:
        """Forget all that waits, in this thread too: nothing else is left to be done meanwhile.

        Raises:
            KeyboardInterrupt: as it came. What is left goes after its result_ttl.
        """
        self.end()
        self.run()
        self.join()
        if isinstance(self.error, KeyboardInterrupt):
            raise self.error

    @override
    def run(self) -> None:
        """Forget, to the end."""
        try:
            while some := self._next():
                self._forget(some)
        except BaseException as error:  # noqa: BLE001 - raised again by the engine
            self.error = error
            self.end(drop=True)

    def _next(self) -> list[str]:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._last)
            count = min(LOOKUP_JOBS, len(self._waiting))
            some = [self._waiting.popleft() for _ in range(count)]
            self._changed.notify_all()
            return some
