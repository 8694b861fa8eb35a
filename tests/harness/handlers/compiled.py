"""Runs a small module, and tells how many graphs torch has compiled in its process."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headrace.handler import Context, Exportable, Handler


class Chain(nn.Module):
    """So many small steps that the compiled form is the faster one."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(60):
            x = torch.relu(x * 0.99 + 0.01)
        return x


class Compiled(Handler):
    """An input is a number; the result is the count, and whether a variant runs."""

    def initialize(self, context: Context) -> None:
        super().initialize(context)
        self.model = Chain().eval()
        self.forward: Any = self.model

    def exportable(self) -> Exportable | None:
        return None if self.context.options.get("none") else Exportable(self.model, self.use)

    def use(self, forward: Any) -> None:
        self.forward = forward

    def example_input(self) -> float:
        return 1.0

    def inference(self, items: Any) -> Tensor:
        with torch.inference_mode():
            found: Tensor = self.forward(torch.tensor([[float(one)] * 2048 for one in items]))
        return found

    def postprocess(self, outputs: Tensor) -> list[Any]:
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        replaced = self.forward is not self.model
        return [{"graphs": graphs, "replaced": replaced} for _ in outputs]
