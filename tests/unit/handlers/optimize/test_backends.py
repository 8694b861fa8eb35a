"""Each backend on a tiny module, against eager."""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from handlers.optimize import check
from handlers.optimize.source import Source
from tests.harness.variants import MOST, Held, trained

#: No ratio of times counts as slower.
ANY_SPEED = 1e9


@pytest.fixture(autouse=True)
def _any_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny module is often fastest as it is; these tests are about answers."""
    monkeypatch.setattr(check, "SLACK", ANY_SPEED)


@pytest.mark.parametrize(
    ("backend", "precision", "most_apart"),
    [
        ("torchscript", "float", 1e-4),
        ("onnxruntime", "float", 1e-4),
        ("onnxruntime", "int8", 0.2),
        ("openvino", "float", 1e-4),
        ("openvino", "int8", 0.2),
        ("aot", "float", 1e-4),
        ("compile", "float", 1e-4),
    ],
)
def test_a_variant_gives_the_answers_of_its_module(
    backend: Any, precision: Any, most_apart: float, tmp_path: Path
) -> None:
    held = Held(trained())
    first = held.install(tmp_path, backend=backend, precision=precision)
    compiled = graphs() if backend == "compile" else {}
    assert (first.verdict.refused, first.used) == ("", True)
    assert held.forward is not held.module
    assert first.build_s > 0
    assert first.verdict.error <= most_apart
    assert first.verdict.agreement == 1.0
    assert set(first.verdict.times) == {"1", str(MOST)}
    assert held.apart() <= most_apart
    assert backend != "compile" or graphs() == compiled
    # The second process finds the build and the verdict, and needs no samples.
    again = Held(trained())
    second = again.install(tmp_path, backend=backend, precision=precision)
    assert (second.build_s, second.used, again.sampled) == (0, True, 0)
    assert second.verdict == first.verdict
    assert again.apart() <= most_apart
    if backend == "aot":
        # A process of its own, as this one has compiled. A verdict belongs to a number of threads.
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            threads = torch.get_num_threads()
            loaded = pool.submit(_load_without_the_compiler, tmp_path, threads).result()
        assert loaded == ("", 0, True, False)


def _load_without_the_compiler(folder: Path, threads: int) -> tuple[str, float, bool, bool]:
    torch.set_num_threads(threads)
    check.SLACK = ANY_SPEED  # type: ignore[misc]
    held = Held(trained())
    found = held.install(folder, backend="aot")
    return found.problem, found.build_s, held.apart() <= 1e-4, "torch._inductor" in sys.modules


def graphs() -> dict[str, int]:
    """What torch counts while it compiles in this process."""
    return dict(torch._dynamo.utils.counters["stats"])  # type: ignore[no-untyped-call,unused-ignore]


def test_a_call_compiles_nothing(tmp_path: Path) -> None:
    held = Held(trained())
    held.install(tmp_path, sizes=(2, MOST), backend="compile")
    before = graphs()
    assert before["unique_graphs"] > 0
    # A size that was not compiled runs too.
    assert held.apart() <= 1e-4
    with torch.inference_mode():
        held.forward(held.images)
    assert graphs() == before


class Strided(nn.Module):
    """Begins as ResNet does: the compiler asks if its batch has 16 items at least."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out


def test_aot_with_a_largest_batch_of_16_serves_smaller_batches(tmp_path: Path) -> None:
    held = Held(Strided(), most=16)
    assert held.install(tmp_path, backend="aot").verdict.refused == ""
    assert held.apart() < 1e-4


def test_a_size_that_the_compiler_has_fixed_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bounded(self: Source) -> tuple[dict[int, Any], ...]:
        return ({0: torch.export.Dim("batch", min=1, max=16)},)

    monkeypatch.setattr(Source, "open_dims", bounded)
    found = Held(Strided(), most=16).install(tmp_path, backend="aot")
    fixed = "it cannot be built: the compiler has fixed the dimension batch at 16; use another"
    assert fixed in found.verdict.refused
    (file,) = tmp_path.glob("*/traceback.txt")
    assert str(file) in found.verdict.refused
    assert "_check_open" in file.read_text()
