"""Reads the next page of outcomes in a thread, while the rows of the last page are written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeAlias

from typing_extensions import override

from headrace.client.models import ENDED
from headrace.runs.engine.api_calls import Outcome
from headrace.runs.engine.in_flight import PendingInput

Outcomes: TypeAlias = Sequence[Outcome | None]
Read: TypeAlias = Callable[[Sequence[PendingInput]], Outcomes]


class OutcomePrefetch(threading.Thread):
    """Reads the outcomes of one page at a time.

    Args:
        read: reads the outcomes of some inputs.
    """

    def __init__(self, read: Read) -> None:
        super().__init__(name="headrace-prefetch", daemon=True)
        self._read = read
        self._requests: SimpleQueue[tuple[Sequence[PendingInput], Future[Outcomes]] | None] = (
            SimpleQueue()
        )

    def each(
        self, pages: Sequence[Sequence[PendingInput]], *, whole: bool
    ) -> Iterator[tuple[Sequence[PendingInput], Outcomes]]:
        """Yield each page with its outcomes; request the next page before that.

        Args:
            pages: the oldest inputs first.
            whole: read the next page even if not every job of a page has ended.

        Raises:
            HeadraceError, Stopping: as `read` does.
        """
        if not pages:
            return
        outcomes = self._read(pages[0])
        for at, page in enumerate(pages):
            more = at + 1 < len(pages) and (whole or _all_ended(outcomes))
            following = self._request(pages[at + 1]) if more else None
            yield page, outcomes
            if following is None:
                return
            outcomes = following.result()

    def end(self) -> None:
        """End the thread."""
        self._requests.put(None)

    @override
    def run(self) -> None:
        """Read pages until the end."""
        while (request := self._requests.get()) is not None:
            page, result = request
            try:
                result.set_result(self._read(page))
            except BaseException as error:  # noqa: BLE001 - raised again by `each`
                result.set_exception(error)

    def _request(self, page: Sequence[PendingInput]) -> Future[Outcomes]:
        result: Future[Outcomes] = Future()
        self._requests.put((page, result))
        return result


def _all_ended(outcomes: Outcomes) -> bool:
    return all(outcome is not None and outcome.status in ENDED for outcome in outcomes)
