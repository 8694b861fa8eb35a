from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from handlers.common import tensors
from handlers.common.tensors import in_order, use_channels_last

EXAMPLE = torch.rand(2, 3, 16, 16)


class Clock:
    """Stands in for `time`: it goes on only where a module says that it takes time."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


CLOCK = Clock()


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "time", CLOCK)


def last(module: nn.Module) -> bool:
    weight = next(module.parameters())
    return weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()


class Net(nn.Module):
    """One convolution; what it does besides, by the order that its input is in, a subclass says."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def extra(self, out: Tensor, is_last: bool) -> Tensor:
        return out

    def forward(self, images: Tensor) -> Tensor:
        return self.extra(self.conv(images), not images.is_contiguous())


class SlowLast(Net):
    def extra(self, out: Tensor, is_last: bool) -> Tensor:
        CLOCK.now_s += 0.05 if is_last else 0.01
        return out


class SlowPlain(Net):
    def extra(self, out: Tensor, is_last: bool) -> Tensor:
        CLOCK.now_s += 0.01 if is_last else 0.05
        return out


class WrongLast(SlowPlain):
    def extra(self, out: Tensor, is_last: bool) -> Tensor:
        return super().extra(out, is_last) + (0.1 if is_last else 0)


class RoughLast(SlowPlain):
    def extra(self, out: Tensor, is_last: bool) -> Tensor:
        return super().extra(out, is_last) * (1.01 if is_last else 1)


class FailsLast(Net):
    def extra(self, out: Tensor, is_last: bool) -> Tensor:
        if is_last:
            out.view(-1)
            raise AssertionError("a view of channels last was expected to fail")
        return out


@pytest.mark.parametrize(
    ("kind", "on"), [(SlowPlain, True), (SlowLast, False), (WrongLast, False), (FailsLast, False)]
)
def test_it_is_kept_only_where_it_is_right_and_not_slower(kind: type[Net], on: bool) -> None:
    module = kind().eval()
    before = module(EXAMPLE) if on else None
    assert use_channels_last(module, EXAMPLE, "auto", "m") is on
    assert last(module) is on
    if before is not None:
        assert torch.allclose(module(in_order(EXAMPLE, channels_last=True)), before, atol=1e-5)


@pytest.mark.parametrize(
    ("mode", "kind", "on"), [("on", SlowLast, True), ("off", SlowPlain, False)]
)
def test_it_can_be_switched(mode: str, kind: type[Net], on: bool) -> None:
    module = kind().eval()
    assert use_channels_last(module, EXAMPLE, mode, "m") is on
    assert last(module) is on


def test_a_module_without_convolutions_is_not_tried() -> None:
    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[Any] = []

        def forward(self, images: Tensor) -> Tensor:
            self.calls.append(images)
            return images

    module = Dense()
    assert not use_channels_last(module, EXAMPLE, "auto", "m")
    assert module.calls == []


@pytest.mark.parametrize(("dtype", "on"), [(torch.float32, False), (torch.bfloat16, True)])
def test_lower_precision_may_differ_by_its_own_rounding(dtype: torch.dtype, on: bool) -> None:
    module = RoughLast().to(dtype).eval()
    assert use_channels_last(module, EXAMPLE.to(dtype), "auto", "m") is on
