"""`headrace health`, as a container's health check calls it: what it says, and its status."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.redis import keys
from headrace.redis.url import redact_url
from headrace.server import recovery
from headrace.server.embedded_redis import AUTH_NAME, PORT_NAME
from headrace.server.health.liveness import WorkerLiveness
from headrace.server.ports import free_port
from tests.harness.servers.api_server import api_server, catalog
from tests.harness.servers.redis_servers import FLAVOURS, RedisServer, redis_server
from tests.harness.servers.up import RunningUp, clean_environment, headrace, started
from tests.harness.wait import wait_until

HOST = socket.gethostname()


def health(folder: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    """Status, and what it said, which is a line."""
    # No GPU of this machine is to count.
    variables = {"CUDA_VISIBLE_DEVICES": "", **variables}
    ended = headrace("health", *arguments, cwd=folder, **variables)
    said = (ended.stdout + ended.stderr).strip()
    assert len(said.splitlines()) == 1, said
    return ended.returncode, said


def healthy(folder: Path, *arguments: str, **variables: str) -> str:
    """What it says once it is; who does not answer within some seconds is asked again."""

    def said() -> str:
        status, text = health(folder, *arguments, **variables)
        if status != 0:
            raise ValueError(text)
        return text

    return wait_until(said, f"{arguments} is healthy", 60)


def register(server: RedisServer, node: str, pid: int) -> None:
    """An entry as a worker writes it."""
    owner = f"{node}-0a1b2c3d"
    with server.client() as client:
        client.hset(keys.worker(owner), "", json.dumps({"node": node, "pid": pid}))
        client.expire(keys.worker(owner), 600)  # however slow the processes are that look at it
        client.zadd(keys.WORKERS, {owner: time.time()})


@pytest.fixture
def redis_url(redis_db: RedisServer) -> str:
    return redis_db.url


def test_an_api_that_serves_and_one_whose_redis_is_away(tmp_path: Path) -> None:
    with redis_server() as server, api_server(server.url, catalog(echo={})) as api:
        port = {"HEADRACE_HOST": "0.0.0.0", "HEADRACE_PORT": str(api.port)}
        assert healthy(tmp_path, "api", **port) == f"API: GET {api.url}/ready: 200"
        server.stop(kill=True)
        status, said = health(tmp_path, "api", **port)
        assert (status, said) == (1, f"headrace: API: GET {api.url}/ready: answered 503")


@pytest.mark.parametrize(("part", "name"), [("api", "PORT"), ("flower", "FLOWER_PORT")])
def test_nobody_listens(tmp_path: Path, part: str, name: str) -> None:
    port = free_port()
    status, said = health(tmp_path, part, **{f"HEADRACE_{name}": str(port)})
    assert status == 1
    assert f"http://127.0.0.1:{port}/" in said
    assert "Connection refused" in said


def test_one_that_listens_and_never_answers(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        status, said = health(tmp_path, "api", HEADRACE_PORT=str(port))
    assert status == 1
    assert "timed out" in said


def test_redis(tmp_path: Path, redis_url: str) -> None:
    said = healthy(tmp_path, "redis", HEADRACE_REDIS_URL=redis_url)
    assert said == f"Redis at {redis_url}: PONG"
    gone = f"redis://:hunter2@127.0.0.1:{free_port()}/0"
    for part in ("redis", "worker", "background"):
        status, said = health(tmp_path, part, HEADRACE_REDIS_URL=gone)
        assert status == 1
        assert "Connection refused" in said
        assert "hunter2" not in said


def test_a_worker_that_is_seen(tmp_path: Path, redis_db: RedisServer) -> None:
    register(redis_db, f"cpu0@{HOST}", os.getpid())
    url = {"HEADRACE_REDIS_URL": redis_db.url}
    assert healthy(tmp_path, "worker", **url) == f"serving: cpu0@{HOST}"
    # One of two is not enough.
    status, said = health(tmp_path, "worker", "--workers", "2", **url)
    assert status == 1
    assert said.endswith(f": cpu1@{HOST}")


def test_a_background_worker_that_is_seen(tmp_path: Path, redis_db: RedisServer) -> None:
    url = {"HEADRACE_REDIS_URL": redis_db.url}
    status, said = health(tmp_path, "background", **url)
    assert (status, said) == (1, f"headrace: not seen in the last 15 s: background@{HOST}")
    ended = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(ended, 0)
    with redis_db.client() as client:
        recovery.report_alive(client, "dead", WorkerLiveness(f"background@{HOST}", ended))
        assert health(tmp_path, "background", **url)[0] == 1
        recovery.report_alive(client, "live", WorkerLiveness(f"background@{HOST}", os.getpid()))
        client.expire(keys.background_alive("live"), 600)
    assert healthy(tmp_path, "background", **url) == f"serving: background@{HOST}"


def test_workers_that_do_not_count(tmp_path: Path, redis_db: RedisServer) -> None:
    ended = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(ended, 0)
    register(redis_db, f"cpu0@{HOST}", ended)  # killed a moment ago
    register(redis_db, "cpu0@elsewhere", os.getpid())
    with redis_db.client() as client:  # its entry has run out
        client.zadd(keys.WORKERS, {f"cpu0@{HOST}-ffffffff": time.time()})
    status, said = health(tmp_path, "worker", HEADRACE_REDIS_URL=redis_db.url)
    assert (status, said) == (1, f"headrace: not seen in the last 15 s: cpu0@{HOST}")


def test_what_is_not_configured_is_not_healthy(tmp_path: Path) -> None:
    status, said = health(tmp_path, "worker")
    assert status == 1
    assert "HEADRACE_REDIS_URL" in said
    # As `headrace up` leaves it in its folder: the Redis there is meant, and is down.
    (tmp_path / ".headrace").mkdir()
    (tmp_path / ".headrace" / AUTH_NAME).write_text("hunter2")
    (tmp_path / ".headrace" / PORT_NAME).write_text(str(port := free_port()))
    status, said = health(tmp_path, "redis")
    assert status == 1
    assert f"redis://:***@127.0.0.1:{port}/0: Error 111" in said
    status, said = health(tmp_path, "api", HEADRACE_PROT="1")
    assert status == 1
    assert "HEADRACE_PORT" in said


@pytest.mark.slow
def test_a_runner_is_seen_while_it_lives(tmp_path: Path, redis_db: RedisServer) -> None:
    variables = {"HEADRACE_REDIS_URL": redis_db.url}
    status, said = health(tmp_path, "runner", **variables)
    assert status == 1
    assert "no runner of this host was seen" in said
    runner = RunningUp(tmp_path, "runner", HEADRACE_URL="http://127.0.0.1:1", **variables)
    with started(runner):
        wait_until(lambda: health(tmp_path, "runner", **variables)[0] == 0, "it is seen", 60)
        assert healthy(tmp_path, "runner", **variables) == f"running: {runner.process.pid}"
        runner.process.kill()
        runner.process.wait(60)
        # What it has said stands for some seconds more.
        assert health(tmp_path, "runner", **variables)[0] == 1


def test_a_part_that_there_is_not(tmp_path: Path) -> None:
    status, said = health(tmp_path, "wroker")
    assert status == 2
    assert "api, worker, background, flower, redis, runner" in said


def test_a_check_needs_neither_the_parser_nor_a_large_client(
    tmp_path: Path, redis_db: RedisServer
) -> None:
    register(redis_db, f"cpu0@{HOST}", os.getpid())
    url = {"HEADRACE_REDIS_URL": redis_db.url, "CUDA_VISIBLE_DEVICES": ""}
    for arguments in (["worker", "--workers=1"], ["--models", "worker"], ["redis"]):
        program = (
            "import sys; from headrace.__main__ import main\n"
            f"sys.argv[1:] = ['health', *{arguments}]\n"
            "try:\n    main()\nfinally:\n    print(*sys.modules)"
        )
        ended = subprocess.run(
            [sys.executable, "-c", program], env={**clean_environment(), **url},
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        imported = {name.partition(".")[0] for name in ended.stdout.split()}
        assert "msgspec" in imported
        assert not imported & {"typer", "redis", "yaml", "rich", "httpx2", "asyncio", "subprocess"}


@pytest.mark.parametrize(
    "arguments", [[], ["worker", "--workers", "x"], ["api", "--mod"], ["api", "redis"]]
)
def test_mistakes_are_for_the_parser(tmp_path: Path, arguments: list[str]) -> None:
    ended = headrace("health", *arguments, cwd=tmp_path)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert "headrace health --help' for help" in ended.stderr
    assert "--models" in headrace("health", "--help", cwd=tmp_path).stdout


def test_the_status_is_the_answer_whoever_reads(tmp_path: Path, redis_db: RedisServer) -> None:
    program = str(Path(sys.executable).with_name("headrace"))
    for url, expected in (redis_db.url, 0), (f"redis://127.0.0.1:{free_port()}", 1):
        for closed in ">&-", "2>&-", ">&- 2>&-", ">/dev/full", "| :; exit ${PIPESTATUS[0]}":
            ended = subprocess.run(
                ["bash", "-c", f"{program} health redis {closed}"], cwd=tmp_path, check=False,
                env=clean_environment(HEADRACE_REDIS_URL=url), capture_output=True, text=True,
            )  # fmt: skip
            assert ended.returncode == expected, (closed, ended.stderr)
            assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_every_way_to_log_in(tmp_path: Path, flavour: str) -> None:
    socket_file = tmp_path / "redis.sock"
    with redis_server(flavour, "--unixsocket", str(socket_file), password="p%w/ @") as server:
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", "me", "on", ">hush", "~*", "+@all")
        place = f"127.0.0.1:{server.port}"
        for url in (
            f"redis://:p%25w%2F%20%40@{place}/3",
            f"redis://me:hush@{place}",
            f"unix://me:hush@{socket_file}?db=2",
        ):
            said = healthy(tmp_path, "redis", HEADRACE_REDIS_URL=url)
            assert said == f"Redis at {redact_url(url)}: PONG"
        status, said = health(tmp_path, "redis", HEADRACE_REDIS_URL=f"redis://me:wrong@{place}")
        assert status == 1
        assert said.startswith(f"headrace: Redis at redis://me:***@{place}: ")
        assert "invalid username-password pair" in said
        status, said = health(tmp_path, "redis", HEADRACE_REDIS_URL=f"redis://{place}")
        assert status == 1
        assert "authenticated" in said
