"""A handler that returns what came with each input, as each of its verbs has seen it.

An input `{"raise": true}` makes `inference` raise for its batch. `"bad"` is an error of its own.
"""

from __future__ import annotations

import base64
from typing import Any

from headrace.errors import InputError
from headrace.handler import Handler


def shown(value: Any) -> Any:
    """A value with its bytes as text."""
    if isinstance(value, bytes):
        return f"bytes:{base64.b64encode(value).decode()}"
    if isinstance(value, dict):
        return {name: shown(one) for name, one in value.items()}
    return [shown(one) for one in value] if isinstance(value, list) else value


class Asking(Handler):
    def preprocess(self, inputs: list[Any]) -> list[Any]:
        return [
            InputError("bad") if value == "bad" else {"input": value, "seen": [self.seen(n)]}
            for n, value in enumerate(inputs)
        ]

    def inference(self, items: list[Any]) -> list[Any]:
        assert len(items) == len(self.context.parameters) == len(self.context.request_ids)
        if any(isinstance(item["input"], dict) and "raise" in item["input"] for item in items):
            raise ValueError("one of them")
        return self.add(items)

    def postprocess(self, outputs: list[Any]) -> list[Any]:
        return [{"input": shown(item["input"]), "seen": item["seen"]} for item in self.add(outputs)]

    def add(self, items: list[Any]) -> list[Any]:
        return [{**item, "seen": [*item["seen"], self.seen(n)]} for n, item in enumerate(items)]

    def seen(self, n: int) -> dict[str, Any]:
        context = self.context
        return {
            "id": context.request_ids[n],
            "type": context.content_types[n],
            "parameters": context.parameters[n],
            "headers": context.headers[n],
            "metadata": context.metadata[n],
            "parts": context.part_types[n],
        }


class Nested(Asking):
    accepts_nested_bytes = True

    def example_input(self) -> Any:
        # With bytes inside: the load fails if they do not come back as bytes.
        return {"image": b"\x89PNG\r\n\x1a\n"}

    def preprocess(self, inputs: list[Any]) -> list[Any]:
        for n, value in enumerate(inputs):
            if self.context.request_ids[n].startswith("warm-up"):
                assert value == self.example_input()
                assert self.context.parameters[n] == {"question": "why", "top_k": 0}
        return super().preprocess(inputs)


class Overlapping(Asking):
    overlap = True
    preprocess_per_item = True

    def initialize_preprocess(self, context: Any) -> None:
        self.context = context
