"""The measurement of variants: which inputs it uses, and which lines it prints."""

from __future__ import annotations

import logging
import multiprocessing
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from extensions.tuning.optimize.report import Comparison, Variant
from extensions.tuning.workers import measure
from handlers.loader import load_handler
from headrace.config.model.catalog import load_catalog
from headrace.config.model.optimize import Optimize
from headrace.errors import ConfigError
from headrace.handler import Context, Exportable
from tests.harness.workers.worker import write_models
from workers.model_process.executor import BatchExecutor
from workers.model_process.variant import inputs_of, samples

pytestmark = pytest.mark.usefixtures("imports_are_undone")

#: A handler that raises an error for a text, where others return the error in place of the item.
RAISING = """
import torch
from headrace import Handler
from headrace.errors import InputError

class Raising(Handler):
    def initialize(self, context):
        self.context = context
        self.layer = torch.nn.Linear(1, 1)

    def preprocess(self, inputs):
        if any(isinstance(one, str) for one in inputs):
            raise InputError("it accepts no text")
        return torch.tensor([[float(one)] for one in inputs])

    def inference(self, items):
        with torch.inference_mode():
            return self.layer(items)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "raising.py").write_text(RAISING)
    (tmp_path / "inputs").mkdir()
    return tmp_path


@pytest.fixture
def _same_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the process of a variant be a thread of this process."""
    monkeypatch.setattr(measure, "die_with_parent", lambda _: None)
    logger = logging.getLogger("headrace.model")
    level = logger.level
    yield
    logger.setLevel(level)


def frame_of(folder: Path) -> dict[str, Any]:
    """Return the init frame of the handler `RAISING`, with the inputs of the folder."""
    config = load_catalog(write_models(folder, raising={"handler": "raising.py"})).get("raising")
    inputs = str(folder / "inputs")
    optimize = {"backend": "eager", "precision": "float", "calibrate": inputs}
    return {**config.init_frame(folder, "cpu"), "sizes": [1, 2], "optimize": optimize}


def facts_of(folder: Path) -> Any:
    """Return the first message from the process of a variant."""
    ours, theirs = multiprocessing.Pipe()
    thread = threading.Thread(target=measure._serve, args=(theirs, frame_of(folder), 0))
    thread.start()
    with ours:
        while "step" in (found := ours.recv()):
            pass
    thread.join()
    return found


@pytest.mark.usefixtures("_same_process")
def test_refused_inputs_and_files_without_json_are_left_out_wherever_they_are(
    folder: Path,
) -> None:
    texts = {"a.txt": "no number", "b.json": "{", "c.json": "", "d.json": "1.5"}
    for name, text in texts.items():
        (folder / "inputs" / name).write_text(text)
    facts = facts_of(folder)
    assert "refused" not in facts
    assert facts["load_s"] > 0
    bad = folder / "inputs/b.json"
    files, _, refused = facts["left_out"].rpartition("; ")
    assert files.startswith(f"leaves out 2 files that are no inputs; {bad}: the input is not JSON")
    assert refused == "leaves out 1 of 2 inputs that the handler refuses: it accepts no text"


@pytest.mark.usefixtures("_same_process")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a.json", "none of the files is an input; {}: the input is not JSON"),
        ("a.txt", "the handler accepts none of the 1 inputs: it accepts no text"),
    ],
)
def test_the_reason_is_named_if_no_input_can_be_used(folder: Path, name: str, reason: str) -> None:
    path = folder / "inputs" / name
    path.write_text("{")
    assert reason.format(path) in facts_of(folder)["refused"]


def test_a_variant_loads_although_preprocess_refuses_one_of_its_inputs(folder: Path) -> None:
    (folder / "inputs/a.txt").write_text("no number")
    (folder / "inputs/b.json").write_text("1.5")
    handler: Any = load_handler("raising.py", folder)
    handler = handler() if isinstance(handler, type) else handler
    context = Context("raising", "1.0", "cpu", folder, max_batch_size=4)
    handler.initialize(context)
    executor = BatchExecutor(handler, context)
    inputs, left_out = inputs_of(executor, frame_of(folder))
    assert (len(inputs), left_out) == (2, "")
    found = samples(executor, Exportable(handler.layer, lambda _: None), inputs)
    assert [args[0].tolist() for args in found.calls] == [[[1.5]]]
    with pytest.raises(ConfigError, match="does not call the module"):
        samples(executor, Exportable(torch.nn.Linear(1, 1), lambda _: None), inputs)


