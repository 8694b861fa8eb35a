"""A handler with several modules: the detector and the pose model of Animated Drawings."""

from __future__ import annotations

import base64
import io
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from handlers.optimize import check
from headrace.config.model.catalog import load_catalog
from headrace.handler import Context
from workers.model_process.batch_state import StageTimes, SubBatch
from workers.model_process.executor import BatchExecutor
from workers.model_process.startup import context_of, handler_of
from workers.model_process.variant import describe, exportables_of, install_variant

pytestmark = pytest.mark.usefixtures("imports_are_undone")

EXAMPLE = Path(__file__).parents[4] / "examples/animated_drawings"
DRAWINGS = sorted((EXAMPLE / "drawings").glob("*.jpg"))
DETECTOR, POSE = "drawn_humanoid_detector", "drawn_humanoid_pose_estimator"
#: The largest difference of a score, of a place in pixels, and the share of a mask's pixels.
EXACT = {"score": 0.01, "place": 0.1, "mask": 0.0002}
ROUGH = {"score": 0.03, "place": 2.0, "mask": 0.01}


@pytest.fixture(autouse=True)
def _any_speed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """These tests are about answers, and not about which form is fastest here."""
    monkeypatch.setattr(check, "SLACK", 1e9)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # two that wait for each other are slow on a busy machine
    yield
    torch.set_num_threads(threads)


def frame_of(model: str, folder: Path, **wanted: Any) -> dict[str, Any]:
    """The init frame of a model of the example, in another form."""
    config = load_catalog(EXAMPLE / "models.yaml").get(model)
    optimize = {"backend": "eager", "precision": "float", **wanted}
    optimize["calibrate"] = str(EXAMPLE / "drawings")
    return {
        **config.init_frame(EXAMPLE, "cpu"), "max_batch_size": 4, "optimize": optimize,
        "optimize_cache": str(folder),
    }  # fmt: skip


def loaded(frame: dict[str, Any]) -> BatchExecutor:
    handler, context = handler_of(frame), context_of(frame, Context)
    handler.initialize(context)
    return BatchExecutor(handler, context)


def answers(executor: BatchExecutor, size: int) -> list[Any]:
    """The results for all drawings, in batches."""
    inputs = [executor.decode(one.stem, one.read_bytes(), "image/jpeg") for one in DRAWINGS]
    found: list[Any] = []
    for start in range(0, len(inputs), size):
        chunk = inputs[start : start + size]
        batch = SubBatch(chunk, StageTimes(), range(len(chunk)))
        executor.verbs(batch)
        found += batch.results
    return found


def apart(some: list[Any], others: list[Any]) -> dict[str, float]:
    """The largest differences of the results for all drawings."""
    largest = {"score": 0.0, "place": 0.0, "mask": 0.0}
    for one, other in zip(some, others, strict=True):
        for kind, difference in differences(one, other):
            largest[kind] = max(largest[kind], difference)
    return largest


def differences(some: list[Any], others: list[Any]) -> Iterator[tuple[str, float]]:
    """The differences of two results: of figures with keypoints, or of things with boxes."""
    for one, other in zip(some, others, strict=True):
        assert one.keys() == other.keys()
        assert one.get("label") == other.get("label")
        yield "score", abs(one["score"] - other["score"])
        for name in ("bbox", "view"):
            for pair in zip(one.get(name, ()), other.get(name, ()), strict=True):
                yield "place", abs(pair[0] - pair[1])
        for joint, same in zip(one.get("keypoints", ()), other.get("keypoints", ()), strict=True):
            yield "place", math.dist(joint[:2], same[:2])
            yield "score", abs(joint[2] - same[2])
        if "mask" in one:
            masks = [np.asarray(opened(thing["mask"])) > 127 for thing in (one, other)]
            yield "mask", float(np.mean(masks[0] != masks[1]))


def within(found: dict[str, float], limits: dict[str, float]) -> bool:
    return all(found[kind] <= limit + 1e-9 for kind, limit in limits.items())


