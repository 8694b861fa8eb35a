"""Handlers whose device is lost by an input of "assert", as CUDA is after a device-side assert.

Every later batch of the process then raises too. A stand-in takes torch's place, so that no GPU is
needed; tests/gpu does the same to a real one. `log` is an option: each run of an input is a line.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

from headrace.handler import Context, Handler


class Cuda(ModuleType):
    """The part of torch.cuda that Headrace asks."""

    lost = False

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def empty_cache(self) -> None:
        self.synchronize()

    def synchronize(self) -> None:
        if self.lost:
            raise RuntimeError("CUDA error: device-side assert triggered")


class Torch(ModuleType):
    OutOfMemoryError = MemoryError
    Tensor = bytearray

    def __init__(self) -> None:
        super().__init__("torch")
        self.cuda = Cuda("torch.cuda")


class InTurn(Handler):
    def initialize(self, context: Context) -> None:
        super().initialize(context)
        self.torch = Torch()
        sys.modules["torch"] = self.torch

    def inference(self, items: list[Any]) -> list[Any]:
        with open(self.context.options["log"], "a") as log:
            log.writelines(f"{item} {len(items)} {os.getpid()}\n" for item in items)
        if "raise" in items:
            raise ValueError("this input alone is bad")
        self.torch.cuda.lost = self.torch.cuda.lost or "assert" in items
        self.torch.cuda.synchronize()
        return items


class Overlapping(InTurn):
    overlap = True
