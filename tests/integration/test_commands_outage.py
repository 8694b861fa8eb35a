"""The client commands when the server goes away in the middle and stays away."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from tests.harness.commands import Commands, records
from tests.harness.up import running_up, write_models
from tests.harness.wait import wait_until
from tests.harness.worker import HANDLERS


def test_a_server_that_stays_away_is_3_and_the_file_says_what_goes_on(tmp_path: Path) -> None:
    gated = {"handler": f"{HANDLERS / 'gated.py'}:Gated"}
    with running_up(tmp_path, models=write_models(tmp_path, {"gated": gated})) as up:
        cli = Commands(f"http://127.0.0.1:{up.port}", tmp_path)
        value = json.dumps({"until": str(tmp_path / "gate")})
        command = ("submit", "gated", "--json-input", value, "-o", "out.jsonl")
        with cli.started(*command, "--retry", "0.5") as process:
            wait_until(lambda: cli.under_way("gated") == 1, "it is submitted", 60)
            os.kill(up.process.pid, signal.SIGSTOP)  # it starts no other, and keeps the socket
            try:
                os.kill(up.record()["pids"]["api"], signal.SIGKILL)
                _, err = process.communicate(timeout=60)
            finally:
                os.kill(up.process.pid, signal.SIGCONT)
        assert process.returncode == 3, err
        assert b"does not answer" in err
        assert b"the same command with --resume" in err
        (left,) = records(tmp_path / "out.jsonl")
        assert left["status"] == "submitted"
        (tmp_path / "gate").touch()
        up.wait_for("api      |")
        wait_until(lambda: up.request("GET", "/live")[0] == 200, "the API is back", 60)
        assert cli.lines(*command, "--resume") == []
        assert records(tmp_path / "out.jsonl")[-1]["id"] == left["id"]
        assert records(tmp_path / "out.jsonl")[-1]["status"] == "succeeded"
