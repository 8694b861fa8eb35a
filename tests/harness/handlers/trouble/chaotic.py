"""Handlers for runs under kills: each input has how it should end, and each execution is logged.

`{"do": …, "n": …}`: plain, large and grow succeed. bad is an input error, and raise an exception.
transient fails once and never fails always, with an error that can be retried. hang holds the GIL.
segfault and exit end the process. Options: `log`, `marks` (a folder), `pause_s`.
"""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

from headrace.errors import InputError, TransientError
from headrace.handler import Context, Handler

GROWN = 6_000


class InTurn(Handler):
    def initialize(self, context: Context) -> None:
        super().initialize(context)
        self.marks = Path(context.options["marks"])
        self.pause_s = float(context.options.get("pause_s", 0))
        self.log = os.open(context.options["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.split: set[str] = set()

    def preprocess(self, inputs: list[Any]) -> list[Any]:
        ids = self.context.request_ids
        # The halves of a batch in which an input raised are one execution with it.
        if not self.split.issuperset(ids):
            self.split = set()
            os.write(self.log, "".join(f"{job_id}\n" for job_id in ids).encode())
        return [
            InputError(f"nobody can read {item['n']}") if item["do"] == "bad" else item
            for item in inputs
        ]

    def inference(self, items: list[Any]) -> list[Any]:
        time.sleep(self.pause_s)
        if any(item["do"] == "raise" for item in items):
            self.split = self.split or set(self.context.request_ids)
            raise ValueError(f"cannot do {[item['n'] for item in items]}")
        return [self.one(item) for item in items]

    def one(self, item: Any) -> Any:
        do, n = item["do"], item["n"]
        if do == "hang":
            ctypes.PyDLL(None).sleep(600)  # PyDLL keeps the GIL
        if do == "segfault":
            ctypes.string_at(0)
        if do == "exit":
            os._exit(3)
        if do == "never" or (do == "transient" and self.is_first(n)):
            return TransientError(f"{n} comes too early")
        grown = "y" * GROWN if do == "grow" else ""
        return {"n": n, "length": len(item.get("pad", "")), "grown": grown}

    def is_first(self, n: int) -> bool:
        try:
            (self.marks / str(n)).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class Overlapping(InTurn):
    overlap = True
