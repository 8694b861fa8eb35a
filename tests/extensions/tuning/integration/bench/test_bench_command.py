"""`headrace bench` against `headrace up`, with the echo model."""

from __future__ import annotations

import csv
import json
import re
import signal
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from extensions.tuning.bench.load.generator import generate
from extensions.tuning.bench.load.plan import Plan
from extensions.tuning.bench.load.scenarios import Scenario
from extensions.tuning.bench.load.targets import Input, target_for
from extensions.tuning.bench.measurement import read_measurement
from extensions.tuning.bench.suite import COLUMNS
from tests.harness.clients.commands import Commands, CommandsWithin
from tests.harness.servers.up import RunningUp, running_up, write_models
from tests.harness.wait import wait_until

#: Every machine meets it.
LENIENT = ("--slo", "p50=60s", "--confidence", "0.9")
#: No machine meets it.
STRICT = ("--slo", "p50=0.001ms", "--confidence", "0.9")
#: The tests share two cores, so the generator may be late, and a load may not count.
ENDS = (0, 1)
#: A load with a fixed seed, so that it has the same number of requests on every machine.
ONE_SECOND = ("--rate", "40", "--duration", "1")
#: A load that ends by its number of requests.
CLOSED = ("--scenario", "closed:2", "--requests", "20", "--duration", "3600")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    folder = tmp_path_factory.mktemp("bench")
    narrow = {"handler": "echo", "max_queue_depth": 3}
    (folder / "boom.py").write_text(
        "from headrace import Handler\n\n\nclass Boom(Handler):\n"
        "    def inference(self, items):\n        raise RuntimeError('boom')\n"
    )
    boom = {"handler": "boom.py:Boom"}
    models = write_models(folder, {"echo": {"handler": "echo"}, "narrow": narrow, "boom": boom})
    with running_up(folder, models=models) as running:
        wait_until(lambda: running.request("GET", "/ready?models=all")[0] == 200, "loaded", 60)
        yield running


@pytest.fixture
def cli(up: RunningUp, tmp_path: Path) -> Commands:
    (tmp_path / "in.json").write_text('{"x": 1}')
    return CommandsWithin(f"http://127.0.0.1:{up.port}", tmp_path)


def measured(cli: Commands, *arguments: str, ends: tuple[int, ...] = ENDS) -> Any:
    """The JSON of a measurement of echo that ended with one of these codes."""
    ended = cli.run("bench", "echo", "-i", "in.json", "--json", "out.json", *arguments)
    assert ended.returncode in ends, (ended.stdout, ended.stderr)
    read_measurement(cli.folder / "out.json")
    return json.loads((cli.folder / "out.json").read_text())


@pytest.mark.parametrize(
    ("arguments", "concurrency"),
    [
        (ONE_SECOND, 0),
        (CLOSED, 2),
        (("--scenario", "single", "--requests", "20", "--duration", "3600"), 1),
        (("--scenario", "offline", "--requests", "50"), 256),
    ],
)
def test_each_scenario_has_results_with_stages(
    cli: Commands, arguments: tuple[str, ...], concurrency: int
) -> None:
    found = measured(cli, *arguments)
    (load,) = found["loads"]
    assert load["concurrency"] == concurrency
    assert load["succeeded"] == load["requests"] > 0
    assert load["latency"]["p99"] > 0
    assert list(load["stages"])[:2] == ["queued", "hold"]
    assert sum(load["batch_sizes"].values()) == load["requests"]
    assert {"client", "api", "redis", "worker", "model"} <= load["usage"].keys()
    assert found["version"] == "1.0"
    assert found["options"]["max_batch_size"] == 32
    assert found["environment"]["options_digest"]


def test_recorded_rows_are_a_scenario(cli: Commands) -> None:
    first = measured(cli, *ONE_SECOND, "--rows", "rows.jsonl")
    rows = [json.loads(line) for line in (cli.folder / "rows.jsonl").read_text().splitlines()]
    assert len(rows) >= first["loads"][0]["requests"]
    assert all(row["answered_s"] >= row["sent_s"] >= row["due_s"] for row in rows)
    (load,) = measured(cli, "--scenario", "replay:rows.jsonl", "--duration", "5")["loads"]
    assert load["scenario"] == "replay"
    assert load["requests"] > 0


def test_rows_are_parquet_too_and_have_the_stages(cli: Commands) -> None:
    measured(cli, *CLOSED, "--rows", "rows.parquet")
    table = pq.read_table(cli.folder / "rows.parquet")
    assert table.num_rows == 20
    assert table.column("error").null_count == 20
    assert min(table.column("queued").to_pylist()) >= 0
    assert max(table.column("batch_size").to_pylist()) >= 1