def never_runs(executor: BatchExecutor) -> None:
    """Let the modules themselves raise, so that an answer is that of the other form."""

    def refuse(*_: Any) -> None:
        raise AssertionError("the module itself runs")

    for exportable in exportables_of(executor):
        exportable.module.register_forward_pre_hook(refuse)


def opened(part: dict[str, str]) -> Image.Image:
    """The image of a part of a result."""
    return Image.open(io.BytesIO(base64.b64decode(part["base64"])))


@pytest.mark.parametrize(
    ("backend", "precision", "limits"),
    [
        ("eager", "bfloat16", ROUGH),
        ("openvino", "float", EXACT),
        ("eager", "half", ROUGH),
        ("openvino", "bfloat16", ROUGH),
        ("onnxruntime", "float", EXACT),
        ("torchscript", "float", EXACT),
        ("aot", "float", EXACT),
    ],
)
@pytest.mark.parametrize("model", [DETECTOR, POSE])
def test_a_form_of_the_drawings_models_gives_their_answers(
    model: str, backend: str, precision: str, limits: dict[str, float], tmp_path: Path
) -> None:
    frame = frame_of(model, tmp_path, backend=backend, precision=precision)
    executor = loaded(frame)
    eager = answers(executor, 4)
    assert all(eager)
    found = install_variant(executor, frame)
    assert found is not None
    assert (found.problem, found.used) == ("", True)
    builds = [path for path in tmp_path.iterdir() if (path / "form.json").exists()]
    assert len(builds) == (2 if model == DETECTOR else 1)
    never_runs(executor)
    for size in (1, 3, 4):
        found_apart = apart(eager, answers(executor, size))
        assert within(found_apart, limits), found_apart
    # Another process finds both builds, and the same verdict.
    again = install_variant(loaded(frame), frame)
    assert again is not None
    assert (again.build_s, again.used, again.verdict) == (0, True, found.verdict)


def test_a_form_that_is_wrong_for_one_module_replaces_none(tmp_path: Path) -> None:
    frame = frame_of(DETECTOR, tmp_path, precision="bfloat16", max_error=0.01)
    executor = loaded(frame)
    eager = answers(executor, 4)
    found = install_variant(executor, frame)
    assert found is not None
    reason = "eager; eager bfloat16 is refused: Proposals: its outputs"
    assert describe(found).startswith(reason)
    # A table's times are kept for all modules, and each keeps its own reason.
    found.keep(found.verdict)
    again = install_variant(loaded(frame), frame)
    assert again is not None
    assert again.verdict.wrong == found.verdict.wrong
    assert set(apart(eager, answers(executor, 4)).values()) == {0}


def test_an_input_for_which_a_stage_does_not_run_is_no_sample_of_it(tmp_path: Path) -> None:
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    Image.new("RGB", (300, 400), "white").save(inputs / "0.png")
    shutil.copy(DRAWINGS[0], inputs / "1.jpg")
    frame = frame_of(DETECTOR, tmp_path, precision="bfloat16")
    frame["optimize"]["calibrate"] = str(inputs)
    found = install_variant(loaded(frame), frame)
    assert found is not None
    assert (found.problem, found.used) == ("", True)


def test_a_module_that_serves_one_input_at_a_time_has_the_size_of_its_example(
    tmp_path: Path,
) -> None:
    frame = frame_of(DETECTOR, tmp_path, backend="openvino") | {"max_batch_size": 1}
    executor = loaded(frame)
    handler: Any = executor.handler
    second = handler.stages[1]
    eager = answers(executor, 1)
    found = install_variant(executor, frame)
    assert found is not None
    assert found.used
    # Two objects on one drawing: the module itself runs.
    views = torch.rand(2, 3, 96, 96)
    with torch.inference_mode():
        assert torch.equal(handler.stages[1](views)[0], second(views)[0])
    calls: list[int] = []
    second.register_forward_pre_hook(lambda _, args: calls.append(len(args[0])))
    assert within(apart(eager, answers(executor, 1)), EXACT)
    assert 1 not in calls
