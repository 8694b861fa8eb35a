"""The worker's reader of the registry, against a real Redis."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from headrace.config.model.catalog import load_catalog
from headrace.config.settings import Settings
from headrace.redis.script_client import ScriptClient
from headrace.registry.catalog import ConfigReader, read_declared
from headrace.registry.store import READ_REVISION, RegistryStore
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from workers.lifecycle import registry_reader
from workers.lifecycle.registry_reader import RegistryReader


def test_a_worker_reads_on_after_an_unknown_error(
    redis_db: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> NoReturn:
        raise KeyError("x")

    file = tmp_path / "models.yaml"
    file.write_text("models: {words: {handler: echo}}\n")
    settings = Settings(models_file=file, state_dir=tmp_path)
    reader = RegistryReader(redis_db.url, settings, load_catalog(file))
    with redis_db.client() as client:
        scripts = ScriptClient(client)
        RegistryStore(scripts).apply(read_declared(file, settings), "me", prune=True)
        (revision,) = scripts.read_all([READ_REVISION])
    with monkeypatch.context() as patch:
        patch.setattr(ConfigReader, "all", fail)
        assert reader.read_at_start() is None
        reader.changed(revision)
        wait_until(lambda: reader.take() is None and not reader.revision.generation, "it is unread")
    assert caplog.text.count("the registry of models is not read") == 1
    reader.changed(revision)
    found = wait_until(reader.take, "it is read again") or []
    assert ([name for name, *_ in found], reader.generation) == (["words"], 1)
    reader.close()


def test_another_models_file_is_a_warning_only_if_it_stays(
    redis_db: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = tmp_path / "models.yaml"
    file.write_text("models: {words: {handler: echo}}\n")
    settings = Settings(models_file=file, state_dir=tmp_path)
    reader = RegistryReader(redis_db.url, settings, load_catalog(file))
    edited = tmp_path / "edited.yaml"
    edited.write_text("models: {other: {handler: echo}}\n")
    with redis_db.client() as client:
        scripts = ScriptClient(client)
        store = RegistryStore(scripts)
        store.apply(read_declared(edited, settings), "me", prune=True)
        assert reader.read_at_start() is None
        reader.changed(scripts.read_all([READ_REVISION])[0])
        assert caplog.text == ""

        monkeypatch.setattr(registry_reader, "OTHER_FILE_S", 0.0)
        for _ in range(2):
            reader.changed(scripts.read_all([READ_REVISION])[0])
        assert caplog.text.count("is not the one that was applied last") == 1

        store.apply(read_declared(file, settings), "me", prune=True)
        reader.changed(scripts.read_all([READ_REVISION])[0])
        found = wait_until(reader.take, "its own file is read") or []
    assert [name for name, *_ in found] == ["words"]
    reader.close()
