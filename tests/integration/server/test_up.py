"""`headrace up`, `headrace worker` and `headrace api` as a user runs them, on the `echo` model."""

from __future__ import annotations

import base64
import http.client
import os
import re
import signal
import socket
import stat
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.redis.connection import connect
from headrace.server.ports import free_port
from tests.harness.clients.commands import headrace_here
from tests.harness.processes.processes import command_line, descendants, gone
from tests.harness.servers.redis_servers import redis_server
from tests.harness.servers.up import (
    RunningUp,
    headrace,
    running_up,
    started,
    write_models,
)
from tests.harness.wait import wait_until


@contextmanager
def listener() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def only_line(stderr: str) -> str:
    lines = stderr.splitlines()
    assert len(lines) == 1, stderr
    assert lines[0].startswith("headrace: ")
    return lines[0]


def test_up_serves_a_job_says_where_and_leaves_nothing(tmp_path: Path) -> None:
    # Folders of these names in the user's own project must not be taken for ours.
    for name in ("api", "workers", "handlers", "extensions"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong package')")
    with running_up(tmp_path) as up:
        job_id = up.submit("echo", {"x": [1, None, "é"]})
        assert up.result_of(job_id) == {"x": [1, None, "é"]}

        record = up.record()
        assert record["urls"]["api"] == f"http://127.0.0.1:{up.port}"
        assert record["pids"]["headrace"] == up.process.pid
        pids = descendants(up.process.pid)
        assert set(record["pids"].values()) <= {up.process.pid, *pids}
        assert {"redis", "api", "cpu0"} <= set(record["pids"]) or "gpu0" in record["pids"]

        password = (up.state_dir / "redis.password").read_text().strip()
        assert len(password) == 64
        assert password not in up.text()
        assert "***" in record["urls"]["broker"]
        for name in ("headrace.json", "redis.conf", "redis.password"):
            assert stat.S_IMODE((up.state_dir / name).stat().st_mode) == 0o600
        assert password not in (up.state_dir / "headrace.json").read_text()
        for pid in pids:
            assert password.encode() not in command_line(pid)

        assert up.stop() == 0
        assert gone(*pids)
        # What is no news, or cannot be helped by who reads it.
        for noise in ("superuser", "overcommit", "bye bye", "Started server process"):
            assert noise not in up.text()
        assert not (up.state_dir / "headrace.json").exists()
        assert up.text().rstrip().endswith("headrace | stopped; queued jobs are kept")


def test_of_several_api_processes_one_may_die_and_ctrl_c_stops_all_with_status_0(
    tmp_path: Path,
) -> None:
    with running_up(tmp_path, "--api-processes", "2", "--workers", "1") as up:
        pids = up.record()["pids"]
        assert {"api0", "api1"} <= set(pids)
        assert "api" not in pids
        os.kill(pids["api0"], signal.SIGKILL)
        wait_until(lambda: gone(pids["api0"]), "it takes no more requests")
        assert up.result_of(up.submit("echo", "x")) == "x"
        wait_until(
            lambda: up.record()["pids"].get("api0") not in (None, pids["api0"]), "it is back", 90
        )
        assert up.record()["pids"]["api1"] == pids["api1"]
        below = descendants(up.process.pid)
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(60) == 0
        assert gone(*below)
        assert "Traceback" not in up.text()


def test_after_kill_9_nothing_is_left_and_the_next_start_finds_every_job(tmp_path: Path) -> None:
    with running_up(tmp_path, "--workers", "1") as up:
        done = up.submit("echo", "first")
        assert up.result_of(done) == "first"
        pids = descendants(up.process.pid)
        assert len(pids) >= 4  # redis, api, the worker and its model process
        up.process.kill()
        up.process.wait(60)
        wait_until(lambda: gone(*pids), "its children are gone")
    with running_up(tmp_path, "--workers", "0") as up:
        assert up.result_of(done) == "first"
        queued = up.submit("echo", "second")
        pids = descendants(up.process.pid)
        up.process.kill()
        up.process.wait(60)
        # No wait here: the next start must itself wait for the server that is still saving.
        with running_up(tmp_path) as again:
            assert again.result_of(queued) == "second"
            assert again.result_of(done) == "first"
        assert gone(*pids)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    """One run, whose parts may be killed: each test leaves it serving again."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "broken.py").write_text("import no_such_module_of_mine\n")
    (folder / "gate.py").write_text(
        textwrap.dedent("""
            import time
            from pathlib import Path
            from headrace import Handler

            class Gate(Handler):
                def inference(self, items):
                    folder = Path(items[0])
                    (folder / "running").touch()
                    while not (folder / "open").exists():
                        time.sleep(0.01)
                    return items
        """)
    )
    models = write_models(
        folder,
        {
            "echo": {"handler": "echo"},
            "bad": {"handler": "broken.py"},
            "gate": {"handler": "gate.py", "timeout_s": 600},
        },
    )
    with running_up(folder, models=models, HEADRACE_LEASE_TTL_S="600") as up:
        yield up


def test_a_killed_worker_comes_back_and_its_job_does_not_wait_for_the_lease(
    shared: RunningUp, tmp_path: Path
) -> None:
    job_id = shared.submit("gate", str(tmp_path))
    wait_until((tmp_path / "running").exists, "the job runs", 60)
    worker = next(pid for name, pid in shared.record()["pids"].items() if name in ("cpu0", "gpu0"))
    below = descendants(worker)
    os.kill(worker, signal.SIGKILL)
    shared.wait_for("0 ended by SIGKILL; restarting it")
    wait_until(lambda: gone(*below), "its model processes are gone")
    (tmp_path / "open").touch()
    assert shared.result_of(job_id, timeout_s=60) == str(tmp_path)
    assert shared.job(job_id)["attempts"] == 2


def test_a_killed_redis_comes_back_with_its_jobs(shared: RunningUp) -> None:
    done = shared.submit("echo", 1)
    assert shared.result_of(done) == 1
    first = shared.record()["pids"]["redis"]
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: shared.record()["pids"].get("redis") not in (None, first), "it is back", 90)
    wait_until(lambda: shared.request("GET", "/ready")[0] == 200, "the API has found it", 90)
    # `everysec` may lose the last two seconds, so only what comes after is asked for.
    again = shared.submit("echo", 2)
    assert shared.result_of(again) == 2


def test_a_model_that_cannot_load_leaves_the_rest_serving(shared: RunningUp) -> None:
    assert shared.result_of(shared.submit("echo", "x")) == "x"

    def shown() -> bool:
        status, body = shared.request("GET", "/ready")
        return status == 200 and "no_such_module_of_mine" in str(body["models"]["bad"])

    wait_until(shown, "/ready shows the traceback of the model that failed", 90)


def test_second_instance_on_one_state_dir_is_one_line(shared: RunningUp, tmp_path: Path) -> None:
    models = str(write_models(tmp_path))
    ended = headrace(
        "up", "--state-dir", str(shared.state_dir), "--port", str(free_port()), "--no-flower",
        "--models", models, cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == 2
    line = only_line(ended.stderr)
    assert f"{shared.state_dir} is in use by another headrace up, pid {shared.process.pid}" in line
    assert shared.record()["pids"]["headrace"] == shared.process.pid
    assert shared.request("GET", "/live")[0] == 200


def test_flower_asks_for_its_password_and_keeps_its_history(tmp_path: Path) -> None:
    # Loopback too, but not the address that may do without a password.
    host, port = "127.0.0.2", free_port()
    variables: dict[str, Any] = {
        "HEADRACE_FLOWER_HOST": host,
        "HEADRACE_FLOWER_PORT": str(port),
        "FLOWER_BASIC_AUTH": "user:pass",
    }

    def tasks(authorization: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(host, port, timeout=30)
        connection.request("GET", "/api/tasks", headers={"Authorization": authorization})
        response = connection.getresponse()
        answer = response.status, response.read()
        connection.close()
        return answer

    allowed = "Basic " + base64.b64encode(b"user:pass").decode()
    with running_up(tmp_path, flower=True, **variables) as up:
        assert up.record()["urls"]["flower"] == f"http://{host}:{port}"
        assert tasks("Basic " + base64.b64encode(b"user:wrong").decode())[0] == 401
        assert tasks(allowed)[0] == 200

        def listed() -> str:
            # Flower learns of a job from its events, which it hears only once it is connected.
            job_id = up.submit("echo", "x")
            up.result_of(job_id)
            return job_id if job_id.encode() in tasks(allowed)[1] else ""

        job_id = wait_until(listed, "Flower lists a job", 60)
        assert up.stop() == 0
        kept = list(up.state_dir.glob("flower*"))
        assert kept
        assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in kept)
    with running_up(tmp_path, flower=True, **variables):
        assert job_id.encode() in tasks(allowed)[1]


def test_port_in_use_is_one_line_that_names_who(tmp_path: Path) -> None:
    models = str(write_models(tmp_path))
    with listener() as port:
        ended = headrace("up", "--port", str(port), "--models", models, "--no-flower", cwd=tmp_path)
    assert ended.returncode == 2
    line = only_line(ended.stderr)
    assert f"port {port} on 127.0.0.1 is already in use by pid {os.getpid()}" in line
    assert "--port" in line
    assert ended.stdout == ""


def test_flower_port_in_use_names_its_own_setting(tmp_path: Path) -> None:
    models = str(write_models(tmp_path))
    with listener() as port:
        ended = headrace(
            "up", "--port", str(free_port()), "--models", models, cwd=tmp_path,
            HEADRACE_FLOWER_PORT=str(port),
        )  # fmt: skip
    assert ended.returncode == 2
    assert "HEADRACE_FLOWER_PORT" in only_line(ended.stderr)


@pytest.mark.parametrize("command", ["up", "worker", "api"])
def test_unreachable_redis_is_one_line_without_the_password(tmp_path: Path, command: str) -> None:
    url = f"redis://:hunter2@127.0.0.1:{free_port()}/0"
    models = str(write_models(tmp_path))
    extra = ["--no-flower"] if command == "up" else []
    if command != "worker":
        extra += ["--port", str(free_port())]
    ended = headrace(command, "--models", models, *extra, cwd=tmp_path, HEADRACE_REDIS_URL=url)
    assert ended.returncode == 3
    line = only_line(ended.stderr)
    assert url.replace("hunter2", "***") in line
    assert "Connection refused" in line
    assert "hunter2" not in ended.stderr + ended.stdout


def test_redis_cluster_is_one_line(tmp_path: Path) -> None:
    models = str(write_models(tmp_path))
    # The default, the port plus 10,000, may be none.
    bus = str(free_port())
    with redis_server("redis7", "--cluster-enabled", "yes", "--cluster-port", bus) as server:
        ended = headrace(
            "up", "--models", models, "--no-flower", "--port", str(free_port()), cwd=tmp_path,
            HEADRACE_REDIS_URL=server.url,
        )  # fmt: skip
    assert ended.returncode == 3
    assert "Cluster mode" in only_line(ended.stderr)


def test_configuration_errors_are_lines_with_status_2(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("models:\n  echo:\n    handler: echo\n    max_batchsize: 3\n")
    ended = headrace_here("up", "--models", str(bad), cwd=tmp_path)
    assert ended.returncode == 2
    assert re.search(r"bad\.yaml:4: .*max_batch_size", only_line(ended.stderr))

    ended = headrace_here("up", cwd=tmp_path, HEADRACE_PROT="1")
    assert ended.returncode == 2
    assert "HEADRACE_PORT" in only_line(ended.stderr)

    models = str(write_models(tmp_path))
    ended = headrace_here("up", "--models", models, cwd=tmp_path, HEADRACE_FLOWER_HOST="0.0.0.0")
    assert ended.returncode == 2
    assert "FLOWER_BASIC_AUTH" in only_line(ended.stderr)

    ended = headrace_here("worker", "--models", models, cwd=tmp_path)
    assert ended.returncode == 2
    assert "HEADRACE_REDIS_URL" in only_line(ended.stderr)

    (tmp_path / "a-file").touch()
    ended = headrace_here(
        "up",
        "--models",
        models,
        "--state-dir",
        str(tmp_path / "a-file"),
        "--no-flower",
        cwd=tmp_path,
    )
    assert ended.returncode == 2
    assert "--state-dir" in only_line(ended.stderr)


def test_check_config_and_version(tmp_path: Path) -> None:
    models = write_models(tmp_path, {"m": {"handler": "missing.py"}})
    ended = headrace_here("check-config", str(models), cwd=tmp_path)
    assert ended.returncode == 2
    assert "missing.py" in only_line(ended.stderr)
    models = write_models(tmp_path)
    for given in ([str(models)], ["--models", str(models)]):
        ended = headrace_here("check-config", *given, cwd=tmp_path)
        assert (ended.returncode, ended.stderr) == (0, "")
    ended = headrace_here("check-config", "a.yaml", "--models", "b.yaml", cwd=tmp_path)
    assert (ended.returncode, "given twice" in only_line(ended.stderr)) == (2, True)
    from headrace import __version__

    assert headrace_here("version", cwd=tmp_path).stdout.strip() == __version__


def test_api_and_workers_alone_on_a_redis_of_ones_own(tmp_path: Path) -> None:
    models = str(write_models(tmp_path))
    api_folder, worker_folder = tmp_path / "a", tmp_path / "w"
    api_folder.mkdir()
    worker_folder.mkdir()
    with redis_server("valkey9") as server:
        url = server.url
        api = RunningUp(api_folder, HEADRACE_REDIS_URL=url)
        api.arguments = ["api", "--port", str(api.port), "--models", models]
        worker = RunningUp(worker_folder, HEADRACE_REDIS_URL=url, CUDA_VISIBLE_DEVICES="")
        worker.arguments = ["worker", "--models", models, "--workers", "2"]
        with started(api), started(worker):
            worker.wait_for("2 workers on")
            wait_until(lambda: api.request("GET", "/live")[0] == 200, "the API answers", 60)
            assert api.result_of(api.submit("echo", "x")) == "x"
            host = socket.gethostname()
            with connect(url, decode_responses=True) as client:

                def nodes() -> set[str]:
                    owners = client.zrange("hr:workers", 0, -1)
                    return {owner.rpartition("-")[0] for owner in owners}

                both = {f"cpu0@{host}", f"cpu1@{host}"}
                wait_until(lambda: nodes() == both, "both workers tell of themselves")
            pids = [*descendants(worker.process.pid), api.process.pid]
            assert worker.stop() == 0
            # uvicorn ends by the signal that it was sent.
            assert api.stop() in (0, -signal.SIGTERM)
            assert gone(*pids)
