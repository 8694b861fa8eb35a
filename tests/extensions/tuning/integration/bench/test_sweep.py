"""`headrace bench --sweep` without MODEL: archives are registered for a while, and nothing else."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.clients.commands import Commands, CommandsWithin
from tests.harness.processes.processes import descendants, gone
from tests.harness.servers.up import RunningUp, running_up, write_models
from tests.harness.wait import wait_until

HANDLER = """
from headrace import Handler


class Doubled(Handler):
    def inference(self, items):
        return [2 * item["x"] for item in items]
"""
BROKEN = "raise RuntimeError('no such luck')\n"
#: A model of the user's own, with the name that TorchServe's suite uses.
OWN = "benchmark"


def write_folder(folder: Path, handler: str) -> Path:
    """A folder that is a model."""
    folder.mkdir()
    (folder / "model.yaml").write_text("handler: handler.py\n")
    (folder / "handler.py").write_text(handler)
    return folder


def write_suite(file: Path, *sources: Path, requests: int = 30) -> None:
    """A suite with a case for each batch size of each source."""
    file.write_text(
        "".join(
            f"{source.name}:\n  eager_mode:\n    url: {source}\n    workers: [1]\n"
            "    batch_size: [1, 4]\n    batch_delay: 7\n    input: in.json\n"
            f"    requests: {requests}\n    concurrency: 3\n    processors: [cpu]\n"
            for source in sources
        )
    )


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    folder = tmp_path_factory.mktemp("sweep")
    models = write_models(folder, {OWN: {"handler": "echo"}})
    with running_up(folder, models=models, HEADRACE_MODEL_API="true") as running:
        wait_until(lambda: running.request("GET", "/ready?models=all")[0] == 200, "loaded", 60)
        yield running


@pytest.fixture
def cli(up: RunningUp, tmp_path: Path) -> Commands:
    (tmp_path / "in.json").write_text('{"x": 21}')
    return CommandsWithin(f"http://127.0.0.1:{up.port}", tmp_path)


def versions(up: RunningUp) -> Any:
    return up.request("GET", f"/api/v1/models/{OWN}/versions")[1]


def options(up: RunningUp) -> Any:
    """The options of the user's model that were changed over the API."""
    return versions(up)["versions"][0].get("changed") or {}


def names(up: RunningUp) -> list[str]:
    return [model["name"] for model in up.request("GET", "/api/v1/models")[1]["models"]]


def test_an_archive_is_registered_measured_and_removed(cli: Commands, up: RunningUp) -> None:
    before = versions(up)
    source = write_folder(cli.folder / "doubled", HANDLER)
    write_suite(cli.folder / "suite.yaml", source)
    ended = cli.run("bench", "--sweep", "suite.yaml", "-o", "results")
    # The generator shares its cores with other tests, so a load may not count.
    assert ended.returncode in (0, 1), ended.stderr
    lines = list(csv.DictReader((cli.folder / "results/ab_report.csv").read_text().splitlines()))
    assert [line["Batch size"] for line in lines] == ["1", "4"]
    assert {line["Model"] for line in lines} == {str(source)}
    # A job of the user's own model, whose handler is another, would have failed.
    assert {line["TS failed requests"] for line in lines} == {"0"}
    assert all(float(line["TS throughput"]) > 0 for line in lines)
    assert "Benchmark of doubled" in (cli.folder / "results/report.html").read_text()

    assert names(up) == [OWN]
    assert versions(up) == before
    assert up.result_of(up.submit(OWN, {"own": True})) == {"own": True}


def test_an_archive_that_does_not_load_is_named_and_removed(cli: Commands, up: RunningUp) -> None:
    before = versions(up)
    broken = write_folder(cli.folder / "broken", BROKEN)
    write_suite(cli.folder / "suite.yaml", broken, write_folder(cli.folder / "good", HANDLER))
    ended = cli.run("bench", "--sweep", "suite.yaml", "-o", "results")
    assert ended.returncode == 1
    assert ended.stderr.count(b"no such luck") == 2
    lines = (cli.folder / "results/ab_report.csv").read_text().splitlines()
    assert len(lines) == 1 + 2
    assert names(up) == [OWN]
    assert versions(up) == before


@pytest.mark.parametrize("model", [(OWN,), ()], ids=["registered", "archive"])
def test_what_a_killed_sweep_has_left_is_taken_back_by_the_next_one(
    cli: Commands, up: RunningUp, model: tuple[str, ...]
) -> None:
    source = write_folder(cli.folder / "doubled", HANDLER)
    write_suite(cli.folder / "suite.yaml", source, requests=10_000_000)
    # This one ends before it measures anything.
    (cli.folder / "next.yaml").write_text("m: {eager_mode: {}}\n")
    following = ("bench", *model, "--sweep", "next.yaml")
    with cli.started("bench", *model, "--sweep", "suite.yaml", "-o", "results") as process:

        def changed() -> bool:
            assert process.poll() is None
            return bool(names(up) != [OWN] or options(up))

        wait_until(changed, "the sweep has changed the server", 60)
        if model:
            text = cli.complaint(*following, rc=2)
            assert f"{OWN} on {cli.url} is in use: headrace bench --sweep {cli.folder}" in text
        assert changed()
        children = descendants(process.pid)
        process.kill()
        process.wait(60)
    wait_until(lambda: gone(*children), "its generators have ended")
    assert names(up) != [OWN] or options(up)

    text = cli.complaint(*following, rc=1)

    assert "suite.yaml was killed: " in text
    assert "eager_mode_m_w1_b1 has no input" in text
    assert names(up) == [OWN]
    assert options(up) == {}
    assert "was killed" not in cli.complaint(*following, rc=1)


def test_a_suite_without_any_result_writes_no_report(cli: Commands, up: RunningUp) -> None:
    write_suite(cli.folder / "suite.yaml", write_folder(cli.folder / "broken", BROKEN))
    text = cli.complaint("bench", "--sweep", "suite.yaml", "-o", "results", rc=1)
    assert "report" not in text
    assert not list((cli.folder / "results").iterdir())
    assert names(up) == [OWN]


def test_a_case_without_an_archive_is_named(cli: Commands) -> None:
    (cli.folder / "suite.yaml").write_text("m: {eager_mode: {input: in.json}}\n")
    text = cli.complaint("bench", "--sweep", "suite.yaml", rc=1)
    assert "eager_mode_m_w1_b1 has no url" in text
