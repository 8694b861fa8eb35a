"""The thread that asks how the next jobs have ended while the rows of the last ones are written."""

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

Found: TypeAlias = Sequence[Outcome | None]
Ask: TypeAlias = Callable[[Sequence[PendingInput]], Found]


class OutcomePrefetch(threading.Thread):
    """Asks for one part at a time.

    Args:
        ask: how the jobs of items have ended.
    """

    def __init__(self, ask: Ask) -> None:
        super().__init__(name="headrace-ahead", daemon=True)
        self._ask = ask
        self._parts: SimpleQueue[tuple[Sequence[PendingInput], Future[Found]] | None] = (
            SimpleQueue()
        )

    def each(
        self, parts: Sequence[Sequence[PendingInput]], *, whole: bool
    ) -> Iterator[tuple[Sequence[PendingInput], Found]]:
        """Each part with how its jobs have ended; the next is asked for before one is given.

        Args:
            parts: the oldest first.
            whole: also those behind one of which something has not ended.

        Raises:
            HeadraceError, Stopping: as asking does.
        """
        if not parts:
            return
        found = self._ask(parts[0])
        for at, part in enumerate(parts):
            on = at + 1 < len(parts) and (whole or _all_ended(found))
            coming = self._begin(parts[at + 1]) if on else None
            yield part, found
            if coming is None:
                return
            found = coming.result()

    def end(self) -> None:
        """Nothing more is asked."""
        self._parts.put(None)

    @override
    def run(self) -> None:
        """Ask, to the end."""
        while (asked := self._parts.get()) is not None:
            part, answer = asked
            try:
                answer.set_result(self._ask(part))
            except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
                answer.set_exception(error)

    def _begin(self, part: Sequence[PendingInput]) -> Future[Found]:
        answer: Future[Found] = Future()
        self._parts.put((part, answer))
        return answer


def _all_ended(found: Found) -> bool:
    return all(outcome is not None and outcome.status in ENDED for outcome in found)
