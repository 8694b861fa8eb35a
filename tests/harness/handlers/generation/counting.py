"""A generator whose pieces are numbers, so that a reader notices one that is lost or comes twice.

An input is an object: `pieces` is how many numbers it gets, from 0. Before each multiple of `every`
it waits for a file in the folder `until`, whose name is how many multiples came before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace import Budget, Context, Generator, Piece
from tests.harness.handlers.generation.speaking import POLL_S


class Numbers(Generator):
    def initialize(self, context: Context) -> None:
        super().initialize(context)
        self.slots = context.max_batch_size
        self.running: dict[str, tuple[Any, int]] = {}
        self.opened: set[Path] = set()

    def example_input(self) -> Any:
        return {"pieces": 2, "every": 3, "until": "/"}

    def budget(self) -> Budget:
        return Budget(self.slots - len(self.running), self.slots)

    def add(self, request_id: str, request: Any, resume_from: Sequence[int] = ()) -> None:
        self.running[request_id] = (request, len(resume_from))

    def step(self) -> list[Piece]:
        pieces = []
        for request_id, (request, n) in list(self.running.items()):
            if not self.is_open(request, n):
                continue
            done = n + 1 == request["pieces"]
            if done:
                del self.running[request_id]
            else:
                self.running[request_id] = (request, n + 1)
            pieces.append(Piece(request_id, n, (n,), finish="stop" if done else None))
        if not pieces:
            time.sleep(POLL_S)
        return pieces

    def is_open(self, request: Any, n: int) -> bool:
        if n % request["every"] or not n:
            return True
        gate = Path(request["until"], str(n // request["every"]))
        if gate not in self.opened and gate.exists():
            self.opened.add(gate)
        return gate in self.opened

    def postprocess(self, outputs: Any) -> list[Any]:
        return [len(output.text) for output in outputs]

    def cancel(self, request_id: str) -> None:
        self.running.pop(request_id, None)
