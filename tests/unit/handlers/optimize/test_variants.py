"""When a variant is refused, and what the cache promises. The backends are stand-ins."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from handlers.optimize import cache, check, variants
from handlers.optimize.forms import Replacement, Run, form_of
from handlers.optimize.source import Backend, Source
from handlers.optimize.torch_backends import BACKENDS
from headrace.config.model.optimize import Optimize
from headrace.errors import ConfigError
from tests.harness.handlers.trouble.two_cores import use_two_cores
from tests.harness.variants import MOST, Held, real_images, trained
from tests.harness.wait import wait_until

Build = Callable[[Source, Path], None]
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Callable[[Build], None]:
    """Sets what the backend torchscript does in its build; it runs the module itself."""
    monkeypatch.setattr(check, "SLACK", 1e9)

    def replace(build: Build) -> None:
        monkeypatch.setitem(variants._BACKENDS, "torchscript", Backend(build, BACKENDS["eager"][1]))

    return replace


@pytest.fixture(autouse=True)
def _half_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine equal runs differ by more than `SLACK`; these tests give a half or less."""
    monkeypatch.setattr(check, "SLACK", 1.9)


def test_a_wrong_variant_is_refused_and_the_verdict_is_kept(tmp_path: Path) -> None:
    for sampled in (1, 0):
        held = Held(trained())
        found = held.install(tmp_path, precision="bfloat16", max_error=1e-9)
        assert "more than max_error, 1e-09" in found.verdict.refused
        assert (found.used, held.forward is held.module) == (False, True)
        assert held.sampled == sampled
    # Another limit is another question, for which the same build is used.
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1


