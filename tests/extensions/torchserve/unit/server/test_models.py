"""Which changes make the registry that of a start, and what a snapshot has of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from extensions.torchserve.config.launch import Flags, merge
from extensions.torchserve.config.snapshot import LAST_NAME
from extensions.torchserve.server.models import Start, changes_for
from extensions.torchserve.server.snapshots import Snapshots, snapshot_models, snapshot_settings
from headrace.registry.model import Change, ModelVersion, RegisteredModel, Registry


def start(name: str, version: str = "1.0", *, default: bool = False, **options: Any) -> Start:
    return Start(name, version, {"source": f"{name}.mar", **options}, default)


def registry_of(*changes: Change) -> Registry:
    models = {one.name: one.after for one in changes if one.after is not None}
    return Registry(generation=3, change="abc", models=models)


def test_a_server_alone_has_the_models_of_its_start_and_no_others() -> None:
    first = registry_of(*changes_for(Registry(), [start("a"), start("b")], alone=True))
    changes = changes_for(first, [start("a"), start("c")], alone=True)
    assert [(one.name, one.after is None) for one in changes] == [("c", False), ("b", True)]


def test_servers_that_share_a_registry_only_add() -> None:
    first = registry_of(*changes_for(Registry(), [start("a", total_replicas=3)], alone=False))
    starts = [start("a", total_replicas=1), start("a", "2.0"), start("b")]
    changes = changes_for(first, starts, alone=False)
    assert [one.name for one in changes] == ["a", "b"]
    after = changes[0].after
    assert after is not None
    assert after.versions["1.0"].options["total_replicas"] == 3
    assert list(after.versions) == ["1.0", "2.0"]
    assert after.default_version == "1.0"


def test_a_reload_before_the_stop_changes_nothing_at_the_start() -> None:
    (change,) = changes_for(Registry(), [start("a")], alone=True)
    assert change.after is not None
    version = ModelVersion(changed=change.after.versions["1.0"].changed, loads=2)
    model = RegisteredModel(name="a", generation=2, versions={"1.0": version}, default="1.0")
    assert changes_for(Registry(models={"a": model}), [start("a")], alone=True) == []


def test_the_default_version() -> None:
    starts = [start("a"), start("a", "2.0", default=True), start("b", "3.0"), start("b", "4.0")]
    found = registry_of(*changes_for(Registry(), starts, alone=True))
    assert [one.default_version for one in found.models.values()] == ["2.0", "3.0"]
    rows = [(one.name, one.version, one.is_default) for one in snapshot_models(found)]
    assert rows == [
        ("a", "1.0", False),
        ("a", "2.0", True),
        ("b", "3.0", True),
        ("b", "4.0", False),
    ]


def test_a_model_without_an_archive_is_in_no_snapshot() -> None:
    version = ModelVersion(changed={"handler": "echo"})
    model = RegisteredModel(name="echo", generation=1, versions={"1.0": version})
    assert snapshot_models(Registry(models={"echo": model})) == []


def test_the_numbers_of_a_snapshot() -> None:
    found = snapshot_settings({"total_replicas": 2, "max_batch_size": 8, "timeout_s": 0.2})
    assert (found["minWorkers"], found["maxWorkers"]) == (2, 2)
    assert (found["batchSize"], found["responseTimeout"]) == (8, 1)
    small = {"responseTimeout": -5, "batchSize": 0}
    found = snapshot_settings({"total_replicas": 1, "options": {"too_small": small}})
    assert (found["responseTimeout"], found["batchSize"]) == (-5, 0)
    found = snapshot_settings({"replicas": 1, "min_replicas": 1, "max_replicas": 4})
    assert (found["minWorkers"], found["maxWorkers"]) == (1, 4)
    found = snapshot_settings({"replicas": "auto"})
    assert (found["minWorkers"], found["maxWorkers"]) == (1, 1)


def test_when_a_snapshot_is_older_than_the_registry(tmp_path: Path) -> None:
    folder = tmp_path / "logs/config"
    folder.mkdir(parents=True)
    file = folder / "20261123090000000-startup.cfg"
    file.write_text("headrace_registry=2 abc\n")

    def is_older(generation: int) -> bool:
        snapshots = Snapshots(merge(Flags(), {}, tmp_path), tmp_path, print)
        return snapshots.is_older(Registry(generation=generation))

    assert not is_older(3)
    (tmp_path / LAST_NAME).write_text("20251123090000000-startup.cfg")
    assert not is_older(3)
    (tmp_path / LAST_NAME).write_text(f"{file.name} 2")
    assert is_older(3)
    assert not is_older(2)
    file.write_text("")
    assert not is_older(3)
