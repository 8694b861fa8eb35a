"""`headrace run` against real servers: kills of all parts, stops, cancels, and going on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace import Client
from tests.harness.clients.commands import Commands, CommandsWithin, interrupted
from tests.harness.servers.api_process import ApiProcess, api_process
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Worker, celery_worker, write_models

ALWAYS = ("--appendonly", "yes", "--appendfsync", "always")
END_S = 100


@dataclass
class Site:
    """All parts, each of which a test may kill; and the command line."""

    redis: RedisServer
    api: ApiProcess
    worker: Worker
    log: Path
    shared: Path

    def runs(self) -> Counter[str]:
        """How often each job has begun."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return Counter(line.split()[0] for line in lines)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("runs")
    log, shared = folder / "runs.log", folder / "shared"
    shared.mkdir()
    models = write_models(
        folder,
        steps={
            "handler": f"{HANDLERS / 'trouble/tricky.py'}:Tricky", "max_batch_size": 16,
            "options": {"log": str(log), "pause_s": 0.02},
        },
        slow={
            "handler": f"{HANDLERS / 'trouble/tricky.py'}:Tricky", "max_batch_size": 4,
            "options": {"pause_s": 0.1},
        },
        gated={"handler": f"{HANDLERS / 'gated.py'}:Gated", "max_batch_size": 4, "max_retries": 0},
    )  # fmt: skip
    with (
        redis_server("valkey9", *ALWAYS) as redis,
        api_process(redis.url, models, input_roots=str(shared)) as api,
        celery_worker(
            redis.url,
            models,
            folder,
            arguments=(),
            environ={"HEADRACE_LEASE_TTL_S": "2", "HEADRACE_INPUT_ROOTS": str(shared)},
        ) as worker,
    ):
        worker.wait_ready("steps", "slow", "gated")
        yield Site(redis, api, worker, log, shared)


