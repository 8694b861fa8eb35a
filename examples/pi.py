"""A handler that reports its progress: an estimate of pi, round by round.

Watch it with `headrace watch ID`, or at `/api/v1/jobs/ID/events`.
"""

from typing import Any

import numpy as np

from headrace import Handler
from headrace.errors import InputError

ROUNDS_MAX = 10_000
POINTS = 20_000


class Pi(Handler):
    """{"rounds": 50} -> {"pi": 3.14…}: the share of random points of a square inside the circle."""

    def preprocess(self, inputs: list[Any]) -> list[Any]:
        """Return the number of rounds of each input."""
        return [self.rounds(value) for value in inputs]

    def rounds(self, value: Any) -> Any:
        """Return the number of rounds of one input, or its error."""
        rounds = value.get("rounds") if isinstance(value, dict) else None
        if isinstance(rounds, int) and 1 <= rounds <= ROUNDS_MAX:
            return rounds
        return InputError(f'send {{"rounds": n}}, n from 1 to {ROUNDS_MAX}')

    def inference(self, items: list[int]) -> list[Any]:
        """Process one item after the other; `item` is the index of the item in progress."""
        return [self.estimate(n, rounds) for n, rounds in enumerate(items)]

    def estimate(self, item: int, rounds: int) -> Any:
        """Add points in each round and report the estimate."""
        rng, inside = np.random.default_rng(), 0
        for n in range(1, rounds + 1):
            points = rng.random((POINTS, 2))
            inside += int(((points**2).sum(axis=1) <= 1).sum())
            pi = 4 * inside / (n * POINTS)
            self.context.progress(n, rounds, f"pi is about {pi:.4f}", item=item)
        return {"pi": pi}