def test_another_best_class_is_refused(tmp_path: Path) -> None:
    class Near(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            # In half precision both are 1, and the first is the best.
            self.classes = nn.Parameter(torch.tensor([1.0, 1.0001]))

        def forward(self, x: Tensor) -> Tensor:
            return self.classes.expand(len(x), 2)

    held = Held(Near())
    found = held.install(tmp_path, precision="half", max_error=0.5)
    assert found.verdict.error < 0.001
    assert found.verdict.agreement == 0
    assert "is that of eager for 0.0% of the inputs" in found.verdict.refused
    assert held.forward is held.module


def test_a_slower_variant_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def times(call: object, args: object) -> float:
        return 2.0 if isinstance(call, Replacement) else 1.0

    monkeypatch.setattr(check, "milliseconds", times)
    held = Held(trained())
    found = held.install(tmp_path, precision="bfloat16")
    assert "slower than eager: 0.50 times as fast (0.50 to 0.50)" in found.verdict.refused
    assert held.forward is held.module
    # A comparison of variants measures it all the same.
    assert held.install(tmp_path, precision="bfloat16", refused_too=True).used
    assert held.forward is not held.module


def test_eager_float_is_the_module_itself(tmp_path: Path) -> None:
    held = Held(trained())
    assert held.install(tmp_path).used is False
    assert list(tmp_path.iterdir()) == []


def test_a_build_that_fails_is_refused_and_not_tried_again(
    builds: Callable[[Build], None], tmp_path: Path
) -> None:
    tried = []

    def build(source: Source, folder: Path) -> None:
        tried.append(1)
        raise RuntimeError("an operator is unknown")

    builds(build)
    for _ in range(2):
        found = Held(trained()).install(tmp_path, backend="torchscript")
        text = "it cannot be built: RuntimeError: an operator is unknown ("
        assert found.verdict.refused.startswith(text)
        assert "run `headrace optimize` with --again; the traceback is in " in found.verdict.refused
        (file,) = tmp_path.glob("*/traceback.txt")
        assert found.verdict.refused.endswith(str(file))
        assert "in build\n" in file.read_text()
    assert tried == [1]
    # What cannot be built is not measured as if it were.
    held = Held(trained())
    assert held.install(tmp_path, backend="torchscript", refused_too=True).used is False
    held.install(tmp_path, backend="torchscript", again=True)
    assert tried == [1, 1]


def test_a_verdict_is_kept_until_it_is_judged_again(
    builds: Callable[[Build], None], tmp_path: Path
) -> None:
    builds(lambda source, folder: None)
    held = Held(trained())
    first = held.install(tmp_path, backend="torchscript")
    kept = held.install(tmp_path, backend="torchscript")
    assert (kept.verdict, held.sampled) == (first.verdict, 1)
    # Other rounds show that it is slower: workers follow these.
    assert kept.verdict.timed({MOST: [(1.0, 9e9)] * 3}) == kept.verdict  # by chance, perhaps
    kept.keep(kept.verdict.timed({MOST: [(1.0, 9e9)] * 6}))
    slower = held.install(tmp_path, backend="torchscript")
    assert slower.verdict.refused.startswith("it is slower than eager")
    assert (slower.used, slower.problem) == (False, slower.verdict.refused)
    assert not slower.verdict.timed({MOST: [(9e9, 1.0)] * 3}).refused
    again = held.install(tmp_path, backend="torchscript", again=True)
    assert (again.used, held.sampled) == (True, 2)
    assert again.verdict.judged_at > first.verdict.judged_at


def test_outputs_of_another_shape_are_refused(
    builds: Callable[[Build], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wider(source: Source, folder: Path) -> Run:
        run = BACKENDS["eager"].load(source, folder)
        return lambda args: [torch.cat([one, one]) for one in run(args)]

    builds(lambda source, folder: None)
    monkeypatch.setitem(
        variants._BACKENDS, "torchscript", Backend(lambda source, folder: None, wider)
    )
    held = Held(trained())
    found = held.install(tmp_path, backend="torchscript", refused_too=True)
    assert f"its outputs have the shapes [({2 * MOST}, 10)]" in found.verdict.refused
    assert held.forward is held.module


def test_a_build_without_fixed_sizes_serves_another_max_batch_size(
    builds: Callable[[Build], None], tmp_path: Path
) -> None:
    built = []
    builds(lambda source, folder: built.append(1))
    for most in (4, 8):
        assert Held(trained(), most).install(tmp_path, backend="torchscript").used
    assert built == [1]


def test_a_full_disk_is_no_verdict(builds: Callable[[Build], None], tmp_path: Path) -> None:
    tried = []

    def build(source: Source, folder: Path) -> None:
        tried.append(1)
        if len(tried) == 1:
            raise OSError(28, "No space left on device")

    builds(build)
    first = Held(trained()).install(tmp_path, backend="torchscript")
    assert "No space left" in first.verdict.refused
    assert Held(trained()).install(tmp_path, backend="torchscript").used


def test_two_processes_share_one_build(builds: Callable[[Build], None], tmp_path: Path) -> None:
    built, arrived, folder = tmp_path / "built", tmp_path / "arrived", tmp_path / "cache"
    arrived.mkdir()

    def build(source: Source, target: Path) -> None:
        with built.open("a") as file:
            file.write(f"{os.getpid()}\n")
        wait_until(lambda: len(list(arrived.iterdir())) == 2, "both want it", timeout_s=120)

    builds(build)
    processes = [
        FORK.Process(target=_install_and_exit, args=(folder, arrived), daemon=True)
        for _ in range(2)
    ]
    for one in processes:
        one.start()
    for one in processes:
        one.join(timeout=180)
    assert [one.exitcode for one in processes] == [0, 0]
    assert len(built.read_text().splitlines()) == 1


def _install_and_exit(folder: Path, arrived: Path) -> None:
    torch.set_num_threads(1)  # the threads of the parent are not here
    held = Held(trained())
    (arrived / str(os.getpid())).touch()
    os._exit(0 if held.install(folder, backend="torchscript").used else 1)


def test_signals_survive_a_build_that_leaves_them_a_freed_stack(
    builds: Callable[[Build], None], tmp_path: Path
) -> None:
    builds(lambda source, folder: use_two_cores())
    process = FORK.Process(target=_install_and_signal, args=(tmp_path,), daemon=True)
    process.start()
    process.join(timeout=180)
    assert process.exitcode == 0


def _install_and_signal(folder: Path) -> None:
    torch.set_num_threads(1)  # the threads of the parent are not here
    signal.signal(signal.SIGUSR1, lambda *_: None)
    found = Held(trained()).install(folder, backend="torchscript")
    assert found.used, found.problem
    signal.raise_signal(signal.SIGUSR1)


def test_a_kill_during_the_build_leaves_nothing_broken(
    builds: Callable[[Build], None], tmp_path: Path
) -> None:
    begun, folder = tmp_path / "begun", tmp_path / "cache"

    def hangs(source: Source, target: Path) -> None:
        (target / "half").write_text("written")
        begun.touch()
        signal.pause()

    builds(hangs)
    process = FORK.Process(target=_install_and_exit, args=(folder, tmp_path), daemon=True)
    process.start()
    wait_until(begun.exists, "the build has begun", timeout_s=120)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(timeout=60)
    builds(lambda source, target: None)
    held = Held(trained())
    assert held.install(folder, backend="torchscript").used
    assert held.apart() == 0
    # What the killed process has left is removed.
    assert not list(folder.rglob("half"))


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
def test_a_missing_package_is_named(
    backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs packages that are not installed") as caught:
        Held(trained()).install(tmp_path, backend=backend)
    assert caught.value.hint == f"pip install 'headrace[{backend}]'"


def test_tensorrt_names_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="not installed: torch_tensorrt") as caught:
        Held(trained()).install(tmp_path, backend="tensorrt")
    assert caught.value.hint == "pip install 'headrace[tensorrt]'"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with pytest.raises(ConfigError, match="tensorrt needs a GPU"):
        Held(trained()).install(tmp_path, backend="tensorrt")


def test_the_key_of_a_build_has_all_that_decides(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"a")
    wanted, int8 = Optimize(backend="aot"), Optimize(backend="openvino", precision="int8")

    def key(wanted: Optimize = wanted, module: nn.Module | None = None, **settings: Any) -> str:
        return cache.build_key(wanted, module or trained(), "cpu", settings)

    other, straighter, half = trained(), trained(), trained().half()
    with torch.no_grad():
        next(other.parameters()).view(-1)[0] += 1
    straighter.body[9] = nn.Dropout(0.5)
    calibrated = Optimize(backend="openvino", precision="int8", calibrate=str(tmp_path))
    keys = [
        key(), key(Optimize(backend="aot", precision="half")), key(Optimize(backend="compile")),
        key(Optimize(backend="compile", mode="max-autotune")), key(module=other),
        key(module=straighter), key(module=half), key(options={"crop_px": 8}), key(int8),
        key(calibrated),
    ]  # fmt: skip
    assert len(set(keys)) == len(keys)
    assert key() == keys[0]
    # What is allowed and what is compared decide over the verdict, not over the build.
    assert key(Optimize(backend="aot", max_error=0.5, calibrate=str(tmp_path))) == keys[0]
    names = {
        cache.verdict_name(one, threads)
        for one in (wanted, Optimize(max_error=0.5), Optimize(calibrate=str(tmp_path)))
        for threads in (1, 2)
    }
    assert len(names) == 6


def test_a_call_that_was_not_built_for_runs_the_module() -> None:
    class Sum(nn.Module):
        def forward(self, x: Tensor, *, more: int = 0) -> dict[str, Tensor]:
            return {"sum": x.sum(dim=1) + more}

    module, ran = Sum(), []

    def run(args: tuple[Tensor, ...]) -> list[Tensor]:
        ran.append(args[0].shape)
        return [args[0].sum(dim=1).double()]

    form = form_of(module, (torch.ones(2, 3),), ())
    replaced = Replacement(module, form, run)
    for args, more in (
        ((torch.ones(5, 3),), {}),
        ((torch.ones(5, 4),), {}),
        ((torch.ones(5, 3, dtype=torch.float64),), {}),
        ((torch.ones(5, 3),), {"more": 1}),
    ):
        found, expected = replaced(*args, **more)["sum"], module(*args, **more)["sum"]
        assert found.dtype is expected.dtype
        assert torch.equal(found, expected)
    assert ran == [(5, 3)]


def test_a_module_without_tensors_cannot_be_replaced() -> None:
    class Texts(nn.Module):
        def forward(self, x: Tensor) -> list[str]:
            return ["text"] * len(x)

    with pytest.raises(ConfigError, match="must return tensors"):
        form_of(Texts(), (torch.ones(2, 3),), ())
    with pytest.raises(ConfigError, match="must be called with tensors"):
        form_of(trained(), (), ())
    assert form_of(trained(), (real_images(),), ()).inputs[0].dims == {0: "batch"}
