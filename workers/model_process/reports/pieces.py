"""Sends the pieces that a streaming handler yields, out of the process that runs the handler.

The first piece of a job is sent at once. From then on, the pieces of all jobs that come within 20
ms are sent together, up to 256 KiB of a job. So each process on their way wakes once for all of
them. All of them are sent before the outcomes of their batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from headrace.errors import HandlerError
from headrace.generator import joined
from workers.model_process.batch_state import SubBatch, rows_of
from workers.model_process.outcomes import encode_result
from workers.protocol.frames import PieceRow

#: The time between two frames of pieces, in seconds.
INTERVAL_S: Final = 0.02
#: The bytes of pieces that are sent without a wait, as readers take entries whole.
ENTRY_BYTES: Final = 256 * 1024

#: Takes a job's id, the JSON of a piece, and the JSON of the `ResponseDetails` of a response that
#: begins with it, or b"".
SendPiece = Callable[[str, bytes, bytes], None]


@dataclass(slots=True)
class _JobPieces:
    """The pieces of a job in this attempt.

    Attributes:
        sent: how many were sent, restart marks included.
        waiting: JSON of those that were not.
        waiting_bytes: their size.
        tokens: those of the waiting pieces.
        head: JSON of the `ResponseDetails` with which the waiting pieces begin; b"" for none.
        at_once: they do not wait for those of other jobs.
        restarts: the next piece follows a restart mark, as the job runs again.
    """

    sent: int = 0
    waiting: list[bytes] = field(default_factory=list)
    waiting_bytes: int = 0
    tokens: list[int] = field(default_factory=list)
    head: bytes = b""
    at_once: bool = True
    restarts: bool = False


class PieceSender:
    """Gathers pieces of any thread, and sends rows with `send`, from one thread at a time."""

    def __init__(self, send: Callable[[list[PieceRow]], None]) -> None:
        self._send = send
        self._changed = threading.Condition()
        # By the number of the batch and the job's id.
        self._jobs: dict[tuple[int, str], _JobPieces] = {}
        self._waiting: dict[tuple[int, str], _JobPieces] = {}
        # When the waiting pieces are sent, but for those that do not wait.
        self._due_at = 0.0
        self._thread: threading.Thread | None = None

    def begin(self, seq: int, job_ids: Iterable[str]) -> None:
        """Note that these jobs of a batch begin to run; those that ran before run again."""
        with self._changed:
            for job_id in job_ids:
                known = self._jobs.setdefault((seq, job_id), _JobPieces())
                known.waiting, known.tokens, known.restarts = [], [], bool(known.sent)
                known.waiting_bytes = 0
                known.head = b""
                self._waiting.pop((seq, job_id), None)

    def resume(self, seq: int, job_id: str) -> None:
        """Note that a job of a generator continues where the last attempt has ended."""
        with self._changed:
            self._send([(seq, job_id, 1, 0, b"", b"")])

    def add(self, step: Iterable[tuple[int, str, bytes, Sequence[int]]]) -> None:
        """Add the pieces of a step: batch, job's id, JSON and tokens of each."""
        with self._changed:
            for seq, job_id, text, tokens in step:
                known = self._waiting[seq, job_id] = self._jobs[seq, job_id]
                known.waiting.append(text)
                known.waiting_bytes += len(text)
                if known.waiting_bytes >= ENTRY_BYTES:
                    known.at_once = True
                known.tokens += tokens
            self._flush_due(time.monotonic())
            if self._waiting:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name="headrace-pieces", daemon=True
                    )
                    self._thread.start()
                self._changed.notify()

    def send(self, seq: int, job_id: str, text: bytes, head: bytes) -> None:
        """Add a piece of a job, and the head of the response that begins with it, or b""."""
        with self._changed:
            if head:
                self._jobs[seq, job_id].head = head
            self.add([(seq, job_id, text, ())])

    def close(self, seq: int, job_ids: Iterable[str]) -> None:
        """Send the remaining pieces of these jobs, because their outcomes follow."""
        with self._changed:
            keys = [(seq, job_id) for job_id in job_ids]
            self._flush([key for key in keys if key in self._waiting])
            for key in keys:
                self._jobs.pop(key, None)

    def _flush_due(self, now: float) -> None:
        if now >= self._due_at:
            self._due_at = now + INTERVAL_S
            self._flush(list(self._waiting))
        else:
            self._flush([key for key, known in self._waiting.items() if known.at_once])

    def _flush(self, keys: Iterable[tuple[int, str]]) -> None:
        """Send the waiting pieces of these jobs. Under the lock, so that rows stay in order."""
        rows: list[PieceRow] = []
        for key in keys:
            known = self._waiting.pop(key)
            if known.restarts:
                rows.append((*key, known.sent + 1, 1, b"", b""))
                known.sent, known.restarts = known.sent + 1, False
            count = len(known.waiting)
            tokens = msgspec.json.encode(known.tokens) if known.tokens else b""
            pieces = b"[%s]" % b",".join(known.waiting)
            rows.append((*key, known.sent + 1, count, pieces, known.head or tokens))
            known.sent, known.waiting, known.tokens = known.sent + count, [], []
            known.waiting_bytes = 0
            known.head = b""
            known.at_once = False
        if rows:
            self._send(rows)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                due_s = self._due_at - time.monotonic()
                if due_s <= 0:
                    try:
                        self._flush_due(time.monotonic())
                    except OSError:  # the reader has ended, and this process ends too
                        return
                    continue
            time.sleep(due_s)


