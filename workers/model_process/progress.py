"""What a handler says of its progress, on its way out of the process that runs it.

A handler says it as often as it likes; of each item the newest word is kept, and a thread sends
them a few times a second. What was said of a batch is sent before its end is, or not at all.
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

#: A process sends at most one frame in so many seconds.
INTERVAL_S: Final = 0.2

#: A job's id, then the fields of its Progress.
Row = list[Any]
Named = Sequence[tuple[str, Any, str]]


@dataclass(slots=True, eq=False)
class BatchProgress:
    """What is said of one batch while it is in the process.

    Attributes:
        seq: the batch's number.
        said: job id -> the newest word that was not sent yet.
        told: something was said at all.
        over: its end is known, and nothing that is said now counts.
    """

    seq: int = 0
    said: dict[str, Progress] = field(default_factory=dict)
    told: bool = False
    over: bool = False


#: What a verb works at: item n of its argument is that of job `inputs[places[n]]`, or, without
#: places, of `inputs[n]`; then come so many that were added. A plain tuple, as each batch makes
#: three of them, and most handlers say nothing.
_AtHand = tuple[BatchProgress | None, Named, Sequence[int] | None, int]
_NOTHING: Final[_AtHand] = (None, (), None, 0)


class ProgressReporter:
    """Takes what the handler says on.

    Args:
        send: sends rows about a batch, by its number; called by one thread.
        shared: one batch alone is at hand at any time, so that what any thread of the handler's
            says is about that. Else it is what the thread (or its `contextvars` context) works at.
    """

    def __init__(self, send: Callable[[int, list[Row]], None], *, shared: bool) -> None:
        self._send = send
        self._shared = shared
        self._only: _AtHand | None = None
        self._own: ContextVar[_AtHand | None] = ContextVar("headrace_at_hand", default=None)
        self._news = threading.Condition()
        self._waiting: dict[BatchProgress, None] = {}
        self._thread: threading.Thread | None = None
        self._warned = False

    def enter(
        self,
        news: BatchProgress | None,
        inputs: Named,
        places: Sequence[int] | None = None,
        padding: int = 0,
    ) -> None:
        """A verb begins on these; without news nobody wants to know."""
        if self._shared:
            self._only = (news, inputs, places, padding)
        else:
            self._own.set((news, inputs, places, padding))

    def leave(self) -> None:
        """The verb has ended."""
        if self._shared:
            self._only = None
        else:
            self._own.set(None)

    def narrow(self, inputs: Named) -> None:
        """This thread has a share of the batch that the verb works at."""
        at_hand = None if self._shared else self._own.get()
        if at_hand is not None and at_hand[1] is not inputs:
            self._own.set((at_hand[0], inputs, None, 0))

    def take(self, item: Any, said: Progress) -> None:
        """What the handler said, of one item or of all."""
        news, inputs, places, padding = self._at_hand()
        if news is None:
            return
        count = len(inputs if places is None else places)
        if item is None:
            wanted: Sequence[int] = range(count) if places is None else places
        else:
            nth = _index(item)
            if not 0 <= nth < count:
                # What was added to reach an allowed size is nobody's.
                if not 0 <= nth < count + padding:
                    self._warn(item, count)
                return
            wanted = (nth if places is None else places[nth],)
        self._put(news, {inputs[place][0]: said for place in wanted})

    def forward(self, rows: Sequence[Row]) -> None:
        """What a preprocess process has sent of the batch that this thread works at."""
        news, inputs, _, _ = self._at_hand()
        if news is None:
            return
        known = {job_id for job_id, *_ in inputs}
        self._put(news, {job_id: Progress(*rest) for job_id, *rest in rows if job_id in known})

    def close(self, news: BatchProgress) -> None:
        """The batch's end is about to be sent: nothing is said of it any more."""
        news.over = True
        if news.told:
            with self._news:
                self._waiting.pop(news, None)

    def _at_hand(self) -> _AtHand:
        return (self._only if self._shared else self._own.get()) or _NOTHING

    def _put(self, news: BatchProgress, said: dict[str, Progress]) -> None:
        with self._news:
            if news.over or not said:
                return
            news.told = True
            news.said.update(said)
            self._waiting[news] = None
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="headrace-progress", daemon=True
                )
                self._thread.start()
            self._news.notify()

    def _run(self) -> None:
        while True:
            with self._news:
                while not self._waiting:
                    self._news.wait()
                # Under the lock, so that no batch ends in between; see `close`.
                for news in self._waiting:
                    rows = [
                        [job_id, one.fraction, one.done, one.total, one.message]
                        for job_id, one in news.said.items()
                    ]
                    news.said = {}
                    try:
                        self._send(news.seq, rows)
                    except OSError:  # whoever it is for is gone, and this process with it
                        return
                self._waiting.clear()
            time.sleep(INTERVAL_S)

    def _warn(self, item: Any, count: int) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "progress(item=%.40r): there are %d items here, counted from 0; it is passed over, "
                "and so are others like it without a word",
                item,
                count,
            )


def _index(item: Any) -> int:
    try:
        return operator.index(item)
    except TypeError:
        return -1
