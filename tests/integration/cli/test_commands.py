"""The client commands against a server: what they print, and every exit code.

Most run within this process. They run as processes where the test needs that: for signals, pipes,
terminals, bytes on standard output, and the exit status that a shell sees.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.jobs.ids import new_id
from headrace.server.ports import free_port
from tests.harness.clients.commands import (
    Commands,
    CommandsWithin,
    completed,
    interrupted,
    offered,
    records,
)
from tests.harness.deployments.shared import SharedDeployment
from tests.harness.deployments.site import Site
from tests.harness.servers.up import clean_environment
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")


@pytest.fixture(scope="module")
def site(
    shared_deployment: SharedDeployment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("commands")
    gated = {"handler": f"{HANDLERS / 'gated.py'}:Gated", "max_batch_size": 1}
    with shared_deployment.site(folder, {"echo": {"handler": "echo"}, "gated": gated}) as running:
        yield running


@pytest.fixture
def cli(site: Site, tmp_path: Path) -> Commands:
    return CommandsWithin(site.api.url, tmp_path)


@pytest.fixture
def processes(cli: Commands) -> Commands:
    """The same commands, each as a process."""
    return Commands(cli.url, cli.folder)


@pytest.fixture
def gate(cli: Commands) -> Iterator[Path]:
    """A file for which inputs of the model `gated` wait; it is there at the end in any case."""
    path = cli.folder / "gate"
    yield path
    path.touch()
    wait_until(lambda: not any(queue["in_flight"] for queue in cli.json("queues")), "idle", 60)


@pytest.fixture
def files(cli: Commands) -> list[str]:
    """Names of a folder's files, in order."""
    folder = cli.folder / "in"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.json").write_text(f'{{"n": {number}}}')
    return [f"in/{number}.json" for number in range(3)]


def submitted(cli: Commands, gate: Path, count: int) -> list[str]:
    """Ids of jobs that end once the gate is there."""
    values = [json.dumps({"until": str(gate), "n": number}) for number in range(count)]
    return cli.lines("submit", "gated", *(part for v in values for part in ("--json-input", v)))


def test_submit_prints_ids_in_order_and_result_takes_them(
    processes: Commands, files: list[str]
) -> None:
    ids = processes.lines("submit", "echo", *files)
    assert len(ids) == len(set(ids)) == 3
    results = processes.lines("result", "--wait", "-", stdin="\n".join(ids).encode())
    assert results == [f'{job_id}: {{"n":{number}}}' for number, job_id in enumerate(ids)]


def test_a_lone_result_is_printed_as_it_is(
    cli: Commands, processes: Commands, files: list[str]
) -> None:
    assert cli.lines("submit", "echo", files[1], "--wait") == ['{"n":1}']
    assert processes.lines("submit", "echo", "--text", "wäter", "--wait") == ["wäter"]
    (cli.folder / "a.png").write_bytes(PNG)
    assert processes.run("submit", "echo", "a.png", "--wait").stdout == PNG
    (job_id,) = cli.lines("submit", "echo", "a.png", "--id", "scan-1")
    assert job_id == "scan-1"
    assert cli.run("result", "scan-1", "--wait").stdout == PNG
    assert cli.lines("result", "scan-1", "-o", "out.png") == []
    assert (cli.folder / "out.png").read_bytes() == PNG


def test_of_several_each_is_behind_its_key_as_grep_has_it(cli: Commands, files: list[str]) -> None:
    expected = [f'{name}: {{"n":{number}}}' for number, name in enumerate(files)]
    assert cli.lines("submit", "echo", "in", "--wait", "--ordered") == expected
    assert sorted(cli.lines("submit", "echo", "in/*.json", "--wait")) == expected
    from_stdin = "\n".join(files).encode()
    assert sorted(cli.lines("submit", "echo", "-", "--wait", stdin=from_stdin)) == expected


def test_json_is_one_record_per_input_and_nothing_else(cli: Commands) -> None:
    stdin = b'{"x": 1}\n{nope\n"text"\n'
    one, bad, text = cli.json("submit", "echo", "-", "--wait", "--ordered", stdin=stdin, rc=1)
    assert (one["key"], one["status"], one["result"]) == ("stdin:1", "succeeded", {"x": 1})
    assert one["timings"]["total"] > 0
    assert (bad["key"], bad["id"], bad["status"]) == ("stdin:2", None, "rejected")
    assert bad["error"]["type"] == "invalid-request"
    assert (text["key"], text["result"]) == ("stdin:3", "text")
    (queued,) = cli.json("submit", "echo", "--json-input", "7")
    assert queued["status"] == "queued"


