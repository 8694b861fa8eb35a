"""`headrace top` in a real terminal: at two widths, over an API that restarts, and given back."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.observability.worker_report import DeviceFigures, Figures, HostFigures
from headrace.redis import keys
from headrace.server.ports import free_port
from headrace.server.supervisor.proc import children_of
from tests.harness.clients.commands import CommandsWithin
from tests.harness.clients.doctor import tell
from tests.harness.clients.terminal import PROMPT, Terminal, terminal
from tests.harness.deployments.site import running
from tests.harness.fakes.worker import FakeWorker
from tests.harness.servers.api_process import ApiProcess, api_process
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.servers.up import clean_environment
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Client, write_models

GIB = 1 << 30
HOST = HostFigures("far", 16, 0.25, 64 * GIB, 48 * GIB, 500 * GIB, 100 * GIB)
GPU = DeviceFigures("0", "GPU-1", "NVIDIA H200", 0.5, 70 * GIB, 140 * GIB, 61.0, 540.0)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server("valkey9") as running:
        yield running


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(
        tmp_path_factory.mktemp("top"), echo={"handler": "echo"}, idle={"handler": "echo"}
    )


@pytest.fixture(scope="module")
def api(server: RedisServer, models: Path) -> Iterator[ApiProcess]:
    """An API with jobs that run, others that wait, and a worker that says what it has."""
    with api_process(server.url, models) as running, server.client() as client:
        figures = Figures(HOST, [GPU], {"echo": 3 * GIB})
        tell(client, "gpu0", host="far", models={"echo": {}}, figures=figures)
        client.persist(keys.worker("gpu0"))
        client.sadd(keys.PAUSED, keys.queue_name("idle"))
        with Client(server.url, models) as jobs:
            jobs.submit("idle", *range(1234))
            jobs.submit("echo", *range(50))
        with FakeWorker(server.url, "echo") as worker:
            worker.ran(50)
            yield running


@contextmanager
def started(api: ApiProcess, folder: Path, width: int, height: int) -> Iterator[Terminal]:
    with terminal(folder, width, height, clean_environment(HEADRACE_URL=api.url)) as shell:
        shell.enter(f"{sys.executable} -P -m headrace top --interval 0.5; echo ended=$?")
        yield shell


def shows(shell: Terminal, *words: str) -> list[str]:
    def there() -> list[str]:
        lines = shell.lines()
        text = "\n".join(lines)
        missing = [word for word in words if word not in text]
        if missing:
            raise ValueError(f"{missing} not in:\n{text}")
        return lines

    # What is given is what had all of it: a moment later the next view may be half drawn.
    return wait_until(there, f"the terminal shows {words}", 60)


def test_at_80_columns_then_at_200_and_the_terminal_is_given_back(
    api: ApiProcess, tmp_path: Path
) -> None:
    with started(api, tmp_path, 80, 24) as shell:
        lines = shows(shell, "1,234", "MODEL", "GPU", "q quit", "OUT/S")
        assert len(lines) == 24
        assert shell.told("alternate_on") == "1"
        (idle,) = [line for line in lines if line.startswith("idle ")]
        assert idle.split()[1:3] == ["paused", "1,234"]
        assert "WAIT P9" not in shell.text()
        assert lines[0].startswith("headrace 0.")
        assert "1 worker" in lines[0]
        assert "waiting 1,234" in lines[1]
        assert "Redis" in lines[2]
        # Idle is below echo until the longest queue comes first.
        assert [line[:4] for line in lines if line[:4] in ("echo", "idle")] == ["echo", "idle"]
        shell.type("s")
        lines = shows(shell, "WAITv", "by wait")
        assert [line[:4] for line in lines if line[:4] in ("echo", "idle")] == ["idle", "echo"]
        shell.resize(200, 50)
        lines = shows(shell, "WAIT P9", "RESTARTS", "NVIDIA H200", "540 W", "far")
        assert any("GPU" in line and "CPUS" in line and "WORKER" in line for line in lines)
        shell.resize(40, 10)
        wait_until(lambda: len(shell.lines()) == 10 and "MODEL" in shell.text(), "it is small", 30)
        shell.resize(80, 24)
        shell.type("q")
        shows(shell, "ended=0", PROMPT)
        assert shell.told("alternate_on") == "0"
        assert shell.told("cursor_flag") == "1"
        shell.enter("stty -a | grep -cw -- -echo")
        shows(shell, "\n0\n")


def test_the_tokens_of_a_generator_at_80_and_120_columns(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    generator = {"handler": f"{HANDLERS / 'generation/generating.py'}:Words", "schedule": "tokens"}
    with running(tmp_path, {"writer": generator, "echo": {"handler": "echo"}}) as site:
        held = site.submit({"words": 3, "max_tokens": 5000, "until": str(gate)}, "writer")
        environ = clean_environment(HEADRACE_URL=site.api.url)
        with terminal(tmp_path, 80, 24, environ) as shell:
            shell.enter(f"{sys.executable} -P -m headrace top --interval 0.5")
            lines = shows(shell, "TOK OUT", "tokens 5,0", "writer")
            assert "TOKENS" not in shell.text()

            def counted() -> bool:
                site.ended(site.submit({"words": 40}, "writer"))
                line = next((line for line in shell.lines() if "tokens out" in line), "")
                return bool(line) and "tokens out 0/s" not in line

            wait_until(counted, "the tokens of requests that have ended are shown", 60)
            shell.resize(120, 30)
            lines = shows(shell, "TOKENS", "TOK IN", "TOK OUT", "FAIL/S")
            (writer,) = [line for line in lines if line.startswith("writer ")]
            assert " 5,0" in writer
            shell.type("q")
        for n in range(3):
            (gate / str(n)).touch()
        site.ended(held)


def test_an_api_that_restarts_is_waited_for(api: ApiProcess, tmp_path: Path) -> None:
    with started(api, tmp_path, 120, 30) as shell:
        shows(shell, "1,234", "OUT/S")
        api.kill()
        shows(shell, "no answer for", "1,234")
        api.start()
        wait_until(lambda: "no answer" not in shell.text(), "it answers again", 60)
        shows(shell, "1,234", "API")
        shell.type("C-c")
        shows(shell, "ended=130")


def test_a_signal_leaves_no_screen_behind(api: ApiProcess, tmp_path: Path) -> None:
    with started(api, tmp_path, 80, 24) as shell:
        shows(shell, "1,234")
        (pid,) = children_of(int(shell.told("pane_pid")))
        os.kill(pid, signal.SIGTERM)
        shows(shell, "ended=143")
        assert shell.told("alternate_on") == "0"
        assert shell.told("cursor_flag") == "1"


def test_without_a_terminal_it_says_what_to_do_and_prints_one_view(
    api: ApiProcess, tmp_path: Path
) -> None:
    commands = CommandsWithin(api.url, tmp_path)
    assert "--once" in commands.complaint("top", rc=2)
    lines = commands.lines("top", "--once", "--interval", "0.5")
    assert lines[0].startswith("headrace 0.")
    assert any(line.startswith("idle ") for line in lines)
    assert not any("\x1b" in line for line in lines)
    assert max(map(len, lines)) <= 80
    nobody = CommandsWithin(f"http://127.0.0.1:{free_port()}", tmp_path)
    assert "headrace up" in nobody.complaint("top", "--once", rc=3)