class Cli(CommandsWithin):
    """Commands within the test, but what begins a run or goes on with one: that is a process."""

    def run(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        begins = arguments[0] == "run" or arguments[:2] == ("runs", "resume")
        how: type[Commands] = Commands if begins else CommandsWithin
        return how.run(self, *arguments, stdin=stdin)


@pytest.fixture
def cli(site: Site, tmp_path: Path) -> Commands:
    return Cli(site.api.url, tmp_path)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """Inputs of `gated` wait for this file, which is there in the end in any case."""
    path = tmp_path / "gate"
    yield path
    path.touch()


def inputs(folder: Path, count: int, value: Any = None) -> None:
    """Write `in.jsonl`."""
    with (folder / "in.jsonl").open("w") as file:
        for n in range(count):
            given = {"n": n, **(value or {})}
            file.write(json.dumps({"id": f"doc-{n}", "x": given, "label": n % 3}) + "\n")


def rows(path: Path) -> dict[int, dict[str, Any]]:
    """Return the whole rows by number; each exists once."""
    lines = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    assert [n for n, count in Counter(line["n"] for line in lines).items() if count > 1] == []
    return {line["n"]: line for line in lines}


def written(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


#: Few are under way, as those that are stay so when it stops, before what the next test submits.
SLOW = ("run", "slow", "in.jsonl", "-o", "out.jsonl", "--input", "x", "--in-flight", "40",
        "--run-id")  # fmt: skip
STEPS = ("run", "steps", "in.jsonl", "-o", "out.jsonl", "--input", "x", "--key", "id",
         "--in-flight", "200", "--run-id")  # fmt: skip


@contextmanager
def going(cli: Commands, *arguments: str, rows_more: int = 60) -> Iterator[Any]:
    """The command while it runs, from when it has written so many rows more."""
    out = cli.folder / "out.jsonl"
    before = written(out)
    with cli.started(*arguments) as process:

        def far_enough() -> bool:
            if written(out) >= before + rows_more:
                return True
            assert process.poll() is None, process.communicate()
            return False

        wait_until(far_enough, "rows are written", END_S)
        yield process


@pytest.mark.slow
def test_kills_of_every_part_lose_nothing_and_run_nothing_twice_that_had_ended(
    site: Site, cli: Commands
) -> None:
    inputs(cli.folder, 1500)
    out = cli.folder / "out.jsonl"
    had_row: list[tuple[set[str], Counter[str]]] = []

    def note() -> None:
        ended = {f"killed.{n}" for n in rows(out)}
        begun = site.runs()
        had_row.append((ended, Counter({job_id: begun[job_id] for job_id in ended})))

    with going(cli, *STEPS, "killed") as process:
        process.kill()
        process.wait(60)
    note()
    with out.open("ab") as file:
        # What the kill might have left of a row.
        file.write(b'{"n":1499,"key":"doc-14')
    with going(cli, *STEPS, "killed"):
        note()
        site.api.kill()
        site.api.start()
    note()
    with going(cli, *STEPS, "killed", rows_more=120) as process:
        site.worker.kill()
        site.worker.start()
        note()
        site.redis.stop(kill=True)
        site.redis.start()
        printed = process.communicate(timeout=END_S)[1].decode()
        assert process.returncode == 0, printed
    found = rows(out)
    assert set(found) == set(range(1500))
    for n, row in found.items():
        expected = (f"doc-{n}", "succeeded", {"n": n}, f"doc-{n}", n % 3)
        assert (row["key"], row["status"], row["result"], row["id"], row["label"]) == expected
    runs = site.runs()
    for ended, begun in had_row:
        assert {job_id: runs[job_id] for job_id in ended} == dict(begun)
    assert "resumed: " in printed
    with Client(site.api.url) as client:
        record = client.run_record("killed")
    assert (record.state, record.succeeded, record.output) == ("ended", 1500, str(out))
    # What this process has made safe, the server has forgotten.
    with site.redis.client() as redis:
        kept = {key.decode().removeprefix("hr:job:") for key in redis.scan_iter("hr:job:killed.*")}
    assert kept <= had_row[2][0]


def test_ctrl_c_prints_how_to_resume_and_resume_does(site: Site, cli: Commands) -> None:
    inputs(cli.folder, 1200)
    with going(cli, *SLOW, "paused", rows_more=10) as process:
        refused = cli.complaint(*SLOW, "paused", rc=2)
        assert f"another run writes {cli.folder / 'out.jsonl'}: process {process.pid}" in refused
        running = cli.json("runs", "show", "paused")[0]
        assert (running["state"], running["model"], running["total"]) == ("running", "slow", 1200)
        code, _, printed = interrupted(process)
    assert code == 130, printed
    assert "jobs in flight continue" in printed
    assert "headrace runs resume paused" in printed
    assert cli.json("runs", "show", "paused")[0]["state"] == "stopped"
    before = written(cli.folder / "out.jsonl")
    assert before < 1200
    # Under another source the output is another's.
    with (cli.folder / "in.jsonl").open("a") as file:
        file.write("{}\n")
    refused = cli.complaint(*SLOW, "paused", rc=2)
    assert "has changed since it began: a file's name, size or time is another" in refused
    (cli.folder / "in.jsonl").unlink()
    assert "no such file" in cli.complaint("runs", "resume", "paused", rc=2)


def test_a_misspelt_column_leaves_nothing_in_the_way(site: Site, cli: Commands) -> None:
    (cli.folder / "in.csv").write_text("id,text\n1,a\n2,b\n")
    command = ("run", "slow", "in.csv", "-o", "out.jsonl", "--key", "id", "--input")
    complaint = cli.complaint(*command, "txet", rc=2)
    assert "did you mean text? It has 'id', 'text'" in complaint
    assert "resumed" not in complaint
    assert not list(cli.folder.glob("out*"))
    assert "2 succeeded" in cli.complaint(*command, "text", rc=0)
    assert written(cli.folder / "out.jsonl") == 2


@pytest.mark.slow
def test_resume_is_the_command_that_began(site: Site, cli: Commands) -> None:
    inputs(cli.folder, 200)
    with going(cli, *SLOW, "night", "--name", "last night", rows_more=10) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(END_S) == 143
    ended = Commands(cli.url, Path("/")).run("runs", "resume", "night")
    assert ended.returncode == 0, ended.stderr
    assert b"resumed: " in ended.stderr
    assert len(rows(cli.folder / "out.jsonl")) == 200
    assert "already ended" in cli.complaint(*SLOW, "night", "--name", "last night", rc=0)
    listed = cli.lines("runs")
    assert any("night" in line and "200 of 200" in line for line in listed), listed
    assert "no run 'none'" in cli.complaint("runs", "show", "none", rc=4)
    assert "already ended" in cli.complaint("runs", "resume", "last night", rc=0)
    assert b"night" in cli.run("runs", "show", "last night").stdout
    inputs(cli.folder, 3)
    again = ("run", "steps", "in.jsonl", "-o", "again.jsonl", "--input", "x")
    cli.complaint(*again, "--name", "last night", rc=0)
    assert "2 runs are called 'last night'" in cli.complaint("runs", "show", "last night", rc=2)


def test_the_first_inputs_of_a_source_and_one_without_inputs(cli: Commands) -> None:
    inputs(cli.folder, 30)
    begin = ("run", "steps", "in.jsonl", "-o", "first.jsonl", "--input", "x")
    command = (*begin, "--limit", "7")
    assert "7 succeeded" in cli.complaint(*command, rc=0)
    assert "already ended: 7 succeeded" in cli.complaint(*command, rc=0)
    assert sorted(rows(cli.folder / "first.jsonl")) == list(range(7))
    assert "limit" in cli.complaint(*begin, rc=2)
    (cli.folder / "empty.csv").write_text("a,b\n")
    printed = cli.complaint("run", "steps", "empty.csv", "-o", "empty.jsonl", rc=0)
    assert "warning: empty.csv has no inputs" in printed
    printed = cli.complaint("run", "steps", "-", "-o", "none.jsonl", rc=0)
    assert "warning: standard input has no inputs" in printed


def test_a_cancel_from_elsewhere_ends_it_and_what_is_under_way(
    site: Site, cli: Commands, gate: Path
) -> None:
    inputs(cli.folder, 40, {"until": str(gate)})
    command = ("run", "gated", "in.jsonl", "-o", "out.jsonl", "--input", "x", "--run-id", "gone",
               "--in-flight", "20")  # fmt: skip
    with cli.started(*command) as process:
        wait_until(lambda: cli.under_way("gated") == 20, "all that may be is under way", END_S)
        wait_until(
            lambda: cli.run("runs", "cancel", "gone").returncode == 0, "it is reported", END_S
        )
        _, printed = process.communicate(timeout=END_S)
        assert process.returncode == 1
    assert b"cancelled: " in printed
    gate.touch()
    wait_until(lambda: cli.under_way("gated") == 0, "nothing is left", END_S)
    assert cli.json("runs", "show", "gone")[0]["state"] == "cancelled"
    found = rows(cli.folder / "out.jsonl")
    assert {row["status"] for row in found.values()} == {"cancelled"}
    # Going on ends the rest; what was cancelled is run again on demand.
    assert cli.run(*command).returncode == 1
    assert cli.run(*command, "--only-failed").returncode == 0
    assert {row["status"] for row in rows(cli.folder / "out.jsonl").values()} == {"succeeded"}


def test_files_of_a_folder_and_a_list_of_paths(site: Site, cli: Commands) -> None:
    (cli.folder / "in/deep").mkdir(parents=True)
    for n in range(5):
        (cli.folder / f"in/deep/{n}.json").write_text(json.dumps({"n": n}))
    (cli.folder / "in/bad.json").write_text("{")
    printed = cli.run("run", "steps", "in", "-o", "a.jsonl", "--json", "--glob", "*.json")
    assert printed.returncode == 1, printed.stderr
    counts = json.loads(printed.stdout)
    assert (counts["succeeded"], counts["failed"], counts["state"]) == (5, 1, "ended")
    assert b"the first failure: bad.json: " in printed.stderr
    found = {row["key"]: row for row in rows(cli.folder / "a.jsonl").values()}
    assert found["deep/3.json"]["result"] == {"n": 3}
    assert found["bad.json"]["status"] == "rejected"
    assert "is not JSON" in found["bad.json"]["error"]["message"]
    assert found["deep/3.json"]["timings"]["total"] > 0
    paths = b"in/deep/1.json\nin/deep/none.json\n"
    assert cli.run("run", "steps", "-", "-o", "b.jsonl", stdin=paths).returncode == 1
    assert cli.run("run", "steps", "-", "-o", "b.jsonl", stdin=paths).returncode == 1
    longer = cli.complaint("run", "steps", "-", "-o", "b.jsonl", rc=2, stdin=paths + b"x\n")
    assert "standard input has more lines" in longer
    by_path = [
        (row["key"], row["status"]) for _, row in sorted(rows(cli.folder / "b.jsonl").items())
    ]
    assert sorted(by_path) == [("in/deep/1.json", "succeeded"), ("in/deep/none.json", "rejected")]


def test_files_that_the_server_reads_by_itself(site: Site, cli: Commands) -> None:
    for n in range(5):
        (site.shared / f"{n}.json").write_text(json.dumps({"n": n}))
    (site.shared / "bad.json").write_text("{")
    (site.shared / "link.json").symlink_to(site.shared / "1.json")
    (site.shared / os.fsdecode(b"\xff.json")).write_text("{}")
    given = ("run", "steps", str(site.shared), "-o", "a.jsonl", "--by-ref")
    assert cli.run(*given).returncode == 1
    found = {row["key"]: row for row in rows(cli.folder / "a.jsonl").values()}
    assert [found[f"{n}.json"]["result"] for n in range(5)] == [{"n": n} for n in range(5)]
    # The worker has met it, and not this command.
    assert found["bad.json"]["status"] == "failed"
    assert found["link.json"]["status"] == "rejected"
    assert "is not UTF-8" in found["\\xff.json"]["error"]["message"]
    other = ("run", "steps", "-", "-o", "b.jsonl", "--by-ref")
    (cli.folder / "1.json").write_text("{}")
    printed = cli.complaint(*other, rc=2, stdin=b"1.json\n")
    assert "input_roots" in printed
    # Nothing has ended by that: once it may be named the same command goes on.
    assert rows(cli.folder / "b.jsonl") == {}
    assert "a run whose option" in cli.complaint(*given[:-1], rc=2)


def test_what_cannot_be_run_leaves_nothing_behind(site: Site, cli: Commands) -> None:
    inputs(cli.folder, 3)
    (cli.folder / "full.jsonl").symlink_to("/dev/full")
    before = sorted(cli.folder.iterdir())
    printed = cli.complaint("run", "steps", "in.jsonl", "-o", "full.jsonl", rc=1)
    assert "the output cannot be written" in printed
    for words, *arguments in (
        ("no model 'stepz' is registered", "run", "stepz", "in.jsonl", "-o", "out.jsonl"),
        ("no such file or folder", "run", "steps", "none", "-o", "out.jsonl"),
        ("unknown kind of output", "run", "steps", "in.jsonl", "-o", "out.txt"),
        ("--glob means nothing", "run", "steps", "in.jsonl", "-o", "o.jsonl", "--glob", "*"),
        ("--by-ref means nothing", "run", "steps", "in.jsonl", "-o", "o.jsonl", "--by-ref"),
    ):
        assert words in cli.complaint(*arguments, rc=2)
    assert sorted(cli.folder.iterdir()) == before
