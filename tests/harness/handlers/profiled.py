"""Handlers to profile: with torch or without, with verbs in turn or overlapped."""

from __future__ import annotations

import os
import time
from typing import Any

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
