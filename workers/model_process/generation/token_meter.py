"""Counts what a generator does, and reports it to the worker at most twice a second.

A piece costs a look at the clock and a search in 17 bounds; a report is one frame.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any, Final

from headrace.generator import Piece
from headrace.observability.worker_report import SECONDS_BOUNDS
from workers.model_process.executor import clock
from workers.protocol.frames import TokenFigures

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
        self._prompt = self._generated = 0
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
        generated = int(usage.get("completion_tokens", 0))
        self._prompt += prompt
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
        self._send(TokenFigures(state, self._prompt, self._generated, self._counts, self._sum_s))
        self._prompt = self._generated = 0
        self._counts = [0] * len(self._counts)
        self._sum_s = 0.0
