"""Runs a `Generator`: requests join a running batch and leave it. Runs in the model process.

Each job is a batch of one for the worker, with a number of its own. So a job is settled as soon as
it ends, and is cancelled, timed out and lost like any batch. The worker sends a job only if the
last frame `room` had room for it.

An online request without room puts offline ones back, and the newest request is put back when
the memory runs out. It waits in this process with its tokens, and goes on after them.
"""

from __future__ import annotations

import logging
import os
import queue
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Final

import msgspec

from headrace.errors import HandlerError, InputError
from headrace.generator import Generated, Generator, Piece, generated, room_for, too_large
from headrace.observability.worker_report import SECONDS_BOUNDS
from workers.model_process.batch_state import Inbox, ReceivedBatch, Send, StageTimes
from workers.model_process.context import Input, begin
from workers.model_process.executor import CANCELLED, BatchExecutor, checked_list, clock
from workers.model_process.generation.offline_limit import OfflineLimit
from workers.model_process.generation.requests import (
    Request,
    WaitingRequests,
    put_back_first,
    that_make_room,
)
from workers.model_process.outcomes import Outcome, encode_result, failure
from workers.model_process.reports.pieces import PieceSender, SendsPieces, piece_json
from workers.protocol.frames import Done, Pieces, Room, RunBatch, TokenFigures, Waits
from workers.threads import SOFTWARE_ERROR_STATUS

logger = logging.getLogger("headrace.model")

#: The least time between two reports while requests run, in seconds.
INTERVAL_S: Final = 0.5


class TokenMeter:
    """The figures of one generator since the last report.

    Args:
        state: returns how many requests run, what they take of the budget, and the budget.
    """

    def __init__(
        self, send: Callable[[TokenFigures], None], state: Callable[[], tuple[int, int, int]]
    ) -> None:
        self._send = send
        self._state = state
        self._last_at: dict[str, float] = {}
        self._prompt = self._cached = self._generated = 0
        self._counts = [0] * (len(SECONDS_BOUNDS) + 1)
        self._sum_s = 0.0
        self._sent: tuple[int, int, int] | None = None
        self._due_at = 0.0

    def count(self, piece: Piece) -> None:
        """Count the tokens of a piece; a delta without tokens counts as a token."""
        tokens = len(piece.tokens) or int(piece.delta is not None)
        if not tokens:
            return
        now = clock()
        last_at = self._last_at.get(piece.id)
        self._last_at[piece.id] = now
        if last_at is not None:
            self._counts[bisect_left(SECONDS_BOUNDS, (now - last_at) / tokens)] += tokens
            self._sum_s += now - last_at

    def ended(self, request_id: str) -> None:
        """Note that a request has left."""
        self._last_at.pop(request_id, None)

    def used(self, usage: Mapping[str, Any] | None) -> int | None:
        """Count what a request took that has ended, and return it; None if that is unknown.

        Raises:
            TypeError, ValueError: a number of tokens is no number.
        """
        if not usage:
            return None
        prompt = int(usage.get("prompt_tokens", 0))
        cached = int(usage.get("cached_tokens", 0))
        generated = int(usage.get("completion_tokens", 0))
        self._prompt += prompt
        self._cached += cached
        self._generated += generated
        return prompt + generated

    def report(self, *, running: bool) -> None:
        """Send the figures if it is time, or if nothing runs any more."""
        if running and clock() < self._due_at:
            return
        state = self._state()
        if state == self._sent and not (self._prompt or self._generated or any(self._counts)):
            return
        self._due_at = clock() + INTERVAL_S
        self._sent = state
        self._send(
            TokenFigures(
                state, self._prompt, self._cached, self._generated, self._counts, self._sum_s
            )
        )
        self._prompt = self._cached = self._generated = 0
        self._counts = [0] * len(self._counts)
        self._sum_s = 0.0


