"""What an engine does in threads: it deletes records, and submits failed inputs again."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from typing_extensions import override

from headrace.client.bulk import LOOKUP_JOBS
from headrace.errors import HeadraceError, RequestError
from headrace.jobs.job import JobFailure
from headrace.runs.in_flight import InFlight, PendingInput
from headrace.runs.interfaces import Row
from headrace.runs.submitter import (
    PAGE_BYTES,
    PAGE_LINES,
    Lines,
    Refuse,
    Stopping,
    Submit,
)

#: With this many jobs to delete the run waits: Redis should hold only what is in flight.
BACKLOG_MAX: Final = 50_000


class JobCleanup(threading.Thread):
    """Deletes jobs in the background; the engine raises an `error` that ended the thread."""

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
        """End the thread once nothing waits; with `drop`, what waits is left to expire."""
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


class Resubmitter(threading.Thread):
    """Submits inputs again in the background, under the ids that they have.

    Args:
        in_flight: learns which of their jobs exist.
        lines: makes the lines; no other thread uses it.
        submit: submits lines, as for `Submitter`.
        refuse: receives the rows of inputs that cannot be submitted again.

    Attributes:
        error: what ended the thread early; the engine raises it again.
    """

    def __init__(self, in_flight: InFlight, lines: Lines, submit: Submit, refuse: Refuse) -> None:
        super().__init__(name="headrace-resubmitter", daemon=True)
        self.error: BaseException | None = None
        self._in_flight = in_flight
        self._lines = lines
        self._submit = submit
        self._refuse = refuse
        self._waiting: deque[PendingInput] = deque()
        self._changed = threading.Condition()
        self._ending = False

    def add(self, lost: Iterable[PendingInput]) -> None:
        """Add inputs to submit again; an ended thread leaves them to the next start of the run."""
        with self._changed:
            self._waiting.extend(lost)
            self._changed.notify_all()

    def end(self) -> None:
        """End the thread after the request that it is sending."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()

    @override
    def run(self) -> None:
        """Submit inputs until the end."""
        try:
            while page := self._next():
                self._send(page)
        except Stopping:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again by the engine
            self.error = error

    def _next(self) -> list[PendingInput]:
        """Wait for inputs, and return as many as one request may have; none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ending)
            page: list[PendingInput] = []
            size = 0
            while self._waiting and not self._ending and len(page) < PAGE_LINES:
                size += self._waiting[0].size
                if page and size > PAGE_BYTES:
                    break
                page.append(self._waiting.popleft())
            return page

    def _send(self, page: list[PendingInput]) -> None:
        """Submit a page; raise Stopping, or HeadraceError after `retry_s` without room."""
        sent: list[PendingInput] = []
        lines: list[bytes] = []
        refused: list[tuple[PendingInput, Row]] = []
        for pending in page:
            try:
                lines.append(self._lines(pending.entry, pending.job_id))
                sent.append(pending)
            except RequestError as unreadable:  # its file is gone
                refused.append((pending, lost_row(pending, unreadable)))

        def accepted(places: list[int]) -> None:
            # The others may wait for a limit until these have ended.
            self._in_flight.mark_sent([sent[at] for at in places])

        errors = self._submit(lines, self._lines.quiet, accepted) if lines else []
        for pending, error in zip(sent, errors, strict=True):
            if error is not None:
                refused.append((pending, lost_row(pending, error)))
        if refused:
            self._refuse(refused)


def lost_row(pending: PendingInput, error: HeadraceError) -> Row:
    """Return the row of an input whose job was lost and cannot be submitted again."""
    entry = pending.entry
    failure = JobFailure(type=error.code, message=error.message, retryable=error.retryable)
    return Row(entry.n, entry.key, "failed", error=failure, carried=entry.carried)
