"""The client commands when the server goes away in the middle and stays away."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.harness.clients.commands import CommandsWithin, records
from tests.harness.fakes.proxy import proxy
from tests.harness.fakes.worker import FakeWorker
from tests.harness.processes.processes import suspend
from tests.harness.servers.api_process import api_process
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.servers.up import running_up, write_models
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS


@pytest.mark.slow
def test_a_server_that_stays_away_is_3_and_the_file_says_what_goes_on(tmp_path: Path) -> None:
    gated = {"handler": f"{HANDLERS / 'gated.py'}:Gated"}
    with running_up(tmp_path, models=write_models(tmp_path, {"gated": gated})) as up:
        cli = CommandsWithin(f"http://127.0.0.1:{up.port}", tmp_path)
        value = json.dumps({"until": str(tmp_path / "gate")})
        command = ("submit", "gated", "--json-input", value, "-o", "out.jsonl")
        with cli.started(*command, "--retry", "0.5") as process:
            wait_until(lambda: cli.under_way("gated") == 1, "it is submitted", 60)
            suspend(up.process.pid)  # it starts no other, and keeps the socket
            try:
                os.kill(up.record()["pids"]["api"], signal.SIGKILL)
                _, err = process.communicate(timeout=60)
            finally:
                os.kill(up.process.pid, signal.SIGCONT)
        assert process.returncode == 3, err
        assert b"does not answer" in err
        assert b"the same command and --resume" in err
        (left,) = records(tmp_path / "out.jsonl")
        assert left["status"] == "submitted"
        (tmp_path / "gate").touch()
        up.wait_for("api      |")
        wait_until(lambda: up.request("GET", "/live")[0] == 200, "the API is back", 60)
        assert cli.lines(*command, "--resume") == []
        assert records(tmp_path / "out.jsonl")[-1]["id"] == left["id"]
        assert records(tmp_path / "out.jsonl")[-1]["status"] == "succeeded"


def test_an_api_that_dies_at_the_first_request_has_no_input_run_twice(
    tmp_path: Path, redis_db: RedisServer
) -> None:
    models = write_models(tmp_path, {"echo": {"handler": "echo"}})
    count = 300  # more than go in one request, so that some were never sent
    inputs = "".join(f"[{number}]\n" for number in range(count)).encode()
    with (
        redis_db.client() as redis,
        api_process(redis_db.url, models) as api,
        proxy(api.port) as carrier,
    ):

        def kill() -> None:
            # How many it has of the 250 at the most is for the machine to say.
            wait_until(lambda: redis.llen("headrace.echo") > 0, "the request is worked on", 30)
            api.kill()

        cli = CommandsWithin(f"http://127.0.0.1:{carrier.port}", tmp_path)
        carrier.lose_answer_to(b"/jobs/bulk", then=kill)
        command = ("submit", "echo", "-", "-o", "out.jsonl", "--quiet")
        err = cli.complaint(*command, "--retry", "0.5", stdin=inputs, rc=3)
        assert "the same command and --resume" in err
        assert carrier.lost == 1
        queued = redis.llen("headrace.echo")
        left = {one["id"] for one in records(tmp_path / "out.jsonl")}
        api.start()
        with FakeWorker(redis_db.url, "echo") as worker:
            assert cli.lines(*command, "--resume", stdin=inputs) == []
            assert len(worker.ran(count)) == len(set(worker.served)) == count
        assert 0 < queued <= len(left)
        assert left <= set(worker.served)
    last = {one["key"]: one for one in records(tmp_path / "out.jsonl")}
    assert [last[f"stdin:{n + 1}"]["result"] for n in range(count)] == [[n] for n in range(count)]


def test_while_redis_is_away_nothing_is_said_to_be_refused(tmp_path: Path) -> None:
    models = write_models(tmp_path, {"echo": {"handler": "echo"}})
    with (
        redis_server("valkey9", "--appendonly", "yes") as server,
        api_process(server.url, models, bulk_hold_s="0.2") as api,
    ):
        cli = CommandsWithin(api.url, tmp_path)
        patient = ("submit", "echo", "--text", "a", "--text", "b")
        command = (*patient, "--retry", "0.2")
        server.stop()
        err = cli.complaint(*command, "-o", "out.jsonl", rc=3)
        assert "the same command and --resume" in err
        left = records(tmp_path / "out.jsonl")
        assert [one["status"] for one in left] == ["submitted"] * 2
        # On a busy machine the time is over before the second input is sent.
        complaint = re.search(
            r"in flight: [12]\. Jobs that were accepted continue; get their results with:",
            cli.complaint(*command, rc=3),
        )
        assert complaint is not None
        # It is away for as long as this bears, and for no longer.
        cli.complaint("result", left[0]["id"], "--retry", "0.2", rc=3)
        server.start()
        with FakeWorker(server.url, "echo") as worker:
            cli.lines(*patient, "-o", "out.jsonl", "--resume")
            assert set(worker.ran(2)) == {one["id"] for one in left}
