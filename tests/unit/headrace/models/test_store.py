"""The folder of unpacked models: processes that use it at once, are killed, or no longer use it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.models.store import UnpackedModels
from tests.harness.wait import wait_until

SPAWN = multiprocessing.get_context("spawn")


def fill(folder: Path) -> None:
    (folder / "a").write_text("whole")


def _add(folder: Path, barrier: Barrier, filled: Path) -> None:
    barrier.wait()

    def once(into: Path) -> None:
        fill(into)
        (filled / str(os.getpid())).touch()

    assert (UnpackedModels(folder).add("key", once) / "a").read_text() == "whole"


def _hold_for_ever(folder: Path, ready: Path) -> None:
    UnpackedModels(folder).add("key", fill)
    ready.touch()
    signal.pause()


def _die_while_it_fills(folder: Path) -> None:
    def kill(into: Path) -> None:
        (into / "part").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)

    UnpackedModels(folder).add("key", kill)


def test_processes_that_start_at_once_share_one_folder(tmp_path: Path) -> None:
    folder, filled = tmp_path / "models", tmp_path / "filled"
    filled.mkdir()
    barrier = SPAWN.Barrier(4)
    processes = [SPAWN.Process(target=_add, args=(folder, barrier, filled)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    assert [path.name for path in folder.iterdir()] == ["key"]


def test_what_a_process_uses_stays_and_goes_after_it(tmp_path: Path) -> None:
    folder, ready = tmp_path / "models", tmp_path / "ready"
    process = SPAWN.Process(target=_hold_for_ever, args=(folder, ready))
    process.start()
    try:
        wait_until(ready.exists, "the model is held")
        models = UnpackedModels(folder)
        assert models.prune(unused_s=0) == []
        assert (folder / "key" / "a").exists()
    finally:
        process.kill()
        process.join(60)
    assert models.prune(unused_s=3600) == []
    assert models.prune(unused_s=0) == ["key"]
    assert list(folder.iterdir()) == []


def test_this_process_keeps_what_it_holds_until_it_gives_it_up(tmp_path: Path) -> None:
    models = UnpackedModels(tmp_path)
    path = models.add("key", fill)
    old = time.time() - 100_000
    os.utime(path, (old, old))
    assert UnpackedModels(tmp_path).prune() == []
    models.close()
    assert UnpackedModels(tmp_path).hold("key") == path  # its time is now, by its use
    assert UnpackedModels(tmp_path).prune() == []


def test_a_process_that_is_killed_while_it_unpacks_leaves_no_model(tmp_path: Path) -> None:
    process = SPAWN.Process(target=_die_while_it_fills, args=(tmp_path,))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    models = UnpackedModels(tmp_path)
    assert models.hold("key") is None
    assert [path.name[:5] for path in tmp_path.iterdir()] == [".new-"]
    models.prune()
    assert list(tmp_path.iterdir()) == []
    assert (models.add("key", fill) / "a").read_text() == "whole"


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    def broken(into: Path) -> None:
        fill(into)
        raise ConfigError("broken")

    models = UnpackedModels(tmp_path / "models")
    with pytest.raises(ConfigError, match="broken"):
        models.add("key", broken)
    assert list((tmp_path / "models").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be unpacked here"):
        UnpackedModels(tmp_path / "file").add("key", fill)


def test_a_note_is_for_its_source_and_goes_with_its_model(tmp_path: Path) -> None:
    models = UnpackedModels(tmp_path)
    models.add("key", fill)
    with models.noted("source", "name") as note:
        assert note.read() is None
        note.write("a long validator", "key")
        note.write("etag", "key")
        found = note.read()
        assert found is not None
        assert (found.validator, found.key) == ("etag", "key")
    with models.noted("another source of this name", "name") as note:
        assert note.read() is None
    models.close()
    assert models.prune(unused_s=0) == ["key"]
    models.prune()
    assert list(tmp_path.iterdir()) == []
