"""What a folder says of its model: model.yaml, TorchServe's manifest, a lone program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.models.extension import ModelFolder
from headrace.models.folder import read_file, read_folder
from tests.harness.archives import HANDLER, MODEL, write_folder

TORCHSERVE = """\
from ts.torch_handler.base_handler import BaseHandler

class Theirs(BaseHandler):
    pass
"""


def read(folder: Path, files: dict[str, str], given: tuple[str, ...] = ()) -> ModelFolder:
    return read_folder(write_folder(folder, files), "here", given)


def refusal(folder: Path, files: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        read(folder, files)
    return caught.value.message


def archived(folder: Path, files: dict[str, str] | None = None, **model: Any) -> ModelFolder:
    manifest = json.dumps({"runtime": "python", "model": model})
    return read(folder, {"MAR-INF/MANIFEST.json": manifest, **(files or {})})


def test_model_yaml_has_the_keys_of_a_model(tmp_path: Path) -> None:
    found = read(tmp_path, {**MODEL, "requirements.txt": ""})
    assert (found.name, found.kind, found.folder) == ("twice", "model.yaml", tmp_path)
    assert found.options == {"version": "3", "handler": "handler.py"}
    assert found.requirements == tmp_path / "requirements.txt"


def test_the_only_folder_inside_is_the_model(tmp_path: Path) -> None:
    found = read(tmp_path, {f"twice/{name}": text for name, text in MODEL.items()})
    assert found.folder == tmp_path / "twice"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("handlr: a.py", "handlr: unknown key; did you mean handler?"),
        ("handler: echo\nmax_batch_size: 0", "expected int >= 1"),
        ("handler: echo\nsource: other.zip", "source: only the models file may set it"),
        ("handler: echo\nweights_only: false", "weights_only: only the models file may set it"),
        (f"handler: echo\nsha256: {'0' * 64}", "sha256: only the models file may set it"),
        ("handler: ../a.py", "leads out of the model's folder"),
        ("handler: /a.py", "leads out of the model's folder"),
        ("handler: echo\nweights: a/../../w.pt", "leads out of the model's folder"),
        ("handler: echo\nname: ../up", "expected str matching regex"),
        ("handler: echo\noptions: &a {x: 1}\nweight: 1\nname: *a", "aliases (*a) are not accepted"),
        ("handler: echo\nallowed_batch_sizes: [1, 1]", "a size is given twice"),
        ("handler: echo\ninputs: {schema: ../a.json}", "inputs.schema: write the schema in this"),
        ("handler: echo\ninputs: {fields: {a: x}}", "inputs.fields.a: there is no type 'x'"),
        ("", "the model file is empty"),
        ("[", "not valid YAML"),
        (f"handler: echo\noptions: {{a: {'x' * 300_000}}}", "it is larger than"),
    ],
)
def test_a_wrong_model_yaml_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    assert problem in refusal(tmp_path, {"model.yaml": text})


def test_a_manifest_gives_name_version_handler_and_weights(tmp_path: Path) -> None:
    found = archived(
        tmp_path,
        {"handler.py": HANDLER, "model.pt": "", "needs.txt": ""},
        modelName="old", modelVersion="2.5", handler="handler.py:Twice",
        serializedFile="model.pt", requirementsFile="needs.txt",
    )  # fmt: skip
    assert (found.name, found.kind) == ("old", "MAR-INF/MANIFEST.json")
    assert found.options == {"version": "2.5", "weights": "model.pt", "handler": "handler.py:Twice"}
    assert found.requirements == tmp_path / "needs.txt"


@pytest.mark.parametrize(
    ("handler", "files"),
    [
        ("image_classifier", {}),
        ("theirs.py", {"theirs.py": TORCHSERVE}),
        ("theirs", {"theirs.py": TORCHSERVE}),
        ("plain:handle", {"plain.py": "def handle(data, context): ...\n"}),
        ("both.py", {"both.py": "import headrace\n" + TORCHSERVE}),
        ("gone.py", {}),
    ],
)
def test_a_handler_of_torchserve_is_marked(
    handler: str, files: dict[str, str], tmp_path: Path
) -> None:
    found = archived(tmp_path, files, modelName="old", handler=handler)
    assert found.options["handler"] == f"torchserve:{handler}"


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ({"handler": "../up.py"}, "handler: it leads out"),
        ({"serializedFile": "/etc/passwd"}, "serializedFile: it leads out"),
        ({"requirementsFile": "../../requirements.txt"}, "requirementsFile: it leads out"),
        ({"modelVersion": "1\n2"}, "modelVersion: it has a control character"),
        ({"modelVersion": "a b"}, "modelVersion: 'a b' is no version"),
        ({"serializedFile": "gone.pt"}, "there is no file gone.pt"),
        ({"handler": 7}, "handler: expected text, got int"),
        ({}, "names no handler, and the folder has no program"),
    ],
)
def test_a_wrong_manifest_is_refused(model: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="here") as caught:
        archived(tmp_path, **model)
    assert problem in caught.value.message


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model": []}', "[" * 100_000, "\xff"])
def test_a_manifest_that_cannot_be_read_is_refused(text: str, tmp_path: Path) -> None:
    assert "MANIFEST.json" in refusal(tmp_path, {"MAR-INF/MANIFEST.json": text})


def test_the_config_file_of_a_manifest_gives_options(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = "batchSize: 4\nmaxBatchDelay: soon\nminWorkers: 2\nmaxWorkers: 2\n"
    files = {"h.py": HANDLER, "c.yaml": text}
    found = archived(tmp_path, files, modelName="m", handler="h", configFile="c.yaml")
    assert found.options["max_batch_size"] == 4
    assert found.options["total_replicas"] == 2
    assert found.settings == {"batchSize": 4, "minWorkers": 2, "maxWorkers": 2}
    assert "c.yaml: maxBatchDelay: expected an integer of 0 or more, got 'soon'" in caplog.text
    with pytest.raises(ConfigError, match="configFile: it leads out of the model's folder"):
        archived(tmp_path, files, modelName="m", handler="h", configFile="../c.yaml")


def test_a_manifest_with_a_program_and_no_handler_is_the_program(tmp_path: Path) -> None:
    found = archived(tmp_path, {"m.pt": "", "other.pt": ""}, modelName="m", serializedFile="m.pt")
    assert found.options == {"weights": "m.pt", "handler": "tensor_model"}


def test_a_lone_program_is_a_model(tmp_path: Path) -> None:
    found = read(tmp_path, {"net.onnx": "", "README.md": ""})
    assert found.options == {"handler": "tensor_model", "weights": "net.onnx"}
    assert found.kind == "net.onnx"
    assert "2 programs (net.onnx, net.pt2)" in refusal(tmp_path, {"net.pt2": ""})
    given = read(tmp_path, {}, ("handler",))
    assert "handler" not in given.options


def test_a_folder_of_other_things_is_no_model(tmp_path: Path) -> None:
    message = refusal(tmp_path, {"handler.py": HANDLER})
    assert message == "here: it has no model.yaml and no MAR-INF/MANIFEST.json, and no program"


def test_a_file_is_a_model_if_it_is_a_program(tmp_path: Path) -> None:
    assert read_file(tmp_path / "a.PT2", "a").options["handler"] == "tensor_model"
    for name in ("a.safetensors", "a.bin", "a.py", "a"):
        with pytest.raises(ConfigError) as caught:
            read_file(tmp_path / name, "here")
        assert "set `handler`" in caught.value.hint