def test_an_unexpected_error_is_named_with_its_place_and_its_traceback(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "die_with_parent", lambda _: None)
    (folder / "inputs/a.json").write_text("1.5")
    (folder / "raising.py").write_text(
        RAISING.replace("return self.layer(items)", "raise RuntimeError('no such operator')")
    )
    refused = facts_of(folder)["refused"]
    assert refused.startswith("RuntimeError: no such operator (")
    assert f"{folder / 'raising.py'}, line 18)" in refused
    assert "its traceback is above" in refused
    assert "Traceback (most recent call last)" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("exit_code", "text"),
    [
        (-11, "SIGSEGV ended its process in a batch of 4; its native code has crashed"),
        (-9, "SIGKILL ended its process in a batch of 4; the host may have too little memory"),
        (1, "its process ended in a batch of 4; the lines above have the reason"),
    ],
)
def test_the_end_of_a_process_names_the_step_and_the_signal(exit_code: int, text: str) -> None:
    assert measure.ended(exit_code, "a batch of 4").startswith(text)


def test_the_rounds_of_the_table_decide_over_the_speed() -> None:
    class Timed:
        def __init__(self, ms: float) -> None:
            self.ms, self.judged = ms, 0
            self.times: dict[int, Any] = {}
            self.pairs: dict[int, Any] = {}

        def run(self, size: int) -> measure.Times:
            return (0.0, self.ms * size, 0.0)

        def judge(self) -> None:
            self.judged += 1

    eager, own = Timed(2.0), Timed(1.0)
    measure._rounds(cast("list[measure.Measured]", [eager, own]), 4, 3)
    assert own.pairs == {4: [(8.0, 4.0)] * 3}
    assert (eager.judged, own.judged) == (0, 1)


class FakeMeasured:
    """Replaces `Measured`: a variant without a process, which loads at once."""

    module = True

    def __init__(self, frame: Any, wanted: Optimize, until: float) -> None:
        del frame, until
        self.wanted, self.name = wanted, wanted.name
        self.late, self.refused = False, ""
        self.facts = {"threads": 1, "inputs": "x", "left_out": "", "environment": {}}
        self.without_module = not self.module
        self.alive = True
        self.times: dict[int, Any] = {}
        self.pairs: dict[int, Any] = {}

    def judge(self) -> None:
        pass

    def run(self, size: int) -> None:
        del size

    def variant(self) -> Variant:
        return Variant(optimize=self.wanted)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("module", [True, False])
def test_each_step_is_printed_and_only_eager_is_measured_without_a_module(
    module: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(FakeMeasured, "module", module)
    monkeypatch.setattr(measure, "Measured", FakeMeasured)
    variants = [{"backend": "aot"}, {"backend": "torchscript"}]
    frame = {
        "model": "m", "device": "cpu", "variants": variants, "sizes": [1, 8], "rounds": 4,
        "load_limit_s": None,
    }  # fmt: skip
    first, *lines = measure.measure(frame)
    names = [cast("Variant", line).optimize.backend for line in lines]
    printed = capsys.readouterr().err.splitlines()
    assert cast("Comparison", first).without_module is not module
    if module:
        assert list(dict.fromkeys(names)) == ["eager", "aot", "torchscript"]
        variants_named = "eager float, aot float, torchscript float"
        assert printed == [
            "headrace: loads eager float", "headrace: loads aot float",
            "headrace: loads torchscript float",
            f"headrace: measures batches of 1: {variants_named}",
            f"headrace: measures batches of 8: {variants_named}",
        ]  # fmt: skip
    else:
        assert set(names) == {"eager"}
        assert printed[0] == "headrace: loads eager float"
        reason = "the handler of m has no module to optimize, so eager alone is measured"
        assert reason in printed[1]
        assert printed[2:] == [
            "headrace: measures batches of 1: eager float",
            "headrace: measures batches of 8: eager float",
        ]  # fmt: skip
