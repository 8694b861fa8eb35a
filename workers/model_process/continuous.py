"""Runs a `Generator`: requests join a running batch and leave it. Runs in the model process.

Each job is a batch of one for the worker, with a number of its own. So a job is settled as soon as
it ends, and is cancelled, timed out and lost like any batch. The worker sends a job only if the
last frame `room` had room for it.
"""

from __future__ import annotations

import logging
import os
import queue
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from headrace.errors import InputError
from headrace.generator import Generated, Generator, Piece, generated, room_for
from workers.model_process.context import begin
from workers.model_process.executor import CANCELLED, BatchExecutor, StageTimes, checked_list, clock
from workers.model_process.outcomes import Outcome, encode_result, failure
from workers.model_process.overlap import Inbox, Send
from workers.model_process.pieces import PieceSender, piece_json
from workers.threads import SOFTWARE_ERROR_STATUS

logger = logging.getLogger("headrace.model")

#: How many batches the worker may have in the process at once.
BATCHES_MAX: Final = 4096


@dataclass(slots=True, eq=False)
class RunningRequest:
    """One job in the process.

    Attributes:
        seq: the number of its batch.
        request: what `preprocess` returned for its input.
        dropped: not empty once the worker has dropped it.
        times: how long it was prepared, and how long it has run.
        deltas: the pieces of its result, with those of earlier attempts.
        resume_from: the tokens of earlier attempts.
        tokens: those of pieces without a delta; they come with the next one.
    """

    seq: int
    job_id: str
    request: Any
    dropped: set[int]
    times: StageTimes
    deltas: list[Any] = field(default_factory=list)
    resume_from: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    began_at: float = 0.0