def test_several_rates_are_several_loads(cli: Commands) -> None:
    arguments = ("--rate", "20,40", "--duration", "1", "--price-per-hour", "3.6")
    found = measured(cli, *arguments, "--name", "cheap")
    assert [load["offered_rate"] for load in found["loads"]] == [20, 40]
    assert found["name"] == "cheap"
    counts = [load["rate"] for load in found["loads"] if not load["refused"]]
    if counts:
        assert found["cost_per_1000"] == pytest.approx(1 / max(counts))


def test_a_missed_objective_is_exit_code_1(cli: Commands) -> None:
    ended = cli.run("bench", "echo", "-i", "in.json", *ONE_SECOND, *STRICT)
    assert ended.returncode == 1
    # Where the generator was late, the load does not count instead.
    assert b"p50 within 0.001 ms is missed" in ended.stdout or b"not count" in ended.stdout
    found = measured(cli, *ONE_SECOND, *LENIENT)
    assert found["loads"][0]["verdict"]["met"]


def test_the_peak_is_found_and_reported(cli: Commands) -> None:
    files = ("--html", "out.html", "--markdown", "out.md")
    found = measured(cli, "--find-peak", "--duration", "1", *files, *STRICT, ends=(1,))
    assert found["peak"]["rate"] == 0
    assert found["peak"]["high"] > 0
    assert all(not load["verdict"]["met"] for load in found["loads"])
    assert (cli.folder / "out.html").read_text().startswith("<!")
    assert "| load" in (cli.folder / "out.md").read_text()


def test_two_measurements_are_compared(cli: Commands) -> None:
    measured(cli, *CLOSED)
    (cli.folder / "out.json").rename(cli.folder / "first.json")
    measured(cli, *CLOSED)
    ended = cli.run("bench", "compare", "first.json", "out.json")
    assert ended.returncode == 0
    # A load that does not count is named on standard error.
    assert b"closed:2" in ended.stdout + ended.stderr


def test_a_suite_writes_its_report_and_takes_the_options_back(cli: Commands, up: RunningUp) -> None:
    (cli.folder / "suite.yaml").write_text(
        "echo:\n  eager_mode:\n    workers: [1]\n    batch_size: [1, 4]\n    batch_delay: 7\n"
        "    input: in.json\n    requests: 30\n    concurrency: 3\n    processors: [cpu]\n"
    )
    ended = cli.run("bench", "echo", "--sweep", "suite.yaml", "-o", "results")
    assert ended.returncode in ENDS, ended.stderr
    text = (cli.folder / "results/ab_report.csv").read_text()
    lines = list(csv.DictReader(text.splitlines()))
    assert tuple(lines[0]) == COLUMNS
    assert [(line["Batch size"], line["Batch delay"]) for line in lines] == [
        ("1", "7.0"), ("4", "7.0"),
    ]  # fmt: skip
    assert {line["Requests"] for line in lines} == {"30"}
    assert all(float(line["TS throughput"]) > 0 for line in lines)
    assert (cli.folder / "results/eager_mode_echo_w1_b4.json").exists()
    versions = up.request("GET", "/api/v1/models/echo/versions")[1]["versions"]
    assert versions[0]["changed"] == {}


def test_a_suite_that_is_ended_takes_the_options_back(cli: Commands, up: RunningUp) -> None:
    (cli.folder / "suite.yaml").write_text(
        "echo: {eager_mode: {batch_size: [2], requests: 1000000000, input: in.json}}\n"
    )

    def changed() -> Any:
        return up.request("GET", "/api/v1/models/echo/versions")[1]["versions"][0]["changed"]

    with cli.started("bench", "echo", "--sweep", "suite.yaml", "-o", "results") as process:
        wait_until(lambda: changed().get("max_batch_size") == 2, "the case has begun", 60)
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 143
    assert b"ended by SIGTERM" in told
    assert b"Traceback" not in told
    assert changed() == {}


def test_a_search_that_is_interrupted_writes_the_loads_that_ended(cli: Commands) -> None:
    arguments = ("--find-peak", *LENIENT, "--duration", "1")
    files = ("--json", "out.json", "--markdown", "out.md")
    with cli.started("bench", "echo", "-i", "in.json", *arguments, *files) as process:
        assert process.stderr is not None
        # A line is printed when a load has ended, just before its figures are kept. A search has
        # more than two loads: it raises the rate, lowers it, or repeats a load that does not count.
        for _ in range(2):
            line = process.stderr.readline()
            assert re.search(rb"server [\d.,]+/s[:,].* [\d.,]+/s, p99 ", line), line
        process.send_signal(signal.SIGINT)
        printed, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"interrupted; the figures are those of the " in told
    assert b"Traceback" not in told
    assert b"requests a second (" in printed
    found = read_measurement(cli.folder / "out.json")
    assert found.interrupted
    assert found.loads
    assert found.peak is not None
    assert "The measurement was interrupted" in (cli.folder / "out.md").read_text()


