"""`examples/torchserve_handler.py` on archives of the shapes that TorchServe's users have."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.torchserve_handler import TorchServe
from headrace import Context, Response
from headrace.errors import ConfigError, HandlerError

CLASS = """
import json, os

from helper import Base as Other

class Mine(Other):
    def initialize(self, context):
        self.context = context
        context.cache = {"seen": 0}
        folder = context.system_properties.get("model_dir")
        assert context.system_properties.get("gpu_id") is None
        assert os.path.isfile("names.json")
        with open(os.path.join(folder, "names.json")) as file:
            self.names = json.load(file)
        self.factor = context.model_yaml_config["handler"]["factor"]

    def handle(self, data, context):
        context.metrics.add_counter("seen", len(data))
        context.cache["seen"] += len(data)
        for n, row in enumerate(data):
            if row["body"] == "bad":
                context.set_response_status(422, "Unprocessable", n)
            if row["body"] == "page":
                context.set_response_content_type(n, "text/html")
        return [self.one(row["body"], n) for n, row in enumerate(data)]

    def one(self, body, n):
        if isinstance(body, bytearray):
            of = self.context.get_request_header
            return {"bytes": len(body), "type": of(n, "Content-Type"), "tenant": of(n, "X-Tenant")}
        if isinstance(body, dict):
            return {"name": self.names[str(body["n"])], "x": body["n"] * self.factor}
        return body
"""
FUNCTION = """
def run(data, context):
    if data is None:
        context.model = context.manifest["model"]["modelName"]
        return None
    return [context.model + ":" + row["body"] for row in data]
"""


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An archive changes folder, path and modules of its process, which here is the tests'."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        if name.partition("_")[0] in ("service", "helper"):
            del sys.modules[name]


def served(tmp_path: Path, handler: str, source: str, **more: str) -> TorchServe:
    folder = tmp_path / "unpacked"
    (folder / "MAR-INF").mkdir(parents=True)
    model = {"modelName": "m", "modelVersion": "1.0", "handler": handler}
    if "model-config.yaml" in more:
        model["configFile"] = "model-config.yaml"
    (folder / "MAR-INF/MANIFEST.json").write_text(json.dumps({"model": model}))
    for name, text in {"service.py": source, **more}.items():
        (folder / name).write_text(text)
    found = TorchServe()
    found.initialize(Context("m", "1.0", "cpu", tmp_path, options={"archive": "unpacked"}))
    return found


def run(handler: TorchServe, inputs: list[Any], content_types: list[str]) -> list[Any]:
    handler.context.request_ids = [f"job-{n}" for n in range(len(inputs))]
    handler.context.content_types = content_types
    handler.context.headers = [{"x-tenant": "blue"} for _ in inputs]
    return handler.postprocess(handler.inference(handler.preprocess(inputs)))


def test_a_class_with_its_files_and_its_configuration(tmp_path: Path) -> None:
    handler = served(
        tmp_path, "service.py", CLASS,
        **{
            "names.json": '{"2": "two"}', "helper.py": "class Base: ...",
            "model-config.yaml": "minWorkers: 1\nhandler:\n  factor: 10\n",
        },
    )  # fmt: skip
    results = run(handler, [{"n": 2}, b"\x89PNG", "text", "page", "bad"], ["a/b"] * 5)
    assert results[:3] == [
        {"name": "two", "x": 20},
        {"bytes": 4, "type": "a/b", "tenant": "blue"},
        "text",
    ]
    assert results[3] == Response(b"page", "text/html")
    assert isinstance(results[4], HandlerError)
    assert results[4].message == "422 Unprocessable: bad"
    assert run(handler, ["fine"], ["text/plain"]) == ["fine"]
    assert handler.ts.cache == {"seen": 6}


def test_a_function_of_the_module(tmp_path: Path) -> None:
    handler = served(tmp_path, "service.py:run", FUNCTION)
    assert run(handler, ["a", "b"], ["text/plain"] * 2) == ["m:a", "m:b"]


def test_two_archives_have_files_of_the_same_name(tmp_path: Path) -> None:
    """Whichever module of that name was imported before."""
    for folder in ("one", "two"):
        source = f"def handle(data, context):\n    return ['{folder}' for _ in data or ()]\n"
        handler = served(tmp_path / folder, "service.py", source)
        assert run(handler, ["a"], ["text/plain"]) == [folder]


@pytest.mark.parametrize("result", ["None", "'text'", "[1]"])
def test_what_is_no_list_of_the_batch_is_an_error(tmp_path: Path, result: str) -> None:
    handler = served(tmp_path, "service", f"def handle(data, context):\n    return {result}\n")
    with pytest.raises(HandlerError, match="a list of 2"):
        run(handler, ["a", "b"], ["text/plain"] * 2)


@pytest.mark.parametrize(
    ("source", "error", "said"),
    [
        ("class A: ...\nclass B: ...\n", ConfigError, "has 2 classes and no handle"),
        ("import no_such_package\n", ModuleNotFoundError, "no_such_package"),
    ],
)
def test_what_cannot_be_served_is_said(
    tmp_path: Path, source: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        served(tmp_path, "service", source)


def test_a_folder_that_is_no_archive_is_said(tmp_path: Path) -> None:
    context = Context("m", "1.0", "cpu", tmp_path, options={"archive": "nothing"})
    with pytest.raises(ConfigError, match=r"MANIFEST\.json cannot be read"):
        TorchServe().initialize(context)