class ContinuousExecutor:
    """Takes jobs from an inbox, and sends the outcome of each, until a `stop` frame.

    Args:
        executor: decodes inputs and runs `preprocess` and `postprocess`.
        handler: the generator.
        inbox: the frames of the worker.
        send: sends a frame to the worker.
        tag: the prefix of the batch names.
    """

    def __init__(
        self, executor: BatchExecutor, handler: Generator, inbox: Inbox, send: Send, tag: str = ""
    ) -> None:
        self._executor = executor
        self._handler = handler
        self._inbox = inbox
        self._send = send
        self._tag = tag
        self._pieces = PieceSender(lambda rows: send(["pieces", rows]))
        self._waiting: deque[RunningRequest] = deque()
        self._running: dict[str, RunningRequest] = {}
        # By number: the pieces and tokens of earlier attempts.
        self._logs: dict[int, tuple[list[Any], list[int]]] = {}
        self._received = 0
        self._room = (-1, -1)

    def run(self) -> None:
        """Serve until `stop`, which the worker sends when no job runs."""
        self._report_room()
        while self._take_frames():
            self._drop_cancelled()
            self._admit()
            if self._running:
                self._step()
            self._report_room()

    def _take_frames(self) -> bool:
        """Take the frames that have come; wait for one if nothing runs. False at the end."""
        idle = not self._running and not self._waiting
        while True:
            try:
                frame = self._inbox.get(block=idle)
            except queue.Empty:
                return True
            idle = False
            if frame[0] == "stop":
                return False
            if frame[0] == "resume":
                _, seq, pieces, tokens = frame
                self._logs[seq] = (_values(pieces), _values(tokens))
                continue
            _, seq, items, *traces, dropped = frame
            self._received += len(items)
            begin(self._tag, seq, traces)
            self._prepare(seq, items, dropped)

    def _prepare(self, seq: int, items: list[Any], dropped: set[int]) -> None:
        """Let a job wait for room; one whose input is bad ends."""
        deltas, resume_from = self._logs.pop(seq, ([], []))
        state = self._executor.read(items, dropped, seq)
        if not state.readable:
            self._send_outcome(seq, state.outcomes[0], state.times)
            return
        (read,) = state.readable.values()
        started = clock()
        try:
            items = self._executor.own_preprocess([read])
            (request,) = checked_list(items, 1, "preprocess")
        except BaseException as error:  # noqa: BLE001 - whatever it raises becomes the job's error
            request = error
        if isinstance(request, BaseException):
            self._send_outcome(seq, failure(request), state.times)
            return
        state.times.preprocess = (clock() - started) * 1000
        self._waiting.append(
            RunningRequest(seq, read[0], request, dropped, state.times, deltas, resume_from)
        )

    def _drop_cancelled(self) -> None:
        for one in [one for one in self._waiting if one.dropped]:
            self._waiting.remove(one)
            self._send_outcome(one.seq, CANCELLED, one.times)
        for one in [one for one in self._running.values() if one.dropped]:
            self._handler.cancel(one.job_id)
            self._end(one, CANCELLED)

    def _admit(self) -> None:
        while self._waiting:
            one = self._waiting[0]
            if one.job_id in self._running:
                return  # an attempt that the worker has lost; it leaves first
            room = room_for(self._handler, one.request, bool(self._running))
            if room is False:
                return
            self._waiting.popleft()
            if isinstance(room, InputError):
                self._send_outcome(one.seq, failure(room), one.times)
                continue
            resumed = (one.resume_from,) if one.resume_from else ()
            try:
                self._handler.add(one.job_id, one.request, *resumed)
            except BaseException as error:  # noqa: BLE001 - as above
                self._send_outcome(one.seq, failure(error), one.times)
                continue
            one.began_at = clock()
            self._running[one.job_id] = one
            self._pieces.begin(one.seq, [one.job_id])
            if resumed:
                self._pieces.resume(one.seq, one.job_id)

    def _step(self) -> None:
        taken: list[tuple[int, str, bytes, list[int]]] = []
        ended: dict[str, Outcome] = {}
        try:
            for piece in self._handler.step():
                one = self._running.get(piece.id)
                if one is None or piece.id in ended:
                    continue
                outcome, text = self._take(one, piece)
                one.tokens += piece.tokens
                if text:
                    taken.append((one.seq, one.job_id, text, one.tokens))
                    one.tokens = []
                if outcome is not None:
                    ended[piece.id] = outcome
        except BaseException as error:  # noqa: BLE001 - as above
            self._lost(error)
        if taken:
            self._pieces.add(taken)
        for job_id, outcome in ended.items():
            self._end(self._running[job_id], outcome)

    def _take(self, one: RunningRequest, piece: Piece) -> tuple[Outcome | None, bytes]:
        """Return the outcome of a job if this piece ends it, and the piece as JSON, if any."""
        ends = piece.error is not None or piece.finish is not None
        text = b""
        try:
            if piece.delta is not None:
                text = piece_json(piece.delta)
                one.deltas.append(piece.delta)
            if piece.error is not None:
                return failure(piece.error), text
            if not ends:
                return None, text
            return encode_result(self._result(generated(one.deltas, piece))), text
        except BaseException as error:  # noqa: BLE001 - as above
            if not ends:
                self._handler.cancel(one.job_id)
            return failure(error), text

    def _result(self, output: Generated) -> Any:
        (result,) = checked_list(self._handler.postprocess([output]), 1, "postprocess")
        if isinstance(result, BaseException):
            raise result
        return result

    def _end(self, one: RunningRequest, outcome: Outcome) -> None:
        del self._running[one.job_id]
        one.times.inference = (clock() - one.began_at) * 1000
        self._pieces.close(one.seq, [one.job_id])
        self._send_outcome(one.seq, outcome, one.times)

    def _send_outcome(self, seq: int, outcome: Outcome, times: StageTimes) -> None:
        self._send(["done", seq, [outcome], times.as_list(), 0, 0, False])

    def _lost(self, error: BaseException) -> None:
        """End the process because a step raised. A job that ran alone fails with the error."""
        logger.critical("a step of the generator raised; the process ends", exc_info=error)
        if len(self._running) == 1 and not self._waiting:
            (one,) = self._running.values()
            self._end(one, failure(error))
        os._exit(SOFTWARE_ERROR_STATUS)

    def _report_room(self) -> None:
        """Report how many more jobs may come, and how many have come by now."""
        budget = self._handler.budget()
        slots = 0 if self._waiting or budget.tokens <= 0 else max(0, budget.slots)
        room = (self._received, slots)
        if room != self._room:
            self._room = room
            self._send(["room", *room])


def _values(arrays: list[bytes]) -> list[Any]:
    """Return the values of several JSON arrays."""
    return [value for text in arrays for value in msgspec.json.decode(text)]
