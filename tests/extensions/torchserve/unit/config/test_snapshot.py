"""Snapshots: TorchServe's are read, and ours are read again."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from extensions.torchserve.config.properties import parse_properties, read_properties
from extensions.torchserve.config.snapshot import (
    MODELS_KEY,
    REVISION_KEY,
    SnapshotModel,
    last_snapshot,
    read_models,
    write_snapshot,
)
from headrace.errors import ConfigError

THEIRS = r"""#Saving snapshot
#Mon Nov 23 09:00:00 UTC 2026
inference_address=http\://127.0.0.1\:8080
version=0.12.0
tsConfigFile=config.properties
model_snapshot={\n  "name"\: "20261123090000123-startup.cfg",\n  "modelCount"\: 1,\n\
    "created"\: 1,\n  "models"\: {\n    "m"\: {\n      "1.0"\: {\n  "defaultVersion"\: false,\n\
    "marName"\: "m.mar",\n "minWorkers"\: 2,\n "maxWorkers"\: 3,\n "batchSize"\: 1,\n\
    "parallelLevel"\: 1\n },\n "2.0"\: {"defaultVersion"\: true, "marName"\: "m2.mar"}\n }\n }\n}
"""


def test_a_snapshot_of_torchserve_is_read() -> None:
    first, second = read_models(parse_properties(THEIRS)[MODELS_KEY], "x.cfg")
    assert first[:4] == ("m", "1.0", "m.mar", False)
    assert first.settings["maxWorkers"] == 3
    assert second[:4] == ("m", "2.0", "m2.mar", True)


def test_a_snapshot_is_written_and_read_again(tmp_path: Path) -> None:
    folder = tmp_path / "config"
    models = [
        SnapshotModel("m", "1.0", "m.mar", True, {"minWorkers": 1}),
        SnapshotModel("m", "2.0", "m2.mar", False, {"minWorkers": 0}),
        SnapshotModel("n", "1.0", "n.mar", True, {}),
    ]
    now = datetime(2026, 11, 23, 9, 8, 7, 6543, tzinfo=UTC)
    values = {"job_queue_size": "3", "tsConfigFile": "x", MODELS_KEY: "old"}
    path = write_snapshot(folder, "snapshot", now, values, models, "4 abc")
    assert path.name == "20261123090807006-snapshot.cfg"
    assert list(folder.iterdir()) == [path]
    found = read_properties(path)
    assert found.keys() == {"job_queue_size", MODELS_KEY, REVISION_KEY}
    assert found[REVISION_KEY] == "4 abc"
    again = read_models(found[MODELS_KEY], "")
    assert [(one.name, one.version, one.is_default) for one in again] == [
        ("m", "1.0", True),
        ("m", "2.0", False),
        ("n", "1.0", True),
    ]
    assert last_snapshot(folder) == path


def test_a_folder_without_snapshots(tmp_path: Path) -> None:
    assert last_snapshot(tmp_path) is None
    assert last_snapshot(tmp_path / "missing") is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "Input data was truncated"),
        ('{"models": {"m": {"1.0": {}}}}', "marName is missing"),
        ('{"models": {"m": {"1.0": {"marName": 3}}}}', "Expected `str`, got `int`"),
        ('{"models": {"m": 1}}', "Expected `object`, got `int`"),
    ],
)
def test_what_is_not_readable(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_models(text, "x.cfg")
    assert error.value.message.startswith(f"x.cfg: model_snapshot: it is not readable: {problem}")
