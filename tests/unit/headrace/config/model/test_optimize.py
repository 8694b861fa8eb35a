"""The model option `optimize`: its keys, and how mistakes are told."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headrace.config.model.catalog import check_config, load_catalog
from headrace.config.model.optimize import Optimize


def written(folder: Path, optimize: str) -> Path:
    path = folder / "models.yaml"
    path.write_text(f"models:\n  m:\n    handler: digits\n    optimize: {optimize}\n")
    return path


def test_it_reaches_the_model_process_with_an_absolute_folder(tmp_path: Path) -> None:
    path = written(tmp_path, "{backend: openvino, precision: int8, calibrate: inputs}")
    frame = load_catalog(path).get("m").init_frame(tmp_path, "cpu")["optimize"]
    assert frame["calibrate"] == str(tmp_path / "inputs")
    found = msgspec.convert(frame, Optimize)
    assert (found.backend, found.precision, found.name) == ("openvino", "int8", "openvino int8")
    path = written(tmp_path, "null")
    assert load_catalog(path).get("m").init_frame(tmp_path, "cpu")["optimize"] == {}


@pytest.mark.parametrize(
    ("given", "limit"),
    [({}, 0.01), ({"precision": "half"}, 0.05), ({"precision": "int8"}, 0.2),
     ({"precision": "int8", "max_error": 0.1}, 0.1)],
)  # fmt: skip
def test_the_limit_of_the_error_depends_on_the_precision(
    given: dict[str, object], limit: float
) -> None:
    assert msgspec.convert(given, Optimize).error_limit == limit


@pytest.mark.parametrize(
    ("optimize", "told"),
    [
        ("{backen: aot}", "models.m.optimize.backen: unknown key; did you mean backend?"),
        ("{backend: fast}", "models.m.optimize.backend: "),
        ("{max_error: 2}", "models.m.optimize.max_error: "),
        ("aot", "models.m.optimize: expected a mapping"),
        ("{precision: int8}", "models.m.optimize: eager has no int8; set backend to onnxruntime"),
        ("{backend: aot, mode: max-autotune}", "models.m.optimize: mode is for the backend comp"),
    ],
)
def test_a_mistake_is_told_with_its_file_and_key(optimize: str, told: str, tmp_path: Path) -> None:
    path = written(tmp_path, optimize)
    (problem,) = check_config(path)
    assert problem.startswith(f"{path}:4: {told}")
