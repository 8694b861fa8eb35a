"""A handler that yields pieces, at the pace of the test.

An input is an object: `pieces` are yielded one by one, null for none. Before the n-th the handler
waits for a file of that number in the folder `until`, if it has one, and makes a file `waits n`.
`raises` is the number of the piece in whose place inference raises, `fails` of that which is an
error. `kills` is the number in whose place the process kills itself, once (counted in the folder).
`closed` names a file that is written when the generator is closed.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from handlers.generation.answer_text import result_of
from headrace.errors import InputError
from headrace.generator import Generated
from headrace.handler import Handler
from tests.harness.handlers.generation.speaking import wait_for


class Yielding(Handler):
    def inference(self, items: list[Any]) -> Iterator[list[Any]]:
        try:
            for n in range(max(len(item["pieces"]) for item in items)):
                yield [self.piece(n, item) for item in items]
        finally:
            for item in items:
                if "closed" in item:
                    Path(item["closed"]).touch()

    def piece(self, n: int, item: Any) -> Any:
        if "until" in item:
            Path(item["until"], f"waits {n}").touch()
            wait_for(Path(item["until"], str(n)))
        if item.get("raises") == n:
            raise ValueError("raised in the middle")
        if item.get("fails") == n:
            return InputError("failed in the middle")
        if item.get("kills") == n and not Path(item["until"], "killed").exists():
            Path(item["until"], "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return item["pieces"][n] if n < len(item["pieces"]) else None


class Returning(Yielding):
    def inference(self, items: list[Any]) -> Any:
        yield from super().inference(items)
        return [len(item["pieces"]) for item in items]


class Filling(Handler):
    """Yields `count` pieces of `size` characters, each with its number first."""

    def inference(self, items: list[Any]) -> Any:
        for n in range(items[0]["count"]):
            yield [f"{n:<{items[0]['size']}}" for _ in items]
        return [item["count"] for item in items]


class Chatting(Yielding):
    """Its input is the JSON in the last message of a chat."""

    def preprocess(self, inputs: list[Any]) -> list[Any]:
        return [json.loads(one["messages"][-1]["content"]) for one in inputs]


class Calling(Chatting):
    """Its pieces are objects, as those of an answer with calls."""

    def postprocess(self, outputs: list[Any]) -> list[Any]:
        found = [result_of(Generated(output, "tool_calls")) for output in outputs]
        return [{**one, "usage": None} for one in found]
