"""Handlers whose `preprocess` holds the interpreter's lock, releases it, or takes no time."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from headrace.handler import Context, Handler


class Holds(Handler):
    """Its `preprocess` computes for `work_ms` for each item, in Python."""

    overlap = True
    preprocess_per_item = True

    def initialize(self, context: Context) -> None:
        self.context = context
        self.seconds = float(context.options.get("work_ms", 0)) / 1000

    def initialize_preprocess(self, context: Context) -> None:
        Holds.initialize(self, context)

    def example_input(self) -> Any:
        return 1

    def preprocess(self, inputs: list[Any]) -> list[Any]:
        return [self.work(value) for value in inputs]

    def work(self, value: Any) -> Any:
        until = time.thread_time() + self.seconds
        while time.thread_time() < until:
            pass
        return np.full(8, value)

    def inference(self, items: Any) -> list[int]:
        return [int(item[0]) for item in items]


class Releases(Holds):
    """It waits instead, as code does that computes outside of Python."""

    def work(self, value: Any) -> Any:
        time.sleep(self.seconds)
        return np.full(8, value)


class Odd(Holds):
    """Its items cannot be sent to a process."""

    def work(self, value: Any) -> Any:
        return {"item": object(), "value": super().work(value)}

    def inference(self, items: Any) -> list[int]:
        return [int(item["value"][0]) for item in items]
