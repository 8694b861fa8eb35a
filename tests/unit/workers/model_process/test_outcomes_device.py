from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.handler import Context, Handler
from workers.model_process.executor import BatchExecutor
from workers.model_process.outcomes import device_lost


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


def test_a_result_that_can_no_longer_be_read_from_the_device_loses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Away:
        def tolist(self) -> list[float]:
            raise RuntimeError("CUDA error: device-side assert triggered")

    class Gives(Handler):
        def inference(self, items: list[Any]) -> list[Any]:
            return [Away() for _ in items]

    executor = BatchExecutor(Gives(), Context("m", "1.0", "cuda:0", Path()))
    for lost in (True, False):
        cuda(monkeypatch, lost=lost)
        state = executor.run([("id0", b"1"), ("id1", b"2")])
        assert state.device_lost == lost
        assert [outcome[1] for outcome in state.outcomes] == ["handler-error"] * 2
