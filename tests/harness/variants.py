"""A small module in the place where a handler would call it, for tests of its variants."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from handlers.common.tensors import load_weights
from handlers.digits import WEIGHTS, Digits, DigitsNet
from handlers.optimize.variants import Installed, Samples, Site, install
from headrace.config.model.optimize import Optimize
from headrace.handler import Context, Exportable

MOST: Final = 4
IMAGES: Final = Path(__file__).parents[2] / "examples" / "digits"


def trained() -> DigitsNet:
    """Return the built-in module with its trained weights."""
    net = DigitsNet()
    load_weights(net, WEIGHTS)
    return net


def real_images() -> Tensor:
    """Return the images of the example folder (N, 1, 8, 8)."""
    handler = Digits()
    handler.initialize(Context("digits", "1", "cpu", Path()))
    return torch.stack([handler.item(path.read_bytes()) for path in sorted(IMAGES.glob("*.png"))])


class Held:
    """A module, and what runs in its place.

    Attributes:
        forward: what a handler would call.
        sampled: how often samples were asked for.
    """

    def __init__(self, module: nn.Module, most: int = MOST) -> None:
        self.module = module.eval()
        self.forward: Callable[..., Any] = module
        self.sampled = 0
        self.most = most
        images = real_images()
        self.images = images.repeat(-(-most // len(images)), 1, 1, 1)

    def exportable(self) -> Exportable:
        return Exportable(self.module, self.use, lambda logits: logits)

    def use(self, forward: Callable[..., Any]) -> None:
        self.forward = forward

    def samples(self, _: Exportable) -> Samples:
        self.sampled += 1
        calls: list[tuple[Tensor, ...]] = [
            (self.images[n : n + self.most],) for n in range(0, len(self.images), self.most)
        ]
        return Samples(calls, {1: (self.images[:1],), self.most: (self.images[: self.most],)})

    def install(
        self,
        cache: Path,
        *,
        sizes: tuple[int, ...] = (),
        refused_too: bool = False,
        again: bool = False,
        **wanted: Any,
    ) -> Installed:
        site = Site("m", cache, "cpu", self.most, sizes, {"handler": "test"}, self.samples, again)
        return install([self.exportable()], Optimize(**wanted), site, refused_too=refused_too)

    def apart(self) -> float:
        """Return the largest difference to the module, relative, over batches of all sizes."""
        most = 0.0
        for size in (1, 3, self.most):
            with torch.inference_mode():
                expected = self.module(self.images[:size])
                found = self.forward(self.images[:size])
            assert found.shape == expected.shape
            assert found.dtype is expected.dtype
            most = max(most, float((expected - found).abs().max() / expected.abs().max()))
        return most
