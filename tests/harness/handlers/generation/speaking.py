"""A handler that says how far it has come, at the pace of the test.

An input is an object. `says` has the reports of `inference`, each as the arguments of `progress`.
After the n-th report it waits for a file of that number in the folder `until`. `prepares` has the
reports of `preprocess`. `fail` raises what passes, `fails` times (counted in the folder).
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from headrace.errors import TransientError
from headrace.handler import Handler

POLL_S = 0.01


class Speaking(Handler):
    def preprocess(self, inputs: list[Any]) -> list[Any]:
        for n, value in enumerate(inputs):
            if "prepares" in value:
                self.context.progress(*value["prepares"], item=n)
                wait_for(Path(value["until"], "prepared"))
        return inputs

    def inference(self, items: list[Any]) -> list[Any]:
        return [self.one(n, item) for n, item in enumerate(items)]

    def one(self, place: int, value: Any) -> Any:
        for n, said in enumerate(value.get("says", [])):
            self.context.progress(*said, item=place)
            wait_for(Path(value["until"], str(n)))
        if "fails" in value:
            tries = Path(value["until"], "tries")
            with tries.open("a") as file:
                file.write("x")
            if len(tries.read_text()) <= value["fails"]:
                return TransientError("not just now")
        return {"pid": os.getpid()}


class Overlapping(Speaking):
    overlap = True
    preprocess_per_item = True


def wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(POLL_S)
