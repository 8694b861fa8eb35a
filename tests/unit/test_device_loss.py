from __future__ import annotations

import pytest
import torch

from workers.device_loss import device_lost


def cuda(monkeypatch: pytest.MonkeyPatch, *, used: bool = True, lost: bool = False) -> None:
    def synchronize() -> None:
        assert used, "a device that nobody uses was asked"
        if lost:
            raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: used)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)


def test_the_device_is_asked_whatever_was_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda(monkeypatch, lost=True)
    assert device_lost(ValueError("the handler's own words"))
    cuda(monkeypatch)
    assert not device_lost(RuntimeError("CUDA error: invalid argument"))


def test_it_is_left_alone_where_nothing_runs_on_it_or_memory_was_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda(monkeypatch, used=False)
    assert not device_lost(RuntimeError("CUDA error: device-side assert triggered"))
    cuda(monkeypatch, lost=True)
    assert not device_lost(torch.OutOfMemoryError("CUDA out of memory"))
