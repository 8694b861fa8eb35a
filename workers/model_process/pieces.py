"""Sends the pieces that a streaming handler yields, out of the process that runs the handler.

The first piece of a job is sent at once. From then on, the pieces of a job that come within 20 ms
are sent together. All of them are sent before the outcomes of their batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from headrace.errors import HandlerError
from workers.model_process.outcomes import encode_result

#: The minimum time between two entries of one job, in seconds.
INTERVAL_S: Final = 0.02

#: A job's id, the number of the first piece in this attempt, how many, and their JSON array; for a
#: restart mark, one piece and b"".
Row = tuple[str, int, int, bytes]


@dataclass(slots=True)
class _JobPieces:
    """The pieces of one job in this attempt.

    Attributes:
        sent: how many were sent, restart marks included.
        waiting: JSON of those that were not.
        due_at: when the next are sent at the earliest.
        restarts: the next piece follows a restart mark, as the job runs again.
    """

    sent: int = 0
    waiting: list[bytes] = field(default_factory=list)
    due_at: float = 0.0
    restarts: bool = False


class PieceSender:
    """Gathers pieces and sends them. Any thread may add pieces.

    Args:
        send: called with a batch's number and rows; by one thread at a time.
    """

    def __init__(self, send: Callable[[int, list[Row]], None]) -> None:
        self._send = send
        self._changed = threading.Condition()
        self._batches: dict[int, dict[str, _JobPieces]] = {}
        self._thread: threading.Thread | None = None

    def begin(self, seq: int, job_ids: Iterable[str]) -> None:
        """Note that these jobs of a batch begin to run; those that ran before run again."""
        with self._changed:
            jobs = self._batches.setdefault(seq, {})
            for job_id in job_ids:
                known = jobs.setdefault(job_id, _JobPieces())
                known.waiting, known.restarts = [], bool(known.sent)

    def add(self, seq: int, step: Iterable[tuple[str, bytes]]) -> None:
        """Take the pieces of one step: a job's id and JSON of each."""
        with self._changed:
            jobs = self._batches[seq]
            now = time.monotonic()
            due = []
            for job_id, text in step:
                known = jobs[job_id]
                known.waiting.append(text)
                if known.due_at <= now:
                    due.append(job_id)
            if due:
                self._flush(seq, due, now)
            if any(known.waiting for known in jobs.values()):
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name="headrace-pieces", daemon=True
                    )
                    self._thread.start()
                self._changed.notify()

    def close(self, seq: int) -> None:
        """Send what is left of a batch, whose outcomes are about to be sent."""
        with self._changed:
            jobs = self._batches.get(seq)
            if jobs is not None:
                self._flush(seq, list(jobs), time.monotonic())
                del self._batches[seq]

    def _flush(self, seq: int, job_ids: Iterable[str], now: float) -> None:
        """Send the waiting pieces of these jobs. Under the lock, so that rows stay in order."""
        jobs, rows = self._batches[seq], list[Row]()
        for job_id in job_ids:
            known = jobs[job_id]
            if not known.waiting:
                continue
            if known.restarts:
                rows.append((job_id, known.sent + 1, 1, b""))
                known.sent, known.restarts = known.sent + 1, False
            count = len(known.waiting)
            rows.append((job_id, known.sent + 1, count, b"[%s]" % b",".join(known.waiting)))
            known.sent, known.waiting, known.due_at = known.sent + count, [], now + INTERVAL_S
        if rows:
            self._send(seq, rows)

    def _run(self) -> None:
        while True:
            with self._changed:
                while (due_at := self._next_due()) is None:
                    self._changed.wait()
                now = time.monotonic()
                for seq, jobs in list(self._batches.items()):
                    due = [job_id for job_id, known in jobs.items() if known.due_at <= now]
                    try:
                        self._flush(seq, due, now)
                    except OSError:  # the reader has ended, and this process ends too
                        return
            time.sleep(max(0.0, due_at - now))

    def _next_due(self) -> float | None:
        """Return when the next pieces must be sent; None if none wait."""
        times = [
            known.due_at
            for jobs in self._batches.values()
            for known in jobs.values()
            if known.waiting
        ]
        return min(times, default=None)


def piece_json(piece: Any) -> bytes:
    """Return a piece as JSON.

    Raises:
        HandlerError: it is bytes or a Response.
        TypeError, ValueError: as for `encode_result`.
    """
    outcome = encode_result(piece)
    if outcome[2]:
        raise HandlerError(f"a piece must be text or JSON, not {type(piece).__name__}")
    return bytes(outcome[1])


def joined(pieces: Sequence[bytes]) -> Any:
    """Return the result that consists of these pieces: one text, or a list of values."""
    values: list[Any] = msgspec.json.decode(b"[%s]" % b",".join(pieces))
    return "".join(values) if all(isinstance(one, str) for one in values) else values
