"""The models of a start: from the model store, from a URL, and from a snapshot."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from extensions.torchserve.config.launch import Flags, merge
from extensions.torchserve.config.properties import properties_text
from extensions.torchserve.server.models import Start, StartReader, read_workflows
from headrace.config.model.catalog import load_catalog
from headrace.config.settings import Settings
from headrace.errors import ConfigError
from headrace.models.archive import Limits
from headrace.models.source import SourceReader
from tests.extensions.torchserve.harness.server import write_archive
from tests.harness.servers.file_server import FileServer, file_server


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as found:
        yield found


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "model-store"
    path.mkdir()
    return path


def read(store: Path, report: list[str] | None = None, /, **values: str) -> list[Start]:
    (store.parent / "config.properties").write_text(properties_text(values))
    launch = merge(Flags(), {}, store.parent)
    settings = Settings(model_store=store, state_dir=store.parent / "state")
    reader = SourceReader(settings, store.parent)
    return StartReader(launch, reader, settings, (report or []).append).read()


def test_a_url_is_fetched_once(server: FileServer, store: Path, tmp_path: Path) -> None:
    server.files["/a.mar"] = write_archive(tmp_path, "a").read_bytes()
    url = f"{server.url}/a.mar"
    (start,) = read(store, load_models=f"b={url}?token=1")
    assert (start.name, start.options["source"]) == ("b", "a.mar")
    assert [path.name for path in store.iterdir()] == ["a.mar"]
    report = ["first"]
    read(store, report, load_models=url)
    assert report[1:] == [f"a.mar is in the model store, so {url} is not fetched"]
    assert server.sent == 1


def test_a_url_that_cannot_be_fetched_leaves_nothing(server: FileServer, store: Path) -> None:
    everything = "http://.*|file://.*"
    for models, allowed, problem in (
        (f"{server.url}/missing.mar", everything, "404"),
        (f"{server.url}/a.txt", everything, "it names no archive"),
        (f"{server.url}/a.mar", "https://.*", "is not allowed"),
        ("file:///a.mar", "https://.*", "is not allowed"),
    ):
        with pytest.raises(ConfigError, match=problem):
            read(store, load_models=models, allowed_urls=allowed)
    assert list(store.iterdir()) == []


def test_an_archive_without_a_handler_takes_the_one_of_the_configuration(store: Path) -> None:
    write_archive(store, "a", handler="")
    with pytest.raises(ConfigError, match="names no handler"):
        read(store, load_models="a.mar")
    (start,) = read(store, load_models="a.mar", default_service_handler="other")
    assert start.options["handler"] == "other.py"
    write_archive(store, "a")
    (start,) = read(store, load_models="a.mar", default_service_handler="other")
    assert "handler" not in start.options


def test_what_is_refused(store: Path) -> None:
    write_archive(store, "a")
    for models, problem in (
        ("a.mar,other=a.mar,a.mar", "the model a is there twice with version 1.0"),
        ("two words=a.mar", "the name of a model has 1 to 64 of"),
        ("../a.mar", "it does not exist"),
    ):
        with pytest.raises(ConfigError, match=problem):
            read(store, load_models=models)


def test_all_archives_but_those_that_cannot_be_read(store: Path) -> None:
    write_archive(store, "a")
    write_archive(store, "a", file="b.mar")
    (store / "c.mar").write_bytes(b"junk")
    (store / ".hidden.mar").write_bytes(b"junk")
    (store / "folder").mkdir()
    (store / "folder" / "model.yaml").write_text("handler: echo\n")
    report = [""]
    starts = read(store, report, load_models="all")
    assert [(one.name, one.options["source"]) for one in starts] == [
        ("a", "a.mar"),
        ("folder", "folder"),
    ]
    assert "b.mar in the model store is not loaded: a.mar is the model a" in report[1]
    assert "c.mar in the model store is not loaded" in report[2]
    assert len(report) == 3


def test_the_models_of_a_snapshot(store: Path) -> None:
    write_archive(store, "a", config="responseTimeout: 5\n")

    def restored(**settings: Any) -> list[Start]:
        version = {"defaultVersion": True, "marName": "a.mar", **settings}
        content = {"name": "x", "modelCount": 1, "models": {"other": {"1.0": version}}}
        return read(store, load_models="all", model_snapshot=json.dumps(content))

    (start,) = restored(minWorkers=0, batchSize=3, responseTimeout=9, startupTimeout=8)
    assert (start.name, start.version, start.is_default) == ("other", "1.0", True)
    assert start.options["total_replicas"] == 0
    assert start.options["max_batch_size"] == 3
    assert start.options["timeout_s"] == 5
    assert start.options["load_timeout_s"] == 8
    assert restored(minWorkers=2, maxWorkers=2)[0].options["total_replicas"] == 2
    # The last request for workers and batches wins over model-config.yaml, as in TorchServe.
    limits = "minWorkers: 1\nmaxWorkers: 1\nbatchSize: 4\nmaxBatchDelay: 30\nresponseTimeout: 5\n"
    write_archive(store, "a", config=limits)
    (start,) = restored(
        minWorkers=2, maxWorkers=2, batchSize=8, maxBatchDelay=50, responseTimeout=9
    )
    names = ("total_replicas", "max_batch_size", "max_batch_delay_ms", "timeout_s")
    assert [start.options[name] for name in names] == [2, 8, 50, 5]
    assert restored(minWorkers=0, maxWorkers=0)[0].options["total_replicas"] == 0
    assert restored()[0].options["total_replicas"] == 1
    write_archive(store, "a")
    assert restored(handler="other.py")[0].options["handler"] == "other.py"
    assert restored(responseTimeout=-5)[0].options["options"] == {
        "too_small": {"responseTimeout": -5}
    }
    (store / "a.mar").unlink()
    with pytest.raises(ConfigError, match=r"config.properties: the model other: .*not exist"):
        restored()


@pytest.mark.parametrize("broken", [(), ("junk.war",), ("a.war", "b.war")], ids=len)
def test_a_workflow_store_without_a_workflow_that_can_be_read(
    store: Path, broken: tuple[str, ...]
) -> None:
    workflows = store.parent / "wf-store"
    workflows.mkdir()
    for name in broken:
        (workflows / name).write_bytes(b"junk")
    (workflows / "notes.txt").write_text("notes")
    settings = Settings(model_store=store, state_dir=store.parent / "state")
    reader = SourceReader(settings, store.parent)
    report: list[str] = []
    text = read_workflows(workflows, store.parent / "unpacked", Limits(), reader, report.append)
    models_file = store.parent / "models.yaml"
    models_file.write_text(text)
    assert load_catalog(models_file).models == {}
    assert len(report) == len(broken)


def test_broken_archives_of_a_snapshot_are_left_out(store: Path) -> None:
    write_archive(store, "a")
    write_archive(store, "headless", handler="")
    (store / "junk.mar").write_bytes(b"junk")
    (store / "cut.mar").write_bytes((store / "a.mar").read_bytes()[:200])
    (store / "folder").mkdir()
    archives = ("junk.mar", "a.mar", "cut.mar", "headless.mar", "folder")
    models = {name.partition(".")[0]: {"1.0": {"marName": name}} for name in archives}
    models["two words"] = {"1.0": {"marName": "a.mar"}}
    report = [""]
    content = {"name": "x", "modelCount": len(models), "models": models}
    starts = read(store, report, model_snapshot=json.dumps(content))
    assert [one.name for one in starts] == ["a"]
    assert report[1].startswith("the model junk of the snapshot is not loaded: ")
    assert report[1].endswith("junk.mar: it is not a zip file")
    assert len(report) == len(models)
