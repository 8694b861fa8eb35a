"""`python -m api` as a process: what it says when it cannot start, and how it ends."""

from __future__ import annotations

import os
import resource
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest

from headrace.server.ports import free_port
from tests.harness.fakes.worker import Answer, claim, settle
from tests.harness.http.plain_http import PLAIN
from tests.harness.processes.forked import Forked
from tests.harness.servers.api_process import answers, environ
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.servers.up import ROOT
from tests.harness.wait import wait_until
from tests.harness.workers.worker import write_models


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return write_models(tmp_path, echo={"handler": "echo"})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "api.log"


@contextmanager
def process(env: dict[str, str], log: Path) -> Iterator[Forked]:
    started = Forked(["api"], env, ROOT, log)
    try:
        yield started
    finally:
        started.kill()
        started.wait(60)


def test_a_stop_answers_waiting_requests(redis_db: RedisServer, models: Path, log: Path) -> None:
    port = free_port()
    env = environ(models, redis_url=redis_db.url, port=str(port))
    with (
        process(env, log) as api,
        ThreadPoolExecutor(1) as executor,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=70, verify=PLAIN) as http,
        redis_db.client() as client,
    ):
        wait_until(lambda: answers(http, "/ready"), "the API is ready", 90)
        asked = executor.submit(http.post, "/api/v1/models/echo/jobs?wait=60", json=1)
        wait_until(lambda: client.llen("headrace.echo") == 1, "the job is queued")
        api.terminate()
        response = asked.result(60)
        assert (response.status_code, response.json()["status"]) == (202, "queued")
        http.close()
        api.wait(60)
        claimed = claim(client, "echo")
        settle(client, "echo", claimed, [Answer()])


def test_a_stop_with_a_delay_serves_on_and_is_not_ready(
    redis_db: RedisServer, models: Path, log: Path
) -> None:
    port = free_port()
    env = environ(models, redis_url=redis_db.url, port=str(port), stop_delay_s="600")
    url = f"http://127.0.0.1:{port}"
    with process(env, log) as api, httpx2.Client(base_url=url, timeout=70, verify=PLAIN) as http:
        wait_until(lambda: answers(http, "/ready"), "the API is ready", 90)
        api.terminate()
        wait_until(lambda: http.get("/ready").status_code == 503, "it is not ready")
        assert http.get("/ready").json()["type"] == "/problems/stopping"
        # A client that has not heard of it comes over a new connection.
        assert httpx2.get(f"{url}/api/v1/models", verify=PLAIN).status_code == 200
        http.close()
        api.terminate()
        assert api.wait(60) == -signal.SIGTERM, "a second signal stops at once"


@pytest.mark.parametrize(
    ("settings", "status", "says"),
    [
        ({}, 2, "HEADRACE_REDIS_URL"),
        ({"redis_url": "redis://:secret@127.0.0.1:1/0"}, 3, "does not answer"),
        ({"redis_url": "redis://127.0.0.1:1/0", "prot": "1"}, 2, "HEADRACE_PORT"),
    ],
)
def test_what_keeps_it_from_starting_is_one_line(
    models: Path, log: Path, settings: dict[str, str], status: int, says: str
) -> None:
    with process(environ(models, **settings), log) as api:
        assert api.wait(90) == status
    errors = log.read_text()
    assert errors.startswith("headrace: ")
    assert says in errors
    assert "secret" not in errors
    assert len(errors.splitlines()) == 1


def test_a_models_file_with_a_mistake(redis_db: RedisServer, models: Path, log: Path) -> None:
    models.write_text("models: {echo: {handlr: echo}}\n")
    with process(environ(models, redis_url=redis_db.url), log) as api:
        assert api.wait(90) == 2
    errors = log.read_text()
    assert "did you mean handler?" in errors
    assert "Traceback" not in errors


def test_running_out_of_file_descriptors_is_logged_and_passes(
    redis_db: RedisServer, models: Path, log: Path
) -> None:
    port = free_port()
    env = environ(models, redis_url=redis_db.url, port=str(port))
    url = f"http://127.0.0.1:{port}"
    with process(env, log) as api, httpx2.Client(base_url=url, timeout=20, verify=PLAIN) as http:
        wait_until(lambda: answers(http, "/ready"), "the API is ready", 90)
        used = len(os.listdir(f"/proc/{api.pid}/fd"))
        _, hard = resource.prlimit(api.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(api.pid, resource.RLIMIT_NOFILE, (used + 4, hard))
        with ExitStack() as clients:
            for _ in range(10):
                clients.enter_context(socket.create_connection(("127.0.0.1", port), 20))
            wait_until(lambda: "no file descriptor left" in log.read_text(), "it is logged")
            assert answers(http, "/live"), "the open connection is served"
        wait_until(lambda: newly_answers(url), "new connections are served")


def newly_answers(url: str) -> bool:
    """Whether a server answers on a new connection."""
    with httpx2.Client(base_url=url, timeout=20, verify=PLAIN) as http:
        return answers(http, "/live")
