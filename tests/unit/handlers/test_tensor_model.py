"""The handler of programs: its inputs, its batches, and each kind of program."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from handlers.common.tensor_programs import load_program, onnx_session
from handlers.tensor_model import TensorModel, read_item
from headrace.config.model.options import TensorSpec
from headrace.errors import ConfigError, HandlerError, InputError
from headrace.handler import Context
from tests.harness.programs import (
    TENSORS,
    Scaled,
    Summed,
    save_exported,
    save_onnx,
    save_script,
)

ONE = [TensorSpec(name="x", dtype="float32", shape=["batch", 3])]
INT = [TensorSpec(name="x", dtype="uint8", shape=["batch", 2])]
OPEN = [TensorSpec(name="x", dtype="float32", shape=[-1, "length"])]
TWO = [
    TensorSpec(name="ids", dtype="int64", shape=["batch", "length"]),
    TensorSpec(name="mask", dtype="bool", shape=["batch", "length"]),
]


def packed(array: Any, **more: Any) -> dict[str, Any]:
    return {"base64": base64.b64encode(np.asarray(array).tobytes()).decode(), **more}


def f32(values: list[float]) -> Any:
    return np.array(values, np.float32)


def f64(values: list[float]) -> Any:
    return np.array(values, np.float64)


def endless() -> bytes:
    """The header of an .npy file of forty terabytes."""
    file = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (10**13,)}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def model(path: Path, tensors: dict[str, Any] | None = None, **more: Any) -> TensorModel:
    handler = TensorModel()
    options = more.pop("options", {})
    context = Context(
        "m", "1", "cpu", path.parent, weights=path, tensors=tensors or {}, options=options, **more
    )
    handler.initialize(context)
    return handler


def run(handler: TensorModel, *inputs: Any) -> list[Any]:
    items = handler.preprocess(list(inputs))
    assert not any(isinstance(item, Exception) for item in items), items
    return json.loads(msgspec.json.encode(handler.postprocess(handler.inference(items))))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("value", "specs", "expected"),
    [
        ([1, 2.5, 3], ONE, [1, 2.5, 3]),
        ({"x": [1, 2, 3]}, ONE, [1, 2, 3]),
        (packed(f32([1, 2, 3])), ONE, [1, 2, 3]),
        ({"x": packed(f32([1, 2, 3]))}, ONE, [1, 2, 3]),
        (f32([1, 2, 3]).tobytes(), ONE, [1, 2, 3]),
        (npy(f32([1, 2, 3])), ONE, [1, 2, 3]),
        (npy(np.array([1, 2, 3], ">f4")), ONE, [1, 2, 3]),
        (packed(f32([1, 2]), shape=[2]), OPEN, [1, 2]),
        ([], OPEN, []),
        ([0, 255], INT, [0, 255]),
    ],
)
def test_an_input_is_lists_or_bytes(
    value: Any, specs: list[TensorSpec], expected: list[float]
) -> None:
    (array,) = read_item(value, specs)
    assert array.dtype == specs[0].dtype
    assert array.dtype.isnative
    assert array.tolist() == expected


@pytest.mark.parametrize(
    ("value", "specs", "problem"),
    [
        ([1, 2], ONE, "expected the shape [3] (without the batch), got [2]"),
        ([[1, 2, 3]], ONE, "got [1, 3]"),
        (7, ONE, "got []"),
        ("text", ONE, "expected float32, got text"),
        (None, ONE, "expected float32, got no list of numbers"),
        ([1, None, 3], ONE, "null or mixed values"),
        ([1, "2", 3], ONE, "got text"),
        ([[1], [2, 3]], ONE, "different lengths"),
        ([1e300, 0, 0], ONE, "out of the range of float32"),
        ([10**400, 0, 0], ONE, "x: "),
        ([True, False, True], ONE, "got booleans"),
        ([0.5, 1], INT, "expected uint8, got fractions"),
        ([0, 256], INT, "out of the range of uint8"),
        ([-1, 0], INT, "out of the range of uint8"),
        (b"123", ONE, "expected 12 bytes of float32 [3], got 3"),
        (packed(f64([1, 2, 3])), ONE, "expected 12 bytes"),
        (packed(f32([1, 2])), OPEN, "raw bytes need `shape`"),
        (packed(f32([1, 2]), shape=[-2, -1]), OPEN, "a list of sizes"),
        (packed(f32([1, 2]), shape="2"), OPEN, "a list of sizes"),
        (packed(f32([1, 2]), shape=[10**30]), OPEN, "expected 4"),
        ({"base64": "?"}, ONE, "valid base64"),
        ({"base64": 7}, ONE, "valid base64"),
        ({"x": {"shape": [3]}}, ONE, "valid base64"),
        ({"y": [1, 2, 3]}, ONE, "no x; it takes x"),
        ({"x": [1, 2, 3], "y": 1}, ONE, "an unknown tensor 'y'"),
        ([1, 2], TWO, "expected an object with the tensors ids, mask"),
        ({"ids": [1]}, TWO, "no mask"),
        ({"ids": [1, 2], "mask": [True]}, TWO, "its dimension length is 1, but 2 in ids"),
        ({"ids": [1], "mask": [1]}, TWO, "mask: expected bool, got integers"),
        (npy(f64([1, 2, 3])), ONE, "got an .npy file of float64"),
        (npy(f32([1, 2, 3]))[:-1], ONE, "is not complete"),
        (npy(np.array([{}], object)), ONE, "got an .npy file of object"),
        (b"\x93NUMPY\x01\x00\xff\xff{", ONE, "is broken"),
        (endless(), ONE, "is not complete"),
    ],
)
def test_a_wrong_input_is_named(value: Any, specs: list[TensorSpec], problem: str) -> None:
    with pytest.raises(InputError) as caught:
        read_item(value, specs)
    assert problem in caught.value.message


def test_an_array_in_fortran_order_keeps_its_places() -> None:
    spec = [TensorSpec(name="x", dtype="float32", shape=["batch", 2, 3])]
    array = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert read_item(npy(array), spec)[0].tolist() == array.tolist()


def test_a_torchscript_program(tmp_path: Path) -> None:
    handler = model(save_script(tmp_path / "m.pt", Scaled()), TENSORS)
    results = run(handler, {"x": [1, 2, 3], "scale": 2}, {"scale": 0, "x": packed(f32([1, 2, 3]))})
    assert results == [{"y": [4, 6, 8], "total": 18}, {"y": [0, 0, 0], "total": 0}]
    (zeros,) = run(handler, handler.example_input())
    assert zeros == {"y": [0, 0, 0], "total": 0}


def test_an_exported_program_names_its_tensors(tmp_path: Path) -> None:
    handler = model(save_exported(tmp_path / "m.pt2", most=4))
    assert [spec.name for spec in handler.tensors.inputs] == ["x", "scale"]
    inputs = [{"x": [n, n, n], "scale": 1} for n in range(10)]
    # Ten rows run as batches of at most four.
    assert [row["total"] for row in run(handler, *inputs)] == [3 * (n + 1) for n in range(10)]
    assert run(handler, inputs[0])[0]["y"] == [1, 1, 1]


def test_the_threads_of_an_onnx_program_do_not_spin(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    session = onnx_session(save_onnx(tmp_path / "m.onnx", "batch"), "cpu", 2)
    entry = session.get_session_options().get_session_config_entry
    assert entry("session.intra_op.allow_spinning") == "0"


@pytest.mark.parametrize("batch", ["batch", 4])
def test_an_onnx_program(batch: str | int, tmp_path: Path) -> None:
    """Also with a fixed batch, which is filled up and split."""
    pytest.importorskip("onnxruntime")
    handler = model(save_onnx(tmp_path / "m.onnx", batch))
    assert handler.tensors.inputs[0].dtype == "float32"
    assert run(handler, *([n, 1] for n in range(6))) == [{"y": [2 * n, 2]} for n in range(6)]


def test_rows_of_different_shapes_run_apart_and_return_in_order(tmp_path: Path) -> None:
    tensors = {
        "inputs": [{"name": "x", "dtype": "float32", "shape": ["batch", -1]}],
        "outputs": [{"name": "sum", "dtype": "float32", "shape": ["batch"]}],
    }
    handler = model(save_script(tmp_path / "m.pt", Summed()), tensors)
    assert handler.example_input() is None
    assert run(handler, [1], [1, 2], [3], [], [4, 5]) == [
        {"sum": 1}, {"sum": 3}, {"sum": 3}, {"sum": 0}, {"sum": 9},
    ]  # fmt: skip


def test_results_as_base64(tmp_path: Path) -> None:
    path = save_script(tmp_path / "m.pt", Scaled())
    handler = model(path, TENSORS, options={"results": "base64"})
    (found,) = run(handler, {"x": [1, 2, 3], "scale": 1})
    assert (found["y"]["dtype"], found["y"]["shape"]) == ("float32", [3])
    body = base64.b64decode(found["y"]["base64"])
    assert np.frombuffer(body, "<f4").tolist() == [2, 3, 4]
    assert found["total"]["shape"] == []


def declared(**changes: Any) -> dict[str, Any]:
    return {**TENSORS, **changes}


def test_a_program_that_cannot_be_used_does_not_load(tmp_path: Path) -> None:
    script = save_script(tmp_path / "m.pt", Scaled())
    exported = save_exported(tmp_path / "m.pt2")
    torch.save(Scaled().state_dict(), tmp_path / "state.pt")
    (tmp_path / "text.pt2").write_text("text")
    other = [{"name": "x", "dtype": "int64", "shape": ["batch", 3]}, TENSORS["inputs"][1]]
    cases: list[tuple[Path, dict[str, Any], str]] = [
        (tmp_path / "gone.pt", TENSORS, "there is no file"),
        (script, {}, "does not name its tensors"),
        (tmp_path / "state.pt", TENSORS, "is no TorchScript program; it may be a state dict"),
        (tmp_path / "text.pt2", {}, "cannot be loaded"),
        (exported, declared(inputs=TENSORS["inputs"][:1]), "declares 1, but the file has 2"),
        (exported, declared(inputs=other), "x is int64"),
    ]
    for path, tensors, problem in cases:
        with pytest.raises(ConfigError) as caught:
            model(path, tensors)
        assert problem in caught.value.message
    with pytest.raises(ConfigError, match="needs a program"):
        TensorModel().initialize(Context("m", "1", "cpu", tmp_path))


def test_wrong_declarations_of_a_script_are_errors_of_the_batch(tmp_path: Path) -> None:
    script = save_script(tmp_path / "m.pt", Scaled())
    missing = [*TENSORS["outputs"], {"name": "z", "dtype": "float32", "shape": [-1]}]
    handler = model(script, declared(outputs=missing))
    items = handler.preprocess([{"x": [1, 2, 3], "scale": 1}])
    with pytest.raises(HandlerError, match="returns no z"):
        handler.inference(items)
    one = save_script(tmp_path / "one.pt", Summed())
    handler = model(one, {"inputs": TENSORS["inputs"][:1], "outputs": TENSORS["outputs"]})
    with pytest.raises(HandlerError, match="returns 1 tensors, but 2 are declared"):
        handler.inference(handler.preprocess([[1, 2, 3]]))


def test_a_pickled_module_needs_the_operators_word(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    torch.save(Scaled(), path)
    with pytest.raises(ConfigError, match="is no TorchScript program"):
        model(path, TENSORS)
    handler = model(path, TENSORS, weights_only=False)
    assert run(handler, {"x": [1, 2, 3], "scale": 1}) == [{"y": [2, 3, 4], "total": 9}]
    torch.save({"weight": torch.ones(3)}, path)
    with pytest.raises(ConfigError, match="no module"):
        load_program(path, "cpu", weights_only=False)


def test_an_input_of_declared_tensors_has_rows(tmp_path: Path) -> None:
    declared = {"inputs": [{"name": "x"}], "outputs": []}
    path = save_exported(tmp_path / "scaled.pt2", most=4)
    handler = model(path, TENSORS, declared_tensors=declared)
    rows = [1, 0, 5]
    inputs = [
        {"x": np.full((count, 3), place, np.float32), "scale": np.ones(count, np.float32)}
        for place, count in enumerate(rows)
    ]
    results = handler.postprocess(handler.inference(handler.preprocess(inputs)))
    assert [one["y"].shape for one in results] == [(count, 3) for count in rows]
    assert [one["total"].tolist() for one in results] == [[3.0], [], [9.0] * 5]
    (example,) = handler.preprocess([handler.example_input()])
    assert [array.shape for array in example] == [(1, 3), (1,)]
    wrong = {"x": np.zeros((2, 3), np.float32), "scale": np.ones(1, np.float32)}
    for bad in (wrong, {**wrong, "x": np.zeros((1, 4), np.float32)}, {**wrong, "x": np.zeros(1)}):
        (error,) = handler.preprocess([bad])
        assert isinstance(error, InputError)