#: How many batches the worker may have in the process at once.
BATCHES_MAX: Final = 4096
#: How many requests may wait for memory before the worker sends no more.
WAITING_MAX: Final = 4
#: How many requests may be prepared besides those that have room. Further ones take the room of
#: others, so that only so many come.
PREPARING_MAX: Final = 16
#: For how long offline requests wait at most for the first piece of an online one, in seconds.
AWAITED_S: Final = 0.5
#: For how long a frame waits at most while nothing runs and requests are prepared, in seconds.
PREPARING_S: Final = 0.005
#: For how long the thread that reads frames has the interpreter between two steps with offline
#: requests, in seconds, while online ones come. A request whose frame it reads later misses the
#: next step.
READ_S: Final = 0.0001

_NO_MEMORY: Final = "the model's memory ran out; give it more, or let fewer requests run at a time"


class ContinuousExecutor:
    """Takes jobs from an inbox, and sends the outcome of each, until a `stop` frame.

    Args:
        executor: decodes inputs and runs `preprocess` and `postprocess`.
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
        self._pieces = PieceSender(lambda rows: send(Pieces(rows)))
        if isinstance(handler, SendsPieces):
            handler.send_pieces_to(self._send_piece)
        self._meter = TokenMeter(send, self._state)
        # What other threads prepare.
        self._preparing: dict[Request, Future[Any]] = {}
        self._waiting = WaitingRequests()
        self._running: dict[str, Request] = {}
        self._received = 0
        self._room: Room | None = None
        self._paused: frozenset[str] = frozenset()
        self._limit = OfflineLimit()
        self._can_pause = handler.can_pause
        # Those that the limit pauses.
        self._held: frozenset[str] = frozenset()
        self._offline_joined = False
        self._whole = handler.budget().tokens

    def run(self) -> None:
        """Serve until `stop`, which the worker sends when no job runs."""
        self._report_room()
        self._meter.report(running=False)
        while self._read_frames():
            self._drop_cancelled()
            self._take_prepared()
            self._relieve()
            self._admit()
            self._report_waiting()
            if self._running:
                self._step()
            self._report_room()
            self._meter.report(running=bool(self._running))

    def _read_frames(self) -> bool:
        """Read the frames that have come; wait for a frame if nothing runs. False at the end."""
        idle = not self._running and not self._waiting
        if idle and self._preparing:
            # Also a cancellation, which is no frame, must be seen.
            wait(self._preparing.values(), PREPARING_S, FIRST_COMPLETED)
            idle = False
        if self._yielding() and self._limit.at(clock()) is not None:
            time.sleep(READ_S)
        while True:
            try:
                frame = self._inbox.get(block=idle)
            except queue.Empty:
                return True
            idle = False
            if not isinstance(frame, ReceivedBatch):
                return False
            self._prepare(*frame)

    def _prepare(self, batch: RunBatch, dropped: set[int]) -> None:
        """Let a job wait for room; end it if its input is bad or too large."""
        seq = batch.seq
        self._received += len(batch.rows)
        begin(self._tag, seq, batch.traces)
        state = self._executor.read(batch.rows, dropped, seq)
        if not state.readable:
            self._send_outcome(seq, state.outcomes[0], state.times)
            return
        (read,) = state.readable.values()
        started = clock()
        try:
            prepared, cost = self._prepared(read)
            good = not isinstance(prepared, BaseException)
            preparation = self._handler.preparation(prepared) if good else None
        except BaseException as error:  # noqa: BLE001 - whatever it raises becomes the job's error
            prepared, cost, preparation = error, 0, None
        if isinstance(prepared, BaseException):
            self._send_outcome(seq, failure(prepared), state.times)
            return
        state.times.preprocess = (clock() - started) * 1000
        request = Request(seq, self._received, read[0], prepared, cost, dropped, state.times)
        if (joins := batch.joins) is not None:
            request.deltas, request.tokens = _values(joins.pieces), _values(joins.tokens)
            request.quiet = joins.quiet
            if joins.yields_s is not None:
                request.offline, request.yields_until = True, clock() + joins.yields_s
        if preparation is None:
            self._waiting.add(request)
        else:
            self._preparing[request] = preparation

    def _prepared(self, read: Input) -> tuple[Any, int]:
        """Return the request of an input, and its cost; an error in its place ends its job."""
        (prepared,) = checked_list(self._executor.own_preprocess([read]), 1, "preprocess")
        # What `preprocess` returns as an error has no traceback that helps.
        if isinstance(prepared, BaseException):
            return prepared, 0
        cost = self._handler.cost(prepared)
        return (too_large(cost, self._whole) if cost > self._whole else prepared), cost

    def _take_prepared(self) -> None:
        """Let those wait for room that other threads have prepared."""
        for request, preparation in list(self._preparing.items()):
            if not preparation.done():
                continue
            del self._preparing[request]
            if (error := preparation.exception()) is None:
                self._waiting.add(request)
            else:
                self._end(request, failure(error))

    def _drop_cancelled(self) -> None:
        for request in [request for request in self._preparing if request.dropped]:
            self._preparing.pop(request).cancel()
            self._end(request, CANCELLED)
        for request in [request for request in self._waiting if request.dropped]:
            self._waiting.remove(request)
            if request.began:
                self._note_used(request, request.usage)
            self._end(request, CANCELLED)
        for request in [request for request in self._running.values() if request.dropped]:
            self._note_used(request, self._handler.cancel(request.job_id))
            self._end(request, CANCELLED)

    def _note_used(self, request: Request, usage: Mapping[str, int] | None) -> None:
        """Note what a request took that leaves before its end."""
        try:
            request.used = self._meter.used(usage)
        except (AttributeError, TypeError, ValueError) as error:
            logger.warning("what a request took that has no result is unknown: %s", error)

    def _relieve(self) -> None:
        """Put requests back until the memory has room for the next step of the others."""
        while self._running and self._handler.lacks_memory():
            running = put_back_first(self._running.values())
            newest = next((request for request in running[:-1] if not request.cannot_resume), None)
            if newest is not None:
                newest.outgrew = True
                self._put_back(newest)
                continue
            # It is alone, or none could go on.
            self._note_used(running[0], self._handler.cancel(running[0].job_id))
            self._end(running[0], failure(HandlerError(_NO_MEMORY)))

    def _put_back(self, request: Request) -> None:
        request.usage = self._handler.cancel(request.job_id)
        del self._running[request.job_id]
        request.ran_s += clock() - request.began_at
        request.put_back = True
        self._waiting.add(request)

    def _admit(self) -> None:
        """Let waiting requests join while there is room."""
        self._waiting.favour(self._running.values(), clock())
        while any(self._joins(request) for request in self._waiting.candidates()):
            pass
        self._pause_offline()

    def _joins(self, request: Request) -> bool:
        """Let a request join if there is room; return whether it waits no more."""
        if request.job_id in self._running:
            return False  # an attempt that the worker has lost; it leaves first
        if request.yields and (self._awaited() or not self._offline_may_join()):
            return False
        room = self._room_for(request)
        if room is False and not (self._make_room(request) and self._room_for(request) is True):
            return False
        self._waiting.joined(request)
        if isinstance(room, InputError):
            self._end(request, failure(room))
        else:
            self._join(request)
        return True

    def _room_for(self, request: Request) -> bool | InputError:
        return room_for(self._handler, request.prepared, bool(self._running), self._likely(request))

    def _likely(self, request: Request) -> int:
        """Return what a request probably takes of the budget."""
        if request.outgrew:
            return request.cost
        return self._handler.likely_cost(request.prepared, len(request.tokens))

    def _make_room(self, request: Request) -> bool:
        """Put offline requests back if this online request then fits; return whether any was."""
        if request.yields:
            return False
        budget = self._handler.budget()
        leaving = that_make_room(
            self._running.values(), self._likely(request), budget.slots, budget.tokens, self._likely
        )
        for offline in leaving:
            self._put_back(offline)
        return bool(leaving)

    def _join(self, request: Request) -> None:
        resumed = (list(request.tokens),) if request.tokens else ()
        try:
            self._handler.add(request.job_id, request.prepared, *resumed)
        except BaseException as error:  # noqa: BLE001 - as above
            self._end(request, failure(error))
            return
        request.used = None
        request.began_at, request.produced, request.put_back = clock(), False, False
        if not request.offline:
            self._limit.online_came(request.began_at)
        self._offline_joined = self._offline_joined or request.yields
        self._running[request.job_id] = request
        if not request.began:
            request.began = True
            self._pieces.begin(request.seq, [request.job_id])
            if resumed:
                self._pieces.resume(request.seq, request.job_id)

    def _awaited(self) -> bool:
        """Return whether an online request that joined a moment ago has no piece yet."""
        since = clock() - AWAITED_S
        return any(
            not request.offline and not request.produced and request.began_at > since
            for request in self._running.values()
        )

    def _offline_may_join(self) -> bool:
        """Return whether one more offline request may join before the next step."""
        offline_max = self._limit.at(clock())
        if offline_max is None:
            return True
        # One at a time, so that a step does not read many prompts.
        return not self._offline_joined and len(self._yielding()) < offline_max

    def _yielding(self) -> list[Request]:
        """Return the offline requests that run, the oldest first."""
        return sorted(
            (request for request in self._running.values() if request.yields),
            key=lambda request: request.number,
        )

    def _pause_offline(self) -> None:
        """Let offline requests wait: all until each online one has its first piece, then some.

        A handler that cannot pause runs them all on. So they do not count as paused.
        """
        if not self._can_pause:
            return
        yielding = [request.job_id for request in self._yielding()]
        offline_max = self._limit.at(clock())
        self._held = frozenset() if offline_max is None else frozenset(yielding[offline_max:])
        paused = frozenset(yielding) if self._awaited() else self._held
        if paused != self._paused:
            self._paused = paused
            self._handler.pause(paused)

    def _step(self) -> None:
        rows: list[tuple[int, str, bytes, list[int]]] = []
        ended: dict[str, Outcome] = {}
        self._offline_joined, started = False, clock()
        offline = sum(request.yields for request in self._running.values()) - len(self._paused)
        pieces: list[Piece] = []
        try:
            pieces = self._pieces_of_step()
            for piece in pieces:
                request = self._running.get(piece.id)
                if request is None or piece.id in ended:
                    continue
                if not request.offline:
                    self._meter.count(piece)
                outcome, text = self._add_piece(request, piece)
                if text:
                    rows.append((request.seq, request.job_id, text, request.unsent))
                    request.unsent = []
                if outcome is not None:
                    ended[piece.id] = outcome
        except BaseException as error:  # noqa: BLE001 - as above
            self._lost(error)
        if rows:
            self._pieces.add(rows)
        for job_id, outcome in ended.items():
            self._end(self._running[job_id], outcome)
        if pieces and offline:
            self._limit.stepped(clock() - started, offline, clock())

    def _pieces_of_step(self) -> list[Piece]:
        with self._executor.span("step", len(self._running)):
            pieces = list(self._handler.step())
        for piece in pieces:
            if not isinstance(piece, Piece):
                raise HandlerError(f"step returned {type(piece).__name__}, not pieces")
        return pieces

    def _send_piece(self, job_id: str, piece: bytes, head: bytes) -> None:
        """Send a piece that the handler sends during a step; see `pieces.SendPiece`."""
        request = self._running.get(job_id)
        if request is not None:
            request.produced = request.cannot_resume = True
            if not request.quiet:
                self._pieces.send(request.seq, job_id, piece, head)

    def _add_piece(self, request: Request, piece: Piece) -> tuple[Outcome | None, bytes]:
        """Add a piece to a job; return its outcome if it ends, and the piece as JSON, if any."""
        ends = piece.error is not None or piece.finish is not None
        text = b""
        if not request.offline:
            now = clock()
            self._limit.online_came(now)
            if not request.produced:
                self._limit.first_piece(now - request.began_at)
        request.produced = True
        request.tokens += piece.tokens
        request.unsent += piece.tokens
        try:
            if piece.delta is not None:
                if not request.quiet:
                    text = piece_json(piece.delta)
                request.deltas.append(piece.delta)
                request.cannot_resume = request.cannot_resume or not request.unsent
                if request.quiet:
                    request.unsent = []
            if not ends:
                return None, text
            if piece.error is not None:
                self._note_used(request, piece.usage)
                return failure(piece.error), text
            request.used = self._meter.used(piece.usage)
            return encode_result(self._result(generated(request.deltas, piece))), text
        except BaseException as error:  # noqa: BLE001 - as above
            if not ends:
                self._note_used(request, self._handler.cancel(request.job_id))
            return failure(error), text

    def _result(self, output: Generated) -> Any:
        (result,) = checked_list(self._handler.postprocess([output]), 1, "postprocess")
        if isinstance(result, BaseException):
            raise result
        return result

    def _end(self, request: Request, outcome: Outcome) -> None:
        if self._running.get(request.job_id) is request:
            del self._running[request.job_id]
            request.ran_s += clock() - request.began_at
        if request.job_id not in self._running:
            self._meter.ended(request.job_id)
        request.times.inference = request.ran_s * 1000
        self._pieces.close(request.seq, [request.job_id])
        self._send_outcome(request.seq, outcome, request.times, request.used)

    def _send_outcome(
        self, seq: int, outcome: Outcome, times: StageTimes, used: int | None = 0
    ) -> None:
        self._send(Done(seq, [outcome], times.as_list(), used=used))

    def _lost(self, error: BaseException) -> None:
        """End the process because a step raised. A job that ran alone fails with the error."""
        logger.critical("a step of the generator raised; the process ends", exc_info=error)
        if len(self._running) == 1:
            (request,) = self._running.values()
            self._end(request, failure(error))
        os._exit(SOFTWARE_ERROR_STATUS)

    def _state(self) -> tuple[int, int, int]:
        used = sum(self._likely(request) for request in self._running.values())
        return len(self._running), int(used), int(self._whole)

    def _report_waiting(self) -> None:
        """Report which requests wait, and which wait no more: a timeout counts only what runs."""
        held = ((request, request.job_id in self._held) for request in self._running.values())
        for request, waits in (*((request, True) for request in self._waiting), *held):
            if waits != request.reported:
                request.reported = waits
                self._send(Waits(request.seq, waits))

    def _report_room(self) -> None:
        """Report how many more online and offline jobs may come, and how many have by now."""
        budget = self._handler.budget()
        if not self._running:
            self._whole = budget.tokens
        beyond = max(0, len(self._preparing) - PREPARING_MAX)
        free = max(0, budget.slots - beyond) if budget.tokens > 0 else 0
        yielding = sum(
            request.yields and not request.cannot_resume for request in self._running.values()
        )
        online = self._more(free + yielding, self._waiting.online)
        offline = self._more(free, len(self._waiting))
        offline_max = self._limit.at(clock())
        if offline_max is not None:
            offline = max(0, min(offline, offline_max - len(self._yielding()) - len(self._waiting)))
        if any(request.put_back and request.offline for request in self._waiting):
            offline = 0
        room = Room(self._received, int(online), int(offline))
        if room != self._room:
            self._room = room
            self._send(room)

    @staticmethod
    def _more(free: int, waiting: int) -> int:
        """Return how many more may come if so many have room, and so many wait."""
        return max(0, min(free, WAITING_MAX) - waiting) if waiting else free


def _values(arrays: list[bytes]) -> list[Any]:
    return [value for text in arrays for value in msgspec.json.decode(text)]
