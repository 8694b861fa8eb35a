"""The core asks an extension that it does not know at each point."""

from __future__ import annotations

import logging
from collections.abc import Collection, MutableMapping
from pathlib import Path
from typing import Any

import pytest

from api.extension import ApiPart, hint_of, surfaces_of
from api.observability.counters import Counters
from handlers.extension import HandlerPart
from handlers.loader import load_handler
from headrace.config.extensions import Extension
from headrace.config.model.handler_reference import HandlerKind, HandlerReference, parse_handler
from headrace.config.settings import Settings, load_settings
from headrace.errors import ConfigError
from headrace.handler import Handler
from headrace.models.extension import ModelFolder, ModelsPart
from headrace.models.folder import read_file, read_folder
from headrace.observability.extension import LogsPart
from headrace.observability.log_format import formatter
from headrace.observability.worker_report import Figures
from headrace.server.components import log_files
from tests.harness.extensions import installed
from workers.extension import WorkerPart, observers_of, worker_parts
from workers.jobs.settlement import read_raised
from workers.model_process.outcomes import leads_to_author


def extension(**points: Any) -> Extension:
    return Extension(name="mine", summary="made for a test", **points)


def test_a_handler_is_of_the_extension_before_its_colon(tmp_path: Path) -> None:
    loaded: list[tuple[HandlerReference, Path]] = []

    def load(reference: HandlerReference, folder: Path) -> Handler:
        loaded.append((reference, folder))
        return Handler()

    part = HandlerPart(load=load, folder=tmp_path, leading=("entry.py",))
    with installed(extension(handlers=lambda: part)):
        assert isinstance(load_handler("mine:file.py:Class", tmp_path), Handler)
        assert leads_to_author(str(tmp_path / "entry.py"))
        assert not leads_to_author(str(tmp_path / "other.py"))
        raised = read_raised(
            'Traceback (most recent call last):\n  File "/model/own.py", line 7, in inference\n'
            f'  File "{tmp_path}/base.py", line 9, in inference\nValueError: words'
        )
    ((reference, folder),) = loaded
    assert (reference.kind, reference.extension) == (HandlerKind.EXTENSION, "mine")
    assert (reference.target, reference.name, folder) == ("file.py", "Class", tmp_path)
    assert raised is not None
    assert raised.where == "own.py:7", "the frame of the author comes before those of the base"


def test_without_handlers_a_colon_is_that_of_a_class() -> None:
    with installed(extension()):
        assert parse_handler("mine:Class").kind is HandlerKind.MODULE


def test_a_handler_of_an_extension_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    def missing() -> HandlerPart:
        raise ImportError("no module torch")

    with (
        installed(extension(handlers=missing)),
        pytest.raises(ConfigError, match="extension mine cannot be used"),
    ):
        load_handler("mine:x", tmp_path)


def test_a_folder_with_its_file_is_read_by_the_extension(tmp_path: Path) -> None:
    def read(folder: Path, label: str, given: Collection[str]) -> ModelFolder:
        assert (label, given) == ("here", ("weights",))
        return ModelFolder(folder, "m", {"handler": "echo"}, None, "mine/about.json")

    part = ModelsPart(described_by="mine/about.json", read=read)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/about.json").touch()
    with installed(extension(models=lambda: part)):
        assert read_folder(tmp_path, "here", ("weights",)).name == "m"
    with installed(), pytest.raises(ConfigError, match=r"it has no model.yaml, and no program"):
        read_folder(tmp_path, "here")


def test_an_archive_of_a_pipeline_is_no_model() -> None:
    reader: Any = None
    part = ModelsPart(pipelines={".flow": reader})
    with (
        installed(extension(models=lambda: part)),
        pytest.raises(ConfigError, match="is a pipeline and no model"),
    ):
        read_file(Path("a.flow"), "a.flow")


def test_a_log_format_has_the_name_of_its_extension() -> None:
    def line(event: MutableMapping[str, Any]) -> str:
        return f"mine {event['event']} {event['part']}"

    part = LogsPart(line=line, files=lambda value, log_format: None)
    record = logging.LogRecord("workers.x", logging.INFO, "", 0, "words", (), None)
    with installed(extension(logs=lambda: part)):
        settings = load_settings(None, {"HEADRACE_LOG_FORMAT": "mine"}, {})
        assert settings.log_format == "mine"
        assert log_files(settings) is None
        assert formatter("mine", {"part": "api"}, allowed=None).format(record) == "mine words api"
    with (
        installed(),
        pytest.raises(ConfigError, match="expected auto, console or json, got 'mine'"),
    ):
        load_settings(None, {"HEADRACE_LOG_FORMAT": "mine"}, {})


def test_a_worker_has_the_observers_that_its_settings_ask_for() -> None:
    observer: Any = object()

    def build(settings: Settings, figures: Any) -> Any:
        assert figures() == Figures()
        return observer if settings.log_level == "debug" else None

    with installed(extension(workers=lambda: WorkerPart(observer=build))):
        assert observers_of(Settings(models_file=Path("m"), log_level="debug"), Figures) == [
            observer
        ]
        assert observers_of(Settings(models_file=Path("m")), Figures) == []
        assert not worker_parts()["mine"].pieces_extend_timeout


def test_the_api_has_the_surfaces_and_the_hints_of_extensions() -> None:
    services: Any = object()
    surface: Any = object()
    part = ApiPart(
        surface=lambda given: surface if given is services else None,
        hint=lambda method, path: f"Use {method} /other." if path == "/mine" else None,
    )
    with installed(extension(api=lambda: part)):
        assert surfaces_of(services) == [surface]
        assert hint_of("GET", "/mine") == "Use GET /other."
        assert hint_of("GET", "/theirs") == ""


def test_observers_get_what_an_api_counts() -> None:
    class Observer:
        def __init__(self) -> None:
            self.seen: list[tuple[object, ...]] = []

        def admitted(self, model: str, version: str, count: int) -> None:
            self.seen.append((model, version, count))

        def answered(self, status: int) -> None:
            self.seen.append((status,))

    counters, observer = Counters(), Observer()
    counters.observers.append(observer)
    counters.admitted("m", "2.0", 3)
    counters.answered("/ready", "GET", 200)
    assert observer.seen == [("m", "2.0", 3), (200,)]
