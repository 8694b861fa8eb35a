"""`headrace api --processes N`: one port that answers whatever happens to one of its processes."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.harness.fakes.worker import FakeWorker
from tests.harness.http.plain_http import PLAIN
from tests.harness.processes.processes import gone, suspend
from tests.harness.servers.api_processes import ApiProcesses, api_processes
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.servers.up import headrace, write_models
from tests.harness.wait import wait_until

START_TIMEOUT_S = 60
#: Between two questions of one caller; without, they would take all that the processes start with.
PAUSE_S = 0.01


def submit(api: ApiProcesses, count: int) -> None:
    """Submit jobs, each on a connection of its own."""
    for number in range(count):
        response = httpx2.post(
            f"{api.url}/api/v1/models/echo/jobs", json=number, timeout=30, verify=PLAIN
        )
        assert response.status_code == 202, response.text


def serves_again(api: ApiProcesses, *dead: int, times: int = 1) -> None:
    """Wait until two processes listen, none of them among the dead, after so many new starts."""
    wait_until(
        lambda: (
            len(set(api.pids()) - set(dead)) == 2 and api.text().count("listening on") >= 2 + times
        ),
        "the process is back",
        START_TIMEOUT_S,
    )


@contextmanager
def callers(api: ApiProcesses) -> Iterator[list[str]]:
    """Somebody asks again and again, each time on a new connection; what went wrong for them."""
    wrong: list[str] = []
    over = threading.Event()

    def ask() -> None:
        while not over.wait(PAUSE_S):
            try:
                status = httpx2.get(
                    f"{api.url}/live", timeout=START_TIMEOUT_S, verify=PLAIN
                ).status_code
                wrong.extend([str(status)] if status != 200 else [])
            except httpx2.ConnectError as error:
                wrong.append(str(error))
            except httpx2.TransportError:
                # It was on the process that was killed; its client asks again.
                continue

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield wrong
    finally:
        over.set()
        for thread in threads:
            thread.join(START_TIMEOUT_S)


@pytest.mark.slow
def test_a_process_that_ends_comes_back_and_the_port_never_refuses_until_a_stop(
    tmp_path: Path, redis_db: RedisServer
) -> None:
    with api_processes(tmp_path, redis_db.url, 2) as api:
        for times, how in enumerate((signal.SIGKILL, signal.SIGTERM), 1):
            first, second = api.pids()
            with callers(api) as wrong:
                os.kill(first, how)
                serves_again(api, first, times=times)
            assert wrong == []
            assert second in api.pids()
            assert api.text().count("restarting it") == times

        # While no process is left connections wait.
        dead = api.pids()
        for pid in dead:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: gone(*dead), "both are dead")
        assert (
            httpx2.get(f"{api.url}/live", timeout=START_TIMEOUT_S, verify=PLAIN).status_code == 200
        )
        # Who has answered is another; the supervisor may not have collected both yet.
        assert gone(*dead)

        serves_again(api, *dead, times=4)
        pids = api.pids()
        assert api.stop() == 0
        assert gone(*pids)
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{api.url}/live", timeout=60, verify=PLAIN)
        assert "Traceback" not in api.text()


def test_a_client_that_connects_during_a_stop_is_refused_and_does_not_hang(
    tmp_path: Path, redis_db: RedisServer
) -> None:
    with api_processes(tmp_path, redis_db.url, 2) as api:
        # Stopped in its tracks: it cannot end, and the supervisor waits for it.
        for pid in api.pids():
            suspend(pid)
        assert listening_inodes(api.process.pid)
        api.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not listening_inodes(api.process.pid), "the supervisor has let go")
        for pid in api.pids():
            os.kill(pid, signal.SIGCONT)
        assert api.process.wait(60) == 0


def listening_inodes(pid: int) -> list[str]:
    """The TCP sockets that a process holds open."""
    listed = {row.split()[9] for row in Path("/proc/net/tcp").read_text().splitlines()[1:]}
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:
            continue
        inode = target.removeprefix("socket:[").removesuffix("]")
        if inode in listed:
            found.append(inode)
    return found


def test_it_listens_on_ipv6(tmp_path: Path, redis_db: RedisServer) -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("this machine has no IPv6")
    with api_processes(tmp_path, redis_db.url, 2, "--host", "::1") as api:
        assert f"http://[::1]:{api.port}" in api.text()
        assert (
            httpx2.get(f"http://[::1]:{api.port}/live", timeout=60, verify=PLAIN).status_code == 200
        )
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{api.url}/live", timeout=60, verify=PLAIN)


def test_a_name_is_listened_on_at_each_of_its_addresses(
    tmp_path: Path, redis_db: RedisServer
) -> None:
    with api_processes(tmp_path, redis_db.url, 2, "--host", "localhost") as api:
        found = socket.getaddrinfo("localhost", api.port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as connection:
                try:
                    connection.connect(address)
                except OSError:
                    # An address of the name that this machine does not have.
                    assert family == socket.AF_INET6


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    models = str(write_models(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = headrace(
            "api", "--processes", "2", "--port", str(taken.getsockname()[1]), "--models", models,
            cwd=tmp_path, HEADRACE_REDIS_URL="redis://127.0.0.1:1/0",
        )  # fmt: skip
    assert ended.returncode == 2
    assert f"already in use by pid {os.getpid()}" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.slow
def test_counts_are_those_of_all_processes_and_outlive_them(
    tmp_path: Path, redis_db: RedisServer
) -> None:
    with FakeWorker(redis_db.url, "echo"), api_processes(tmp_path / "a", redis_db.url, 2) as one:
        with api_processes(tmp_path / "b", redis_db.url) as other:
            submit(one, 4)
            submit(other, 3)
            bad = httpx2.post(
                f"{other.url}/api/v1/models/echo/jobs?priority=x", json=1, timeout=60, verify=PLAIN
            )
            assert bad.status_code == 400
            wait_until(lambda: one.admitted() == other.admitted() == 7, "all are counted")
            # It is alone, and ends by the signal that it was sent.
            assert other.stop() in (0, -signal.SIGTERM)
        rejected = 'headrace_jobs_rejected_total{model="echo",reason="invalid-request"}'
        wait_until(lambda: one.metrics()[rejected] == 1, "the other has told it at its end")
        first = one.pids()[0]
        os.kill(first, signal.SIGKILL)
        serves_again(one, first)
        assert one.admitted() == 7
        submit(one, 2)
        wait_until(lambda: one.admitted() == 9, "the new process counts on")
