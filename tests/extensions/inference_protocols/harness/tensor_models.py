"""Handlers of models with tensors, as a user writes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.handler import Handler


class AddSub(Handler):
    """Triton's example `simple`: the sums and the differences of two tensors."""

    def inference(self, items: Any) -> Any:
        return [
            {
                "OUTPUT0": one["INPUT0"] + one["INPUT1"],
                "OUTPUT1": one["INPUT0"] - one["INPUT1"],
            }
            for one in items
        ]


class Counted(Handler):
    """Yields the numbers up to each item's `COUNT`, one in each piece."""

    def inference(self, items: Any) -> Any:
        counts = [int(one["COUNT"][0]) for one in items]
        for n in range(max(counts)):
            yield [
                {"NUMBER": np.array([n], np.int32), "NAME": [f"{n}"]} if n < count else None
                for count in counts
            ]


class Spelled(Handler):
    """Yields the letters of each item's `TEXT`."""

    def inference(self, items: Any) -> Any:
        texts = [one["TEXT"][0].decode() for one in items]
        for n in range(max(map(len, texts))):
            yield [text[n] if n < len(text) else None for text in texts]


class Identity(Handler):
    """Every input is the output of its name, in the same place of memory."""

    def inference(self, items: Any) -> Any:
        for one in items:
            for array in one.values():
                assert array.dtype == np.object_ or not array.flags.owndata, "it was copied"
        return [{name.replace("IN", "OUT"): array for name, array in one.items()} for one in items]


class HalfPlusTwo(Handler):
    """TensorFlow Serving's example: x / 2 + 2."""

    def inference(self, items: Any) -> Any:
        if any((one["x"] == -1).any() for one in items):
            raise ValueError("below 0")
        return [one["x"] / np.float32(2) + np.float32(2) for one in items]


class Scores(Handler):
    """The scores of two classes."""

    def inference(self, items: Any) -> Any:
        return [np.stack([1 - one["p"], one["p"]], 1) for one in items]


class Mixed(Handler):
    """Outputs of several datatypes."""

    def inference(self, items: Any) -> Any:
        return [
            {
                "sum": one["a"].sum(1),
                "b_bytes": one["b"],
                "b": one["b"],
                "yes": one["a"][:, 0] < 3,
            }
            for one in items
        ]
