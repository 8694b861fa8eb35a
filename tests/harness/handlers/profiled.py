"""Handlers to profile: with torch or without, with verbs in turn or overlapped; a generator."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from headrace.generator import Budget, Generator, Piece
from headrace.handler import Context, Handler


def spin(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


class Plain(Handler):
    """Knows no torch; an input may be `{"die": true}`."""

    overlap = True
    preprocess_per_item = True

    def initialize_preprocess(self, context: Context) -> None:
        pass

    def initialize(self, context: Context) -> None:
        pass

    def preprocess(self, inputs: list[Any]) -> list[Any]:
        slow_decode()
        return inputs

    def inference(self, items: list[Any]) -> list[Any]:
        for item in items:
            if item == {"die": True}:
                os._exit(3)
        return items


def slow_decode() -> None:
    spin(0.02)


class InTurn(Handler):
    """A layer of torch; its verbs run in turn."""

    def initialize(self, context: Context) -> None:
        import torch

        self.layer = torch.nn.Linear(32, 32)

    def inference(self, items: list[Any]) -> list[Any]:
        import torch

        with torch.inference_mode():
            return [float(self.layer(torch.ones(1, 32)).relu().sum()) for _ in items]


class Overlapped(InTurn):
    """The same with overlapping verbs."""

    overlap = True


class Writing(Generator):
    """A layer of torch in each step; each request gets ten words."""

    def initialize(self, context: Context) -> None:
        import torch

        self.layer = torch.nn.Linear(32, 32)
        self.left: dict[str, int] = {}

    def budget(self) -> Budget:
        return Budget(4 - len(self.left), 1000)

    def add(self, request_id: str, request: Any, resume_from: Sequence[int] = ()) -> None:
        self.left[request_id] = 10 - len(resume_from)

    def step(self) -> list[Piece]:
        import torch

        with torch.inference_mode():
            self.layer(torch.ones(len(self.left), 32))
        spin(0.01)
        self.left = {name: left - 1 for name, left in self.left.items()}
        pieces = [
            Piece(name, "word ", (left,), None if left else "stop")
            for name, left in self.left.items()
        ]
        self.left = {name: left for name, left in self.left.items() if left}
        return pieces

    def cancel(self, request_id: str) -> None:
        self.left.pop(request_id, None)
