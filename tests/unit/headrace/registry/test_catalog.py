"""The registry as configurations: which files are read for it, and how often."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from headrace.config.model import catalog as model_catalog
from headrace.config.settings import Settings
from headrace.config.yaml_file import Document, load_yaml
from headrace.errors import ConfigError
from headrace.models.catalog import load_models
from headrace.models.folder import MODEL_FILE
from headrace.models.source import SourceReader
from headrace.registry.catalog import ConfigReader, declared_of, read_declared
from headrace.registry.model import ModelVersion, RegisteredModel, Registry, digest_of

FILE = "models: {words: {source: words, max_batch_size: 2}}\n"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "models.yaml").write_text(FILE)
    source = tmp_path / "words"
    source.mkdir()
    (source / MODEL_FILE).write_text("name: words\nhandler: words.py\nversion: '1.0'\n")
    (source / "words.py").write_text("class Words: pass\n")
    return Settings(models_file=tmp_path / "models.yaml", state_dir=tmp_path / "state")


def test_a_models_file_is_read_once(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def counted(path: Path, *, what: str) -> Document:
        read.append(path)
        return load_yaml(path, what=what)

    monkeypatch.setattr(model_catalog, "load_yaml", counted)
    declared = declared_of(load_models(settings))

    assert declared.models == {"words": ("1.0", {"source": "words", "max_batch_size": 2})}
    assert read == [settings.models_file]


def test_a_model_has_the_version_of_its_source(settings: Settings) -> None:
    """So a worker does not replace what it serves by another version of the same source."""
    declared = {}
    for version in ("1.0", "2.1", "2.2"):
        model = settings.models_file.parent / "words" / MODEL_FILE
        model.write_text(f"name: words\nhandler: words.py\nversion: '{version}'\n")
        found = declared_of(load_models(settings))
        assert found == read_declared(settings.models_file, settings)
        assert found.models["words"][0] == version
        declared[version] = found.digest
    assert len(set(declared.values())) == 3
    options = {"words": {"source": "words", "max_batch_size": 2}}
    assert declared["1.0"] == digest_of(options)
    settings.models_file.write_text(FILE.replace("source", "version: '3', source"))
    (settings.models_file.parent / "words" / MODEL_FILE).unlink()
    assert read_declared(settings.models_file, settings).models["words"][0] == "3"


def test_a_source_that_cannot_be_read_has_no_version(settings: Settings) -> None:
    (settings.models_file.parent / "words" / MODEL_FILE).write_text("name: [\n")
    with pytest.raises(ConfigError, match=r"models\.words\.source") as raised:
        read_declared(settings.models_file, settings)
    assert "`version`" in raised.value.hint


def test_a_source_is_read_again_only_when_its_model_has_changed(settings: Settings) -> None:
    catalog = load_models(settings)
    (_, declared) = declared_of(catalog).models["words"]
    (settings.models_file.parent / "words" / MODEL_FILE).unlink()
    reader = ConfigReader(settings, catalog)
    one = ModelVersion(declared=declared)

    assert reader.read("words", "1.0", one) is catalog.models["words"]
    with pytest.raises(ConfigError):
        reader.read("words", "1.0", ModelVersion(declared=declared, loads=1))


def test_a_version_that_is_registered_again_after_its_removal_is_read_again(
    settings: Settings,
) -> None:
    reader = ConfigReader(settings, load_models(settings))
    one = ModelVersion(changed={"source": "words"})
    model = RegisteredModel(name="words", generation=1, versions={"1.0": one})
    registry = Registry(models={"words": model})

    def batch_sizes() -> list[int]:
        configs = [found.config for _, _, found in reader.all(registry)]
        return [config.max_batch_size for config in configs if config is not None]

    default = batch_sizes()
    file = settings.models_file.parent / "words" / MODEL_FILE
    file.write_text(f"{file.read_text()}max_batch_size: 7\n")
    assert batch_sizes() == default != [7]
    assert not list(reader.all(Registry()))
    assert batch_sizes() == [7]


@pytest.mark.parametrize(
    "options",
    [
        {"handler": "echo", "weights": "~nouser/x"},
        {"handler": "~nouser/words.py"},
        {"source": "~nouser/words"},
        {"source": "https://["},
        {"source": "x" * 300},
    ],
)
def test_one_model_that_cannot_be_read_does_not_hide_the_others(
    settings: Settings, options: dict[str, str]
) -> None:
    good = RegisteredModel(
        name="good", generation=1, versions={"1.0": ModelVersion(changed={"handler": "echo"})}
    )
    bad = RegisteredModel(name="bad", generation=1, versions={"1.0": ModelVersion(changed=options)})
    reader = ConfigReader(settings, load_models(settings))
    found = {name: one for name, _, one in reader.all(Registry(models={"bad": bad, "good": good}))}

    assert (found["bad"].config, "nouser" in found["bad"].problem) == (None, "~" in str(options))
    assert found["bad"].problem
    assert found["good"].config is not None


@pytest.mark.parametrize("error", [PermissionError(13, "not allowed"), RuntimeError("no home")])
def test_what_a_process_may_not_read_is_named(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> NoReturn:
        raise error

    reader = ConfigReader(settings, load_models(settings))
    assert reader.read("other", "2", ModelVersion(changed={"source": "words"})).folder
    monkeypatch.setattr(SourceReader, "_local", fail)
    with pytest.raises(ConfigError, match=f"words: it cannot be read: {error.args[-1]}"):
        reader.read("other", "3", ModelVersion(changed={"source": "words"}))
    monkeypatch.setattr(SourceReader, "read", fail)
    with pytest.raises(ConfigError, match=f"other, version 3: it cannot be read: {error.args[-1]}"):
        reader.read("other", "3", ModelVersion(changed={"source": "words"}))