def test_results_of_several_go_to_a_folder(cli: Commands, files: list[str]) -> None:
    (cli.folder / "a.png").write_bytes(PNG)
    ids = cli.lines("submit", "echo", files[0], "a.png", "--text", "hello")
    (cli.folder / "out").mkdir()
    cli.lines("result", *ids, "--wait", "-o", "out")
    found = {path.name: path.read_bytes() for path in (cli.folder / "out").iterdir()}
    assert found == {
        f"{ids[0]}.json": b'{"n":0}\n',
        f"{ids[1]}.png": PNG,
        f"{ids[2]}.txt": b"hello",
    }
    assert "an existing folder" in cli.complaint("result", *ids, "-o", "one-file", rc=2)


def test_some_that_fail_make_it_1_and_the_rest_goes_on(cli: Commands, processes: Commands) -> None:
    stdin = b'{"n": 1}\n{"do": "raise", "n": 2}\n{"n": 3}\n'
    ended = processes.run("submit", "gated", "-", "--wait", "--ordered", stdin=stdin)
    assert ended.returncode == 1
    assert ended.stdout.decode().splitlines() == ['stdin:1: {"n":1}', 'stdin:3: {"n":3}']
    assert re.search(
        r"^headrace: stdin:2: failed: .*cannot do 2", ended.stderr.decode(), re.MULTILINE
    )
    assert "2 succeeded, 1 failed" in ended.stderr.decode()
    (job_id,) = cli.lines("submit", "gated", "--json-input", '{"do": "raise", "n": 4}')
    assert "cannot do 4" in cli.complaint("result", job_id, "--wait", rc=1)


def test_a_file_that_is_gone_by_then_fails_alone(cli: Commands, files: list[str]) -> None:
    stdin = f"{files[0]}\nin/gone.json\n{files[2]}\n".encode()
    found = cli.json("submit", "echo", "-", "--wait", "--ordered", stdin=stdin, rc=1)
    assert [one["status"] for one in found] == ["succeeded", "rejected", "succeeded"]
    (cli.folder / "bad.json").write_text("{")
    found = cli.json("submit", "echo", files[0], "bad.json", "--wait", "--ordered", rc=1)
    assert [one["status"] for one in found] == ["succeeded", "rejected"]
    assert "bad.json" in found[1]["error"]["message"]


def test_what_cannot_be_understood_is_2(
    cli: Commands, processes: Commands, files: list[str]
) -> None:
    assert "did you mean echo?" in processes.complaint("submit", "ecko", *files, rc=2)
    assert "did you mean echo?" in cli.complaint("submit", "ecko", *files, "--wait", rc=2)
    assert "no such file" in cli.complaint("submit", "echo", "nothing.png", rc=2)
    assert "--resume" in cli.complaint("submit", "echo", *files, "--resume", rc=2)
    assert "one input" in cli.complaint("submit", "echo", *files, "--id", "a", rc=2)
    assert "not a JSON object" in cli.complaint("submit", "echo", *files, "--metadata", "3", rc=2)
    assert "--expires" in cli.complaint("submit", "echo", *files, "--expires", "0", rc=2)
    assert "--id" in cli.complaint("submit", "echo", files[0], "--id", "a b", rc=2)
    assert "ids cannot be combined" in cli.complaint("jobs", "a", "--model", "echo", rc=2)
    assert "did you mean echo?" in cli.complaint("models", "ecko", rc=2)
    assert "not the address" in cli.complaint("models", "--url", "ftp://x", rc=2)


def test_a_failed_tls_connection_is_not_a_server_that_is_down(cli: Commands) -> None:
    within = CommandsWithin(cli.url.replace("http:", "https:"), cli.folder)
    refused = within.complaint("models", rc=3)
    assert "set an http:// address" in refused
    assert "headrace up" not in refused


@pytest.mark.parametrize(
    "command",
    [
        ("submit", "echo", "--text", "a"),
        ("submit", "echo", "--text", "a", "--wait"),
        ("result", "a"),
        ("jobs",),
        ("jobs", "a"),
        ("cancel", "a"),
        ("models",),
        ("queues",),
    ],
)
def test_a_server_that_does_not_answer_is_3(tmp_path: Path, command: tuple[str, ...]) -> None:
    nobody = CommandsWithin(f"http://127.0.0.1:{free_port()}", tmp_path)
    assert "start it with `headrace up`" in nobody.complaint(*command, rc=3)


def test_an_unknown_id_is_4_and_the_others_are_served(cli: Commands) -> None:
    known, unknown = *cli.lines("submit", "echo", "--text", "a"), new_id()
    wait_until(lambda: cli.json("jobs", known)[0]["status"] == "succeeded", "it ends")
    for command in ("result", "jobs", "cancel"):
        ended = cli.run(command, unknown, known)
        assert ended.returncode == 4
        assert f"{unknown}: no such job" in ended.stderr.decode()
        assert known in ended.stdout.decode()