@runtime_checkable
class SendsPieces(Protocol):
    """A handler whose `inference` sends pieces of its results by a call of its own."""

    def send_pieces_to(self, send: SendPiece | None) -> None:
        """Set what takes pieces from now on; None to drop them."""


class ItemPieces:
    """The pieces of a sub-batch's items, while a streaming `inference` runs.

    Attributes:
        seq: the number of their batch.
        ids: the jobs of the good items; the rows behind them are padding.
    """

    def __init__(self, sub_batch: SubBatch) -> None:
        self._sub_batch = sub_batch
        self.seq = sub_batch.seq
        self.ids = [job_id for job_id, *_ in sub_batch.good_inputs]
        self._pieces: list[list[Any]] = [[] for _ in range(len(self.ids) + sub_batch.padding)]
        self._errors: dict[int, BaseException] = {}

    def add_step(self, step: list[Any]) -> list[tuple[int, str, bytes, tuple[int, ...]]]:
        """Return the pieces of a step, for `PieceSender.add`; keep them for the results.

        An item whose piece is an exception, or no JSON, fails with it. It takes no more pieces.
        """
        added: list[tuple[int, str, bytes, tuple[int, ...]]] = []
        for row, piece in enumerate(step):
            if piece is None or row in self._errors:
                continue
            if isinstance(piece, BaseException):
                self._errors[row] = piece
                continue
            try:
                text = piece_json(piece)
            except Exception as error:  # noqa: BLE001 - a piece's methods are the handler's code
                self._errors[row] = error
                continue
            self._pieces[row].append(piece)
            if row < len(self.ids):
                added.append((self.seq, self.ids[row], text, ()))
        return added

    def outputs(self, returned: Any) -> Any:
        """Return the outputs of the items without an error, and of the padding.

        The items with an error leave the sub-batch.

        Raises:
            HandlerError: the generator returned a value without rows, and some items have errors.
        """
        failed = [row for row in self._errors if row < len(self.ids)]
        if returned is None:
            returned = [joined(pieces) for pieces in self._pieces]
        if not failed:
            return returned
        kept = [row for row in range(len(self._pieces)) if row not in failed]
        outputs = rows_of(returned, kept)
        if outputs is None:
            raise HandlerError(f"inference returned {type(returned).__name__}, not a list")
        sub_batch = self._sub_batch
        for row in failed:
            sub_batch.results[sub_batch.good[row]] = self._errors[row]
        sub_batch.good = [n for row, n in enumerate(sub_batch.good) if row not in failed]
        return outputs


def piece_json(piece: Any) -> bytes:
    """Return a piece as JSON; raise as `encode_result`, and HandlerError for bytes."""
    outcome = encode_result(piece)
    if outcome[2]:
        raise HandlerError(f"a piece must be text or JSON, not {type(piece).__name__}")
    return bytes(outcome[1])