def test_a_model_that_always_fails_is_said_to(cli: Commands) -> None:
    text = cli.complaint("bench", "boom", "-i", "in.json", "--rate", "5", rc=1)
    assert "boom: all 3 lone requests failed, the first with RuntimeError: boom" in text
    assert "`headrace try boom FILE`" in text


def test_a_suite_without_a_model_needs_a_server_that_allows_models(cli: Commands) -> None:
    (cli.folder / "suite.yaml").write_text("m: {eager_mode: {url: m.mar, input: in.json}}\n")
    text = cli.complaint("bench", "--sweep", "suite.yaml", rc=2)
    assert "HEADRACE_MODEL_API=true" in text


def test_a_full_queue_is_counted_and_not_waited_for(up: RunningUp) -> None:
    assert up.request("POST", "/api/v1/queues/headrace.narrow/pause", b"")[0] == 200
    target = target_for(
        "headrace", f"http://127.0.0.1:{up.port}", "narrow", [Input(b"1", "application/json")]
    )
    plan = Plan(
        target=target, scenario=Scenario(kind="replay", due_s=(0.0,) * 10), duration_s=1,
        timeout_s=120,
    )  # fmt: skip

    def purge() -> None:
        # Until all ten have come, no place may become free.
        wait_until(lambda: refused(up) == 7, "seven were refused")
        assert up.request("POST", "/api/v1/queues/headrace.narrow/purge", b"")[0] == 200

    with ThreadPoolExecutor(1) as pool:
        purged = pool.submit(purge)
        errors = sorted(row.error for row in generate(plan).rows)
        purged.result()
    assert up.request("POST", "/api/v1/queues/headrace.narrow/resume", b"")[0] == 200
    assert errors == ["429 queue-full"] * 7 + ["cancelled"] * 3


def refused(up: RunningUp) -> int:
    """How many jobs of the model `narrow` the server has refused."""
    with urllib.request.urlopen(f"http://127.0.0.1:{up.port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    found = re.findall(r'headrace_jobs_rejected_total\{.*model="narrow".*\} (\S+)', text)
    return sum(int(float(count)) for count in found)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere", "-i", "in.json"), "no model 'nowhere' is registered"),
        (("echo",), "the input is missing"),
        (("echo", "-i", "no.json"), "no.json: cannot be read: No such file"),
        (("echo", "-i", "in.json", "--slo", "fast"), "write it as p99=100ms or p95=2s"),
        (("echo", "-i", "in.json", "--rate", "20,many"), "'many' is not a rate"),
        (("echo", "-i", "in.json", "--find-peak"), "--find-peak needs an objective"),
        (("echo", "-i", "in.json", "--find-peak", "--rate", "3"), "remove --rate"),
        (("echo", "-i", "in.json", "--protocol", "grpc"), "use headrace, torchserve or triton"),
        (("echo", "-i", "in.json", "--rate", "5", "--rows", "x.csv"), ".parquet or .jsonl"),
        (
            ("echo", "-i", "in.json", "--duration", "1", "--warm-up", "5"),
            "a warm-up of 5 s leaves nothing of a load of 1 s to measure",
        ),
        (
            ("echo", "-i", "in.json", "--param", "foo=1"),
            "--param foo: model echo has no such parameter, and jobs no such option",
        ),
        (("echo", "-i", "in.json", "--param", "priority=x"), "--param priority: "),
        (("echo", "-i", "in.json", "--json", "no/x.json"), "its folder does not exist"),
        (("echo", "-i", "in.json", "--html", "."), "it is a folder"),
        (("echo", "--sweep", "in.json"), "expected modes of the model"),
    ],
)
def test_a_mistake_is_named(cli: Commands, arguments: tuple[str, ...], words: str) -> None:
    assert words in cli.complaint("bench", *arguments, rc=2)


def test_a_server_that_is_away_is_exit_code_3(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text("1")
    cli = CommandsWithin("http://127.0.0.1:9", tmp_path)
    text = cli.complaint("bench", "echo", "-i", "in.json", "--rate", "5", rc=3)
    assert "http://127.0.0.1:9 does not answer" in text
