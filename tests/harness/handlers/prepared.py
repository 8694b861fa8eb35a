"""A handler whose `preprocess` runs elsewhere, and says where.

An input is an object. `die` ends the process that preprocesses it. `raise` raises there. `error`
returns an error in its place. `odd` returns a value that cannot be sent. `hang` never ends. `room`
is how many such inputs fit at a time. `begins` names a file that its `preprocess` writes, and
`until` a file that it then waits for.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np

from headrace.errors import InputError
from headrace.handler import Context, Handler

POLL_S = 0.01


def never_ends() -> None:
    threading.Event().wait()


class Prepared(Handler):
    overlap = True
    preprocess_per_item = True

    def initialize(self, context: Context) -> None:
        super().initialize(context)
        self.where = "model"

    def initialize_preprocess(self, context: Context) -> None:
        super().initialize_preprocess(context)
        self.where = "preprocess"
        if context.options.get("load") == "fail":
            raise RuntimeError("no such vocabulary")

    def preprocess(self, inputs: list[Any]) -> list[Any]:
        return [self.item(x, len(inputs)) for x in inputs]

    def item(self, value: Any, size: int) -> Any:
        if value.get("die"):
            os._exit(9)
        if value.get("raise"):
            raise ValueError(f"no such word: {value['raise']}")
        if value.get("error"):
            return InputError(value["error"])
        if value.get("hang"):
            never_ends()
        if value.get("begins"):
            with open(value["begins"], "a") as told:
                told.write(f"{os.getpid()}\n")
        while not os.path.exists(value.get("until", "/")):
            time.sleep(POLL_S)
        if value.get("odd"):
            return object()
        if size > value.get("room", size):
            raise MemoryError(f"{size} at once")
        until = time.perf_counter() + value.get("work_s", 0)
        while time.perf_counter() < until:
            pass
        return {
            "array": np.full((value.get("n", 1), 64), value.get("n", 1), dtype=np.float32),
            "where": self.where,
            "pid": os.getpid(),
            "size": size,
            "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"),
        }

    def inference(self, items: Any) -> Any:
        return [
            {**item, "array": float(item["array"].sum()), "model_pid": os.getpid()}
            for item in items
        ]


class Keeps(Prepared):
    overlap = False


class Heavy(Prepared):
    """It loads a model in `initialize`, and says not what its preprocess needs of that."""

    initialize_preprocess = Handler.initialize_preprocess
