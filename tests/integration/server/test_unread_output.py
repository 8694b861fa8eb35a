"""`headrace up` whose output nobody reads goes on, and says later what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.servers.up import RunningUp, clean_environment, started, write_models
from tests.harness.wait import wait_until

#: Their lines in the log fill a pipe (64 KiB on Linux) several times.
REQUESTS = 1500


class Unread(RunningUp):
    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "headrace", *self.arguments],
            cwd=self.folder, env=clean_environment(**self._variables), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def text(self) -> str:
        """What the pipe holds now."""
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        return (self.process.stdout.read() or b"").decode(errors="replace")


@pytest.mark.slow
def test_a_pipe_that_is_never_read_stops_nothing(tmp_path: Path) -> None:
    up = Unread(tmp_path, HEADRACE_ACCESS_LOG="true")
    up.arguments = [
        "up", "--state-dir", str(up.state_dir), "--port", str(up.port),
        "--models", str(write_models(tmp_path)), "--no-flower", "--no-background", "--no-runner",
    ]  # fmt: skip

    def serves() -> bool:
        try:
            return up.request("GET", "/ready")[0] == 200
        except OSError:
            return False

    with started(up):
        wait_until(serves, "it serves", 120)
        for _ in range(REQUESTS):
            assert up.request("GET", "/api/v1/models")[0] == 200
        assert up.result_of(up.submit("echo", "still here")) == "still here"
        assert "GET /api" in up.text()

        def told() -> bool:
            up.request("GET", "/api/v1/models")
            return "lines are missing here" in up.text()

        wait_until(told, "it says what is missing", 60)
        assert up.stop() == 0
        assert up.process.stdout is not None
        up.process.stdout.close()