def test_what_has_not_ended_in_time_is_5_and_goes_on(cli: Commands, gate: Path) -> None:
    ids = submitted(cli, gate, 2)
    assert "use --wait to wait for it" in cli.complaint("result", ids[0], rc=5)
    assert f"headrace result {ids[1]}" in cli.complaint("result", *ids, "--timeout", "0.1", rc=5)
    value = json.dumps({"until": str(gate), "n": 3})
    err = cli.complaint("submit", "gated", "--json-input", value, "--timeout", "0.5", rc=5)
    assert "within 0.5 s" in err
    assert "`headrace models gated` shows if the model is loaded" in err
    (left,) = UUID.findall(err)
    gate.touch()
    assert json.loads(cli.lines("result", left, "--wait")[0])["n"] == 3


def test_ctrl_c_is_130_and_names_what_goes_on(cli: Commands, gate: Path) -> None:
    inputs = [json.dumps({"n": 0}), *(json.dumps({"until": str(gate), "n": n}) for n in (1, 2))]
    options = [part for value in inputs for part in ("--json-input", value)]
    with cli.started("submit", "gated", *options, "--wait") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b'json-input:1: {"n":0}\n'
        code, _, err = interrupted(process)
    assert code == 130
    assert "done: 1, in flight: 2" in err
    command = re.search(r"headrace (result --wait .*)", err)
    assert command
    gate.touch()
    results = cli.lines(*command[1].split())
    assert [json.loads(line.partition(": ")[2])["n"] for line in results] == [1, 2]


def test_ctrl_c_leaves_a_file_that_resume_goes_on_with(cli: Commands, gate: Path) -> None:
    out = cli.folder / "out.jsonl"
    (cli.folder / "in").mkdir()
    for number in range(4):
        value = {"n": number} if number < 2 else {"until": str(gate), "n": number}
        (cli.folder / f"in/{number}.json").write_text(json.dumps(value))
    (cli.folder / "in/4.json").write_text('{"do": "raise", "n": 4}')
    command = ("submit", "gated", "in", "-o", "out.jsonl", "--in-flight", "3")
    with cli.started(*command) as process:
        wait_until(lambda: out.exists() and len(records(out)) == 2, "two have ended", 30)
        wait_until(lambda: cli.under_way("gated") == 3, "the other three are submitted", 30)
        code, _, err = interrupted(process)
    assert code == 130
    assert "the same command and --resume" in err
    under_way = {one["key"]: one["id"] for one in records(out) if one["status"] == "submitted"}
    assert list(under_way) == ["in/2.json", "in/3.json", "in/4.json"]

    assert "--resume" in cli.complaint(*command, rc=2)
    gate.touch()
    err = cli.complaint(*command, "--resume", rc=1)
    assert "2 succeeded, 1 failed, 2 already done" in err
    last = {one["key"]: one for one in records(out)}
    assert [last[f"in/{n}.json"]["status"] for n in range(5)] == ["succeeded"] * 4 + ["failed"]
    assert {key: last[key]["id"] for key in under_way} == under_way
    wait_until(lambda: len(cli.json("jobs", *under_way.values())) == 3, "all are known")


def test_jobs_are_listed_newest_first_and_chosen(cli: Commands) -> None:
    ids = [cli.lines("submit", "echo", "--text", text)[0] for text in "abc"]
    wait_until(lambda: all(j["status"] == "succeeded" for j in cli.json("jobs", *ids)), "they end")
    assert [job["id"] for job in cli.json("jobs", "--model", "echo", "--limit", "3")] == ids[::-1]
    assert cli.json("jobs", "--status", "queued", "--model", "echo") == []
    both = ("--status", "queued", "--status", "succeeded", "--limit", "1")
    assert [job["id"] for job in cli.json("jobs", *both)] == [ids[2]]
    assert ids[2] in {job["id"] for job in cli.json("jobs", "--since", "10m", "--limit", "0")}
    assert cli.json("jobs", "--since", "2100-01-01") == []
    head, row = cli.lines("jobs", ids[0])
    assert head.split() == ["ID", "MODEL", "STATUS", "CREATED", "TOOK"]
    assert row.startswith(f"{ids[0]}  echo   succeeded")


def test_sigterm_is_143_and_leaves_the_file_as_ctrl_c_does(cli: Commands, gate: Path) -> None:
    value = json.dumps({"until": str(gate)})
    with cli.started("submit", "gated", "--json-input", value, "-o", "out.jsonl") as process:
        wait_until(lambda: cli.under_way("gated") == 1, "it is submitted", 30)
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert b"ended by SIGTERM" in err
    assert [one["status"] for one in records(cli.folder / "out.jsonl")] == ["submitted"]


def test_a_full_disk_is_1_and_the_message_says_so(processes: Commands, files: list[str]) -> None:
    err = processes.complaint("submit", "echo", *files, "-o", "/dev/full", rc=1)
    assert "cannot be written: No space left on device" in err
    assert "done: 0, in flight: 3. Jobs that were accepted continue; get their results with:" in err
    assert len(UUID.findall(err)) == 3
    assert "Traceback" not in err


