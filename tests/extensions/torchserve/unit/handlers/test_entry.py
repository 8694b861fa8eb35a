"""Which function or class of an archive is called, and what is said if there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import ConfigError
from tests.extensions.torchserve.harness.archives import (
    json_of,
    loaded,
    request,
    run,
    write_archive,
)

FUNCTION = """
def run(data, context):
    if data is None:
        context.model = context.manifest["model"]["modelName"]
        return None
    return [context.model for _ in data]

handle = None
"""
CLASS = """
from helper import Base

class Mine(Base):
    def initialize(self, context):
        self.word = "class"

    def handle(self, data, context):
        return [self.word] * len(data)
"""


@pytest.mark.parametrize("handler", ["service:run", "service.py:run", "deep/service.py:run"])
def test_a_function_runs_once_without_data_and_then_on_batches(
    tmp_path: Path, handler: str
) -> None:
    write_archive(tmp_path, handler, {"service.py": FUNCTION})
    outcomes = run(loaded(tmp_path, handler), [request("a"), request("b")])
    assert [json_of(one) for one in outcomes] == ["m", "m"]


@pytest.mark.parametrize("handler", ["service", "service.py", "service:handle", "service:Mine"])
def test_the_only_class_of_the_module_runs(tmp_path: Path, handler: str) -> None:
    files = {"service.py": CLASS, "helper.py": "class Base: ...\n"}
    write_archive(tmp_path, handler, files)
    assert json_of(run(loaded(tmp_path, handler), [request("a")])[0]) == "class"


def test_two_archives_have_files_of_the_same_name(tmp_path: Path) -> None:
    """Whichever module of that name was imported before."""
    for folder in ("one", "two"):
        source = f"def handle(data, context):\n    return ['{folder}' for _ in data or ()]\n"
        archive = write_archive(tmp_path / folder, "service", {"service.py": source})
        executor = loaded(archive, "service")
        assert json_of(run(executor, [request("a")])[0]) == folder


def test_a_file_may_have_the_name_of_a_package_of_the_server(tmp_path: Path) -> None:
    source = "def handle(data, context):\n    return ['own' for _ in data or ()]\n"
    executor = loaded(write_archive(tmp_path, "handlers.py", {"handlers.py": source}), "handlers")
    assert json_of(run(executor, [request("a")])[0]) == "own"


@pytest.mark.parametrize(
    ("handler", "source", "message", "hint"),
    [
        ("service", "class A: ...\nclass B: ...\n", "no function handle, and 2 classes: A, B", ""),
        ("service:go", "x = 1\n", "no function go, and 0 classes", "define a function go"),
        ("service", "class A: ...\n", "A has no method initialize", "derive it from BaseHandler"),
        ("service", "import no_such_package\n", "No module named 'no_such_package'",
         "install no_such_package where the worker runs, or name it in the archive's req"),
        ("service", "from helper import no_such_name\n", "cannot import name 'no_such_name'",
         "the traceback"),
        ("service", "1 / 0\n", "ZeroDivisionError", "the traceback"),
        ("service", "import ts.no_such_part\n", "No module named 'ts.no_such_part'",
         "does not have this part of TorchServe"),
        ("vllm_handler", "", "no vLLM handler", "vllm serve"),
        ("gone.py", "", "no handler of TorchServe has the name 'gone'", "helper.py, service.py"),
    ],
)  # fmt: skip
def test_a_failed_load_says_the_reason_itself(
    tmp_path: Path, handler: str, source: str, message: str, hint: str
) -> None:
    """TorchServe said only that there is no module `ts.torch_handler.service`."""
    write_archive(tmp_path, handler, {"service.py": source, "helper.py": "x = 1\n"})
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, handler)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert "ts.torch_handler.service" not in caught.value.message


def test_a_name_of_torchserve_is_its_own_handler(tmp_path: Path) -> None:
    write_archive(tmp_path, "densenet_handler", {})
    with pytest.raises(RuntimeError, match="No model weights could be loaded: it has no file"):
        loaded(tmp_path, "densenet_handler")


def test_a_manifest_is_not_needed(tmp_path: Path) -> None:
    source = "def handle(data, context):\n    return [context.manifest for _ in data or ()]\n"
    (tmp_path / "service.py").write_text(source)
    found = json_of(run(loaded(tmp_path, "service:handle"), [request("a")])[0])
    assert found["model"] == {
        "modelName": "m", "modelVersion": "1.0", "handler": "service:handle",
    }  # fmt: skip


def test_a_configuration_that_is_no_yaml_is_said(tmp_path: Path) -> None:
    source = "def handle(data, context):\n    return None\n"
    write_archive(tmp_path, "service", {"service.py": source, "c.yaml": "{"}, configFile="c.yaml")
    with pytest.raises(ConfigError, match=r"c\.yaml is not YAML") as caught:
        loaded(tmp_path, "service")
    assert "\n" not in caught.value.message
