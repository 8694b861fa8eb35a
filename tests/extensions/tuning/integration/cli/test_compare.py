"""`headrace bench compare` as a user runs it: two files in, a verdict for each figure out."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.extensions.tuning.harness.measurements import load, measurement
from tests.harness.clients.commands import CommandsWithin


@pytest.fixture
def commands(tmp_path: Path) -> CommandsWithin:
    for name, mean in (("before", 20.0), ("after", 10.0)):
        found = measurement(name, [load(mean)], peak=None)
        (tmp_path / f"{name}.json").write_bytes(msgspec.json.encode(found))
    return CommandsWithin("", tmp_path)


def test_the_figures_of_two_files_are_compared(commands: CommandsWithin) -> None:
    shown = commands.lines("bench", "compare", "before.json", "after.json", "--html", "page.html")
    assert shown[0].split() == ["load", "figure", "before", "after", "verdict"]
    assert any("p99 ms" in line and "50 % lower: better" in line for line in shown)
    assert any("results/s" in line and "no difference" in line for line in shown)
    assert "<svg" in (commands.folder / "page.html").read_text()
    (found,) = commands.json("bench", "compare", "before.json", "after.json")
    better = {one["figure"]: one["better"] for one in found["differences"]}
    assert better == {"results/s": None, "p50 ms": True, "p95 ms": True, "p99 ms": True}
    table = commands.lines("bench", "compare", "after.json", "before.json", "--markdown")
    assert any(line.startswith("| server 100/s | p99 ms") for line in table)


def test_a_file_that_is_no_measurement_is_named(commands: CommandsWithin) -> None:
    newer = {"format": 99}
    for name, text in (("text.json", b"no"), ("newer.json", msgspec.json.encode(newer))):
        (commands.folder / name).write_bytes(text)
    for name, words in (
        ("none.json", "No such file"),
        ("text.json", "is not a measurement"),
        ("newer.json", "has the format 99"),
    ):
        said = commands.complaint("bench", "compare", "before.json", name, rc=2)
        assert name in said
        assert words in said
