"""Workflow archives, as torch-workflow-archiver packs them."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from extensions.torchserve.config.workflow import Workflow, read_workflow
from headrace.cli.develop.archive import check, pipeline
from headrace.config.model.catalog import load_catalog
from headrace.config.settings import Settings
from headrace.errors import ConfigError
from headrace.models.folder import read_file

FUNCTIONS = """
def clean(data, context):
    return data and [row.get("body") for row in data]

def join(data, context):
    return data and [{"found": sorted(row)} for row in data]
"""
SPEC = """
models:
    min-workers: 1
    max-workers: 2
    batch-size: 4
    max-batch-delay: 30
    retry-attempts: 3
    timeout-ms: 5000
    cats:
        url: cats.mar
        batch-size: 8
        max-workers: 1
    dogs:
        url: https://models.example/dogs.mar
dag:
    clean: [cats, dogs]
    cats: [join]
    dogs: [join]
"""


def folder_of(folder: Path, spec: str = SPEC, **manifest: Any) -> Path:
    members = {"workflowName": "pets", "specFile": "flow.yaml", "handler": "steps.py", **manifest}
    (folder / "WAR-INF").mkdir(parents=True)
    (folder / "WAR-INF" / "MANIFEST.json").write_text(json.dumps({"workflow": members}))
    (folder / "flow.yaml").write_text(spec)
    (folder / "steps.py").write_text(FUNCTIONS)
    return folder


def read(folder: Path, spec: str = SPEC, **manifest: Any) -> Workflow:
    return read_workflow(folder_of(folder / "w", spec, **manifest), "pets.war")


def refusal(folder: Path, spec: str = SPEC, **manifest: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read(folder, spec, **manifest)
    return caught.value


def war(folder: Path, spec: str = SPEC) -> Path:
    files = folder_of(folder / "files", spec)
    path = folder / "pets.war"
    with zipfile.ZipFile(path, "w") as archive:
        for file in files.rglob("*"):
            if file.is_file():
                archive.write(file, file.relative_to(files))
    return path


def test_nodes_become_models_and_stages(tmp_path: Path) -> None:
    assert yaml.safe_load(read(tmp_path).text("pets")) == {
        "models": {
            "pets__clean": {"source": "pets", "handler": "torchserve:steps.py:clean"},
            "pets__cats": {
                "source": "cats.mar", "replicas": 1, "max_batch_size": 8, "max_batch_delay_ms": 30,
                "max_retries": 3, "timeout_s": 5.0, "options": {"workflow_from": ["clean"]},
            },
            "pets__dogs": {
                "source": "https://models.example/dogs.mar", "min_replicas": 1, "max_replicas": 2,
                "max_batch_size": 4, "max_batch_delay_ms": 30, "max_retries": 3, "timeout_s": 5.0,
                "options": {"workflow_from": ["clean"]},
            },
            "pets__join": {
                "source": "pets", "handler": "torchserve:steps.py:join",
                "options": {"workflow_from": ["cats", "dogs"]},
            },
        },
        "pipelines": {"pets": {"stages": {
            "clean": {"model": "pets__clean", "from": "input"},
            "cats": {"model": "pets__cats", "from": "clean"},
            "dogs": {"model": "pets__dogs", "from": "clean"},
            "join": {"model": "pets__join", "from": ["cats", "dogs"]},
        }}},
    }  # fmt: skip


def test_a_models_file_is_written_and_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    pipeline(war(tmp_path), out, Settings(), force=False)
    assert capsys.readouterr().out == f"{out / 'models.yaml'}\n"
    catalog = load_catalog(out / "models.yaml")
    (found,) = catalog.pipelines.values()
    assert [stage.name for stage in found.stages] == ["clean", "cats", "dogs", "join"]
    assert found.result == ("join",)
    assert (out / "pets" / "steps.py").read_text() == FUNCTIONS
    with pytest.raises(ConfigError, match="exists"):
        pipeline(tmp_path / "pets.war", out, Settings(), force=False)
    pipeline(tmp_path / "pets.war", out, Settings(), force=True)


def test_the_pipeline_is_printed_and_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = war(tmp_path)
    pipeline(path, None, Settings(), force=False)
    printed = capsys.readouterr()
    assert set(yaml.safe_load(printed.out)) == {"models", "pipelines"}
    assert "-o FOLDER writes this file too" in printed.err
    assert check(path, Settings(), as_json=False) == 0
    assert "node:         join: a function of steps.py" in capsys.readouterr().out
    assert check(path, Settings(), as_json=True) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"models", "pipelines"}


def test_a_workflow_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a workflow is a pipeline and no model") as caught:
        read_file(war(tmp_path), "pets.war")
    assert "headrace archive --pipeline pets.war" in caught.value.hint


MODEL = "models: {cats: {url: cats.mar}}\n"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (MODEL + "dag: {cats: [dgos]}", "the node 'dgos' is neither a model of `models` nor a "
         "function of steps.py; known: cats, clean, join"),
        (MODEL + "dag: {cats: [joinn]}", "the node 'joinn' is neither a model of `models` nor a "
         "function of steps.py; did you mean join?"),
        (MODEL + "dag: {clean: [cats], cats: [clean]}", "the node 'clean': the stages form a "
         "cycle: clean -> cats -> clean; remove a source"),
        (MODEL + "dag: {cats: [cats]}", "the node 'cats': the stages form a cycle"),
        (MODEL + "dag: {input: [cats]}", "the node 'input' cannot be the name of a stage"),
        (MODEL + "dag: {a.b: [cats]}", "the node 'a.b' cannot be the name of a stage"),
        (MODEL + "dag: {cats: 7}", "the node 'cats': expected a list of the next nodes"),
        (MODEL, "dag: expected a mapping"),
        ("models: {cats: {batch-size: 1}}\ndag: {cats: []}", "cats: the key `url`"),
        ("models: {cats: {url: a.mar, batch-size: 0}}\ndag: {cats: []}",
         "cats: batch-size: expected a number from 1, got 0"),
        ("models: {cats: {url: a.mar}, batches: 3}\ndag: {cats: []}",
         "models: batches: unknown key; known: url, "),
        ("models: 3\ndag: {clean: []}", "models: expected a mapping of models"),
        ("[1]", "expected a mapping with `models` and `dag`"),
        ("models: [", "it is no YAML"),
        ("a: &a [1]\nb: *a", "aliases (*) are not accepted"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_their_node(tmp_path: Path, spec: str, expected: str) -> None:
    error = refusal(tmp_path, spec)
    assert error.message.startswith("pets.war: flow.yaml: ")
    assert expected in error.message


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    error = refusal(tmp_path, "models: {cats: {}}\ndag: {cats: [one, two]}")
    assert len(error.message.splitlines()) == 3


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        ({"specFile": "../flow.yaml"}, "there is no file '../flow.yaml'"),
        ({"handler": "gone.py"}, "there is no file 'gone.py'"),
        ({"workflowName": "a b"}, "'a b' cannot be the name of a pipeline"),
        ({"workflowName": 3}, "it cannot be read: Expected `str`, got `int`"),
        ({"specFile": ""}, "there is no file ''"),
    ],
)
def test_wrong_manifests(tmp_path: Path, manifest: dict[str, Any], expected: str) -> None:
    assert expected in refusal(tmp_path, **manifest).message


def test_long_names_are_refused(tmp_path: Path) -> None:
    error = refusal(tmp_path, workflowName="p" * 62)
    assert "is too long for the name of a model" in error.message


def test_a_file_that_is_no_workflow(tmp_path: Path) -> None:
    (tmp_path / "x.war").write_bytes(b"no zip")
    with pytest.raises(ConfigError, match="is not a zip file"):
        check(tmp_path / "x.war", Settings(), as_json=False)
    with pytest.raises(ConfigError, match="there is no such file"):
        check(tmp_path / "gone.war", Settings(), as_json=False)


def test_a_workflow_without_functions_needs_no_handler(tmp_path: Path) -> None:
    found = read(tmp_path, MODEL + "dag: {cats: []}", handler=None)
    assert not found.needed_file
    assert found.document("")["pipelines"]["pets"]["stages"] == {
        "cats": {"model": "pets__cats", "from": "input"}
    }
