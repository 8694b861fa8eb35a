"""A handler that never returns from some batches, or from the build of a variant."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headrace import Handler
from headrace.handler import Context, Exportable


def _forever() -> None:
    threading.Event().wait()


class Module(nn.Module):
    """Doubles its input; with `stuck`, a trace of it does not end."""

    def __init__(self, *, stuck: bool) -> None:
        super().__init__()
        self._stuck = stuck

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the doubled input."""
        if self._stuck and torch._C._get_tracing_state():
            _forever()
        return inputs * 2


class Stuck(Handler):
    """Its options: `stuck_from`, the smallest batch that does not end; `stuck_trace`; `marker`.

    The file `marker` is created when such a batch begins.
    """

    def initialize(self, context: Context) -> None:
        """Read the options."""
        self.stuck_from = context.options.get("stuck_from", 1 << 20)
        self.marker = context.options.get("marker", "")
        self.module = Module(stuck=context.options.get("stuck_trace", False)).eval()
        self.call: Any = self.module

    def exportable(self) -> Exportable:
        """Return the module."""
        return Exportable(self.module, self._use)

    def _use(self, forward: Any) -> None:
        self.call = forward

    def example_input(self) -> Any:
        """Return a number."""
        return 1.0

    def inference(self, items: list[float]) -> list[float]:
        """Return the doubled items."""
        if len(items) >= self.stuck_from:
            if self.marker:
                Path(self.marker).touch()
            _forever()
        with torch.inference_mode():
            found: list[float] = self.call(torch.tensor(items)).tolist()
        return found
