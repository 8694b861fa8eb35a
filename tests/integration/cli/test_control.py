"""`headrace queues` and `headrace dead` against a server; `--input-ref`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.server.ports import free_port
from tests.harness.clients.commands import Commands, CommandsWithin, completed, offered, records
from tests.harness.deployments.shared import SharedDeployment
from tests.harness.deployments.site import Site
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS

NO_JOB = b"\xff no \x1b[31mjob"


@pytest.fixture(scope="module")
def site(
    shared_deployment: SharedDeployment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    tricky = {"handler": f"{HANDLERS / 'trouble/tricky.py'}:Tricky", "max_retries": 0}
    folder = tmp_path_factory.mktemp("control")
    with shared_deployment.site(folder, {"echo": {"handler": "echo"}, "tricky": tricky}) as running:
        yield running


@pytest.fixture
def cli(site: Site, tmp_path: Path) -> Iterator[Commands]:
    commands = CommandsWithin(site.api.url, tmp_path)
    yield commands
    for model in ("echo", "tricky"):
        for path in (f"queues/headrace.{model}/resume", f"queues/headrace.{model}/purge"):
            site.api.http.post(f"/api/v1/{path}").raise_for_status()
        # What still runs would be a dead letter in the midst of the next test.
        wait_until(lambda model=model: commands.under_way(model) == 0, "nothing runs", 60)  # type: ignore[misc]
        purge = f"/api/v1/models/{model}/dead-letters/purge"
        site.api.http.post(purge, json={"all": True}).raise_for_status()


def dead(cli: Commands, count: int) -> list[str]:
    """Ids of so many dead letters of the model tricky, in the order of their deaths."""
    ids = []
    for number in range(count):
        value = json.dumps({"do": "transient", "n": number})
        ids.append(cli.json("submit", "tricky", "--json-input", value, "--wait", rc=1)[0]["id"])
    return ids


def refused(site: Site, cli: Commands, raw: bytes = NO_JOB) -> str:
    """The name of the letter of a message that is no job."""
    site.client.redis.lpush("headrace.echo", raw)

    def name() -> str:
        return "".join(letter["id"] for letter in cli.json("dead", "list", "echo"))

    return wait_until(name, "the message was refused", 30)


def deaths(cli: Commands) -> dict[str, str]:
    """When each letter of the model tricky died."""
    return {one["id"]: one["died_at"] for one in cli.json("dead", "list", "tricky")}


def test_dead_letters_are_listed_newest_first_over_models(cli: Commands, site: Site) -> None:
    assert cli.lines("dead", "list") == []
    first, second = dead(cli, 2)
    raw = refused(site, cli)
    head, *rows = cli.lines("dead", "list")
    assert head.split() == ["ID", "MODEL", "REASON", "ATTEMPTS", "SUBMITTED", "DIED", "ERROR"]
    assert [row.split()[:4] for row in rows] == [
        [raw, "echo", "not-json", "0"],
        [second, "tricky", "transient-error", "1"],
        [first, "tricky", "transient-error", "1"],
    ]
    assert rows[1].endswith("ago  try again")
    letters = cli.json("dead", "list", "--limit", "2")
    assert [letter["id"] for letter in letters] == [raw, second]
    assert letters[1]["model"] == "tricky"
    assert "traceback" not in letters[1]
    assert [one["id"] for one in cli.json("dead", "list", "tricky", "--limit", "0")] == [
        second,
        first,
    ]


def test_a_letter_is_shown_with_its_traceback_or_its_bytes(cli: Commands, site: Site) -> None:
    (job_id,) = dead(cli, 1)
    shown = "\n".join(cli.lines("dead", "show", "tricky", job_id))
    assert f"id         {job_id}\nmodel      tricky\nreason     transient-error\n" in shown
    assert 'raise TransientError("try again")' in shown
    assert "message" not in shown
    (whole,) = cli.json("dead", "show", "tricky", job_id)
    raw = cli.run("dead", "show", "tricky", job_id, "--raw").stdout
    assert raw.decode() == whole["message"]["text"]
    assert msgspec.json.decode(raw)["headers"]["id"] == job_id

    name = refused(site, cli)
    shown = "\n".join(cli.lines("dead", "show", "echo", name))
    assert "requeue   not possible: not a valid job" in shown
    assert shown.endswith("message, 13 bytes:\n\\xff no \\x1b[31mjob")
    assert cli.run("dead", "show", "echo", name, "--raw").stdout == NO_JOB
    code, shown = cli.on_terminal("dead", "show", "echo", name, "--raw")
    assert (code, "(13 bytes); redirect it to a file" in shown) == (2, True)


def test_a_long_message_is_cut_where_it_is_shown(cli: Commands, site: Site) -> None:
    name = refused(site, cli, b"x" * 5000)
    last = cli.lines("dead", "show", "echo", name)[-1]
    assert last == "x" * 2000 + "… (--raw prints all)"


def test_requeue_puts_back_some_or_all_and_says_what_is_left(cli: Commands, site: Site) -> None:
    ids = dead(cli, 3)
    before = deaths(cli)

    def died_again(*chosen: str) -> bool:
        now = deaths(cli)
        return all(now.get(job_id, "") > before[job_id] for job_id in chosen)

    ended = cli.run("dead", "requeue", "tricky", ids[0], "nobody")
    assert (ended.returncode, ended.stdout) == (4, b"1 requeued\n")
    assert b"nobody: no such dead letter of tricky" in ended.stderr
    wait_until(lambda: died_again(ids[0]), "it ran and died again", 30)
    assert deaths(cli)[ids[1]] == before[ids[1]]
    stdin = f"{ids[1]}\n{ids[2]} and more\n{ids[1]}\n".encode()
    assert cli.lines("dead", "requeue", "tricky", "-", stdin=stdin) == ["2 requeued"]
    wait_until(lambda: died_again(*ids), "the others did too", 30)
    (done,) = cli.json("dead", "requeue", "tricky", "--all")
    assert done == {"model": "tricky", "requeued": 3, "left": {}}

    name = refused(site, cli)
    ended = cli.run("dead", "requeue", "echo", "--all")
    assert (ended.returncode, ended.stdout) == (1, b"0 requeued\n")
    assert f"{name}: not requeued: it is not a valid job" in ended.stderr.decode()
    assert "give ids, or --all" in cli.complaint("dead", "requeue", "tricky", rc=2)
    both = cli.complaint("dead", "purge", "tricky", "a", "--all", rc=2)
    assert "--all cannot be combined with ids" in both


def test_purge_asks_on_a_terminal_and_removes_for_good(cli: Commands) -> None:
    ids = dead(cli, 3)
    code, shown = cli.on_terminal("dead", "purge", "tricky", "--all", typed="n\n")
    assert (code, "permanently delete all 3 dead letters of tricky?" in shown) == (1, True)
    assert "nothing was changed" in shown
    code, shown = cli.on_terminal("dead", "requeue", "tricky", "--all", typed="\x04")
    assert (code, "requeue all 3 dead letters of tricky?" in shown) == (130, True)
    assert len(deaths(cli)) == 3
    code, shown = cli.on_terminal("dead", "purge", "tricky", ids[0], typed="y\n")
    assert (code, "permanently delete 1 dead letter of tricky?" in shown) == (0, True)
    code, shown = cli.on_terminal("dead", "purge", "tricky", ids[1], "--yes")
    assert (code, shown) == (0, "1 deleted\r\n")
    ended = cli.run("dead", "purge", "tricky", ids[0], ids[2])
    assert (ended.returncode, ended.stdout) == (4, b"1 deleted\n")
    assert b"1 of these ids are not dead letters of tricky" in ended.stderr
    assert cli.json("dead", "purge", "tricky", "--all") == [{"model": "tricky", "purged": 0}]
    assert cli.json("jobs", ids[0])[0]["status"] == "failed"


def test_queues_are_paused_resumed_and_purged(cli: Commands) -> None:
    assert cli.lines("queues", "pause", "echo", "headrace.tricky", "echo") == [
        "headrace.echo  paused",
        "headrace.tricky  paused",
    ]
    head, *rows = cli.lines("queues")
    assert head.split() == ["QUEUE", "WAITING", "OLDEST", "LEASED", "SCHEDULED", "DEAD", "FREE"]
    assert [line.endswith("paused") for line in rows] == [True, True]
    ids = cli.lines("submit", "echo", "--text", "a", "--text", "b")
    ids += cli.lines("submit", "echo", "--text", "c", "--countdown", "600")
    question = "cancel all waiting and scheduled jobs of headrace.echo, headrace.tricky (3 jobs)?"
    code, shown = cli.on_terminal("queues", "purge", "echo", "tricky", typed="\n")
    assert (code, question in shown) == (1, True)
    code, shown = cli.on_terminal("queues", "purge", "tricky")  # nothing to ask about
    assert (code, shown) == (0, "headrace.tricky  0 cancelled\r\n")
    code, shown = cli.on_terminal("queues", "purge", "echo", typed="yes\n")
    assert (code, "headrace.echo  3 cancelled" in shown) == (0, True)
    assert {job["status"] for job in cli.json("jobs", *ids)} == {"cancelled"}
    assert cli.json("queues", "purge", "echo") == [
        {"name": "headrace.echo", "model": "echo", "cancelled": 0}
    ]
    (later,) = cli.lines("submit", "echo", "--text", "later")
    assert cli.json("queues", "resume", "echo", "tricky")[0] == {
        "name": "headrace.echo",
        "model": "echo",
        "paused": False,
    }
    assert cli.lines("result", "--wait", later) == ["later"]


def test_what_goes_wrong_has_its_exit_code(cli: Commands, tmp_path: Path) -> None:
    both = cli.complaint("queues", "pause", "echo", "ecko", rc=2)
    assert "no model ecko; did you mean echo?" in both
    assert not any(queue["paused"] for queue in cli.json("queues"))
    # An option that would be dropped in silence, and send the purge elsewhere.
    misplaced = cli.complaint("queues", "--url", "http://127.0.0.1:1", "purge", "echo", rc=2)
    assert "put it after purge" in misplaced
    for command in ("list", "show", "requeue", "purge"):
        arguments = ["dead", command, "trickx", *([] if command == "list" else ["a"])]
        assert "did you mean tricky?" in cli.complaint(*arguments, rc=2)
    assert "no such dead letter" in cli.complaint("dead", "show", "tricky", "a", rc=4)
    assert "no such dead letter" in cli.complaint("dead", "show", "tricky", "a", "--raw", rc=4)
    assert "--raw takes one id" in cli.complaint("dead", "show", "tricky", "a", "b", "--raw", rc=2)
    nobody = CommandsWithin(f"http://127.0.0.1:{free_port()}", tmp_path)
    assert "start it with `headrace up`" in nobody.complaint("dead", "list", rc=3)


@pytest.mark.slow
def test_the_shell_completes_commands_models_and_letters(cli: Commands) -> None:
    (job_id,) = dead(cli, 1)
    assert completed(cli.url, "queues", "") == ["pause", "resume", "purge"]
    assert offered(cli.url, "queues", "purge", "echo", "t") == ["tricky"]
    assert offered(cli.url, "dead", "show", "tricky", job_id[:4]) == [job_id]
    assert completed(cli.url, "dead", "purge", "nonsense", "") == []


def test_inputs_that_the_server_reads(cli: Commands, shared_deployment: SharedDeployment) -> None:
    roots = shared_deployment.inputs
    refs = []
    for number in range(2):
        (roots / f"{number}.txt").write_text(f"file {number}")
        refs.append(f"file:{roots}/{number}.txt")
    assert cli.lines("submit", "echo", "--input-ref", refs[0], "--wait") == ["file 0"]
    several = ("--input-ref", refs[1], "--input-ref", refs[0], "--wait", "--ordered")
    assert cli.lines("submit", "echo", *several) == [f'{refs[1]}: "file 1"', f'{refs[0]}: "file 0"']
    stdin = "\n".join([*refs, f"file:{roots}/gone.txt", "s3://unlisted/x"]).encode()
    listed: list[Any] = cli.json(
        "submit", "echo", "-", "--stdin", "refs", "--wait", "--ordered", stdin=stdin, rc=1
    )
    assert [(one["key"], one["status"]) for one in listed[:2]] == [
        (ref, "succeeded") for ref in refs
    ]
    assert [one["status"] for one in listed[2:]] == ["rejected", "rejected"]
    assert listed[3]["error"]["type"] == "input-forbidden"
    advice = cli.complaint("submit", "echo", refs[0] + "x", rc=2)
    assert f"--input-ref '{refs[0]}x'" in advice
    out = ("submit", "echo", "--input-ref", refs[0], "-o", "out.jsonl")
    assert cli.lines(*out) == []
    assert cli.lines(*out, "--resume") == []
    assert [one["key"] for one in records(cli.folder / "out.jsonl")] == [refs[0]]