def test_a_reader_that_has_gone_ends_the_command_without_a_traceback(cli: Commands) -> None:
    lines = "\n".join(f"[{number}]" for number in range(100))
    reader, writer = os.pipe()
    os.close(reader)
    try:
        process = subprocess.run(
            [sys.executable, "-P", "-m", "headrace", "submit", "echo", "-", "--wait", "--quiet"],
            cwd=cli.folder, env=clean_environment(HEADRACE_URL=cli.url), input=lines,
            stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    finally:
        os.close(writer)
    assert (process.returncode, process.stderr) == (1, "")


def test_cancel_says_what_came_of_each(cli: Commands, gate: Path) -> None:
    ids = submitted(cli, gate, 3)
    wait_until(lambda: cli.json("jobs", ids[0])[0]["status"] == "running", "the first runs")
    waiting = [job["id"] for job in cli.json("jobs", *ids) if job["status"] == "queued"]
    assert waiting
    assert cli.lines("cancel", waiting[-1]) == [f"{waiting[-1]}  cancelled"]
    assert cli.lines("cancel", waiting[-1]) == [f"{waiting[-1]}  already cancelled"]
    assert cli.json("cancel", ids[0]) == [{"id": ids[0], "outcome": "asked", "status": "running"}]
    gate.touch()
    (done,) = cli.lines("submit", "echo", "--text", "a")
    wait_until(lambda: cli.json("jobs", done)[0]["status"] == "succeeded", "it ends")
    assert cli.lines("cancel", done, rc=1) == [f"{done}  already succeeded"]


def test_models_and_queues_are_tables_or_json(cli: Commands) -> None:
    head, echo, gated = cli.lines("models")
    assert head.split() == ["MODEL", "VERSION", "STATE", "REPLICAS", "QUEUE"]
    assert echo.split() == ["echo", "1.0", "ready", "1", "headrace.echo"]
    assert gated.split()[0] == "gated"
    assert [model["name"] for model in cli.json("models")] == ["echo", "gated"]
    (model,) = cli.json("models", "echo")
    assert model["workers"]
    assert "max batch size      32" in cli.lines("models", "echo")
    assert cli.lines("queues")[1].split()[0] == "headrace.echo"
    assert [queue["model"] for queue in cli.json("queues")] == ["echo", "gated"]


def test_a_paused_queue_says_so(cli: Commands, site: Site) -> None:
    site.api.http.post("/api/v1/queues/headrace.echo/pause").raise_for_status()
    try:
        shown = cli.lines("queues")[1:]
    finally:
        site.api.http.post("/api/v1/queues/headrace.echo/resume").raise_for_status()
    assert [line.endswith("paused") for line in shown] == [True, False]


def test_the_shell_completes_models_of_the_server(cli: Commands) -> None:
    assert offered(cli.url, "submit", "e") == ["echo"]
    assert offered(cli.url, "jobs", "--model", "") == ["echo", "gated"]
    assert offered("http://127.0.0.1:1", "models", "--url", cli.url, "g") == ["gated"]
    assert completed("http://127.0.0.1:1", "jobs", "--status", "run") == ["running"]


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense://", "http://[", "mute"])
def test_and_nothing_where_none_answers(url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        here = f"http://127.0.0.1:{mute.getsockname()[1]}"
        assert completed(here if url == "mute" else url, "submit", "") == []


@pytest.mark.slow
def test_on_a_terminal_there_is_a_bar_and_nothing_is_cut(cli: Commands, files: list[str]) -> None:
    code, shown = cli.on_terminal("submit", "echo", "in", "--wait", "--ordered")
    assert code == 0
    assert "3/3" in shown
    for number, name in enumerate(files):
        assert f'{name}: {{"n":{number}}}' in shown
    code, shown = cli.on_terminal("submit", "echo", *files, columns=40)
    assert code == 0
    ids = UUID.findall(shown)
    assert [f"{job_id}  {name}" in shown for job_id, name in zip(ids, files, strict=True)]
    code, shown = cli.on_terminal("jobs", *ids, columns=40)
    assert UUID.findall(shown) == ids
    code, shown = cli.on_terminal("submit", "echo", "in", "--wait", "--quiet")
    assert "3/3" not in shown
    code, shown = cli.on_terminal("run", "echo", "in", "-o", "rows.jsonl")
    assert code == 0
    assert "3/3" in shown


def test_a_terminal_gets_no_bytes(cli: Commands) -> None:
    (cli.folder / "a.png").write_bytes(PNG)
    code, shown = cli.on_terminal("submit", "echo", "a.png", "--wait")
    assert code == 2
    assert "(264 bytes); redirect it to a file" in shown
