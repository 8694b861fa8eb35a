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


class Identity(Handler):
    """Every input is the output of its name, in the same place of memory."""

    def inference(self, items: Any) -> Any:
        for one in items:
            for array in one.values():
                assert array.dtype == np.object_ or not array.flags.owndata, "it was copied"
        return [{name.replace("IN", "OUT"): array for name, array in one.items()} for one in items]
