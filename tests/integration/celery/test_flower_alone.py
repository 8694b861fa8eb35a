"""`headrace flower`: the view alone, on a Redis that is named."""

from __future__ import annotations

import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from headrace.server.ports import free_port
from tests.harness.monitoring.flower import asked
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.servers.up import RunningUp, headrace, started, write_models
from tests.harness.wait import wait_until


def status_of(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.parametrize(
    ("password", "published", "status"),
    [
        pytest.param("", "127.0.0.1", 200, id="loopback", marks=pytest.mark.slow),
        pytest.param("user:pass", "0.0.0.0", 401, id="published"),
    ],
)
def test_it_asks_for_the_password_that_there_is(
    tmp_path: Path, redis_db: RedisServer, password: str, published: str, status: int
) -> None:
    port = free_port()
    flower = RunningUp(
        tmp_path, HEADRACE_REDIS_URL=redis_db.url, HEADRACE_FLOWER_PORT=str(port),
        HEADRACE_STATE_DIR="new/state", FLOWER_BASIC_AUTH=password,
    )  # fmt: skip
    models = str(write_models(tmp_path))
    flower.arguments = ["flower", "--models", models, "--published-at", published]
    with started(flower):
        wait_until(lambda: status_of(port, "/healthcheck") == 200, "Flower answers", 60)
        assert status_of(port, "/workers") == status
        refused, text = asked(port, "POST", "/api/worker/shutdown/any", b"")
        assert refused == 401
        assert ("FLOWER_BASIC_AUTH" in text) == (not password)

        def healthy() -> bool:
            """It waits for an answer for some seconds, and no longer."""
            ended = headrace("health", "flower", cwd=tmp_path, HEADRACE_FLOWER_PORT=str(port))
            if ended.returncode != 0:
                raise ValueError(ended.stderr)
            return True

        wait_until(healthy, "it is healthy", 60)
        flower.process.send_signal(signal.SIGTERM)
        assert flower.process.wait(60) == 0
    assert list((tmp_path / "new/state").glob("flower*")), "its history is kept"


def refused(folder: Path, *arguments: str, **variables: str) -> str:
    models = str(write_models(folder))
    ended = headrace("flower", "--models", models, *arguments, cwd=folder, **variables)
    assert ended.returncode in (2, 3)
    (line,) = ended.stderr.splitlines()
    return line


def test_what_it_refuses(tmp_path: Path, redis_db: RedisServer) -> None:
    port = {"HEADRACE_FLOWER_PORT": str(free_port())}
    url = {"HEADRACE_REDIS_URL": redis_db.url, **port}
    assert "HEADRACE_REDIS_URL" in refused(tmp_path, **port)
    assert "FLOWER_BASIC_AUTH" in refused(tmp_path, "--published-at", "0.0.0.0", **url)
    assert "FLOWER_BASIC_AUTH" in refused(tmp_path, HEADRACE_FLOWER_HOST="0.0.0.0", **url)
    (tmp_path / "file").touch()
    line = refused(tmp_path, HEADRACE_STATE_DIR="file/below", **url)
    assert "HEADRACE_STATE_DIR" in line
    gone = f"redis://:hunter2@127.0.0.1:{free_port()}/0"
    line = refused(tmp_path, HEADRACE_REDIS_URL=gone, **port)
    assert "Connection refused" in line
    assert "hunter2" not in line
