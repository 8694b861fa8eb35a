"""Which servers are refused, and in which words."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis.exceptions

from headrace.errors import BrokerUnavailable, BrokerUnsupported
from headrace.redis.compatibility import check_broker
from headrace.redis.connection import connect, connect_async
from headrace.redis.url import redact_url
from headrace.server.ports import free_port
from tests.harness.fakes.redis import fake_redis
from tests.harness.servers.redis_servers import RedisServer, redis_server, require
from tests.harness.wait import wait_until


@contextmanager
def protected_redis(password: str) -> Iterator[RedisServer]:
    """A server that wants a password."""
    with redis_server("redis7") as server:
        with server.client() as client:
            client.config_set("requirepass", password)
        yield server


def test_each_flavour_is_taken(any_redis: RedisServer) -> None:
    info = check_broker(any_redis.url)
    assert info.name == ("valkey" if any_redis.flavour == "valkey9" else "redis")
    assert (
        info.version.split(".")[0]
        == {"valkey9": "9", "redis62": "6", "redis7": "7"}[any_redis.flavour]
    )


def test_what_can_lose_jobs_is_warned_of() -> None:
    arguments = ("--maxmemory-policy", "allkeys-lru", "--appendonly", "no")
    with redis_server("valkey9", *arguments) as server:
        eviction, persistence = check_broker(server.url).warnings()
    assert "allkeys-lru" in eviction
    assert "appendonly" in persistence
    with redis_server("valkey9", "--appendonly", "yes") as server:
        assert check_broker(server.url).warnings() == []


def test_nobody_there() -> None:
    url = f"redis://:hunter2@127.0.0.1:{free_port()}/0"
    with pytest.raises(BrokerUnavailable, match="Connection refused") as caught:
        check_broker(url)
    assert redact_url(url) in caught.value.message
    assert "hunter2" not in caught.value.message
    assert "HEADRACE_REDIS_URL" in caught.value.hint


def test_wrong_password() -> None:
    with protected_redis("right") as server:
        for userinfo in ("", ":wrong@"):
            url = f"redis://{userinfo}127.0.0.1:{server.port}/0"
            with pytest.raises(BrokerUnavailable, match="refuses the login"):
                check_broker(url)
        assert check_broker(f"redis://:right@127.0.0.1:{server.port}/0").name == "redis"


def test_a_user_without_info() -> None:
    with redis_server("redis7") as server:
        with server.client() as client:
            client.acl_setuser("u", enabled=True, passwords=["+p"], commands=["+ping"])
        with pytest.raises(BrokerUnsupported, match="INFO"):
            check_broker(f"redis://u:p@127.0.0.1:{server.port}/0")


def test_cluster_mode() -> None:
    # The default, the port plus 10,000, may be none.
    bus = str(free_port())
    with (
        redis_server("redis7", "--cluster-enabled", "yes", "--cluster-port", bus) as server,
        pytest.raises(BrokerUnsupported, match="Cluster mode"),
    ):
        check_broker(server.url)


def test_a_read_only_replica() -> None:
    with (
        redis_server("redis7", "--replicaof", "127.0.0.1", str(free_port())) as server,
        pytest.raises(BrokerUnsupported, match="read-only replica"),
    ):
        check_broker(server.url)


@pytest.mark.parametrize("version", ["6.0.16", "5.0.14", "2.8.24"])
def test_older_than_6_2(version: str) -> None:
    with (
        fake_redis(f"redis_version:{version}\nredis_mode:standalone\nrole:master\n") as fake,
        pytest.raises(BrokerUnsupported, match=f"is version {version}") as caught,
    ):
        check_broker(fake.url)
    assert "6.2" in caught.value.hint


def test_6_2_itself_and_valkey_by_its_compatible_version() -> None:
    with fake_redis("redis_version:6.2.0\nredis_mode:standalone\nrole:master\n") as fake:
        assert check_broker(fake.url).version == "6.2.0"
    said = "redis_version:7.2.4\nserver_name:valkey\nvalkey_version:8.0.1\nrole:master\n"
    with fake_redis(said) as fake:
        info = check_broker(fake.url)
    assert (info.name, info.version) == ("valkey", "8.0.1")


def test_something_that_is_no_redis() -> None:
    with (
        fake_redis("hello:world\n") as fake,
        pytest.raises(BrokerUnsupported, match="does not report its version"),
    ):
        check_broker(fake.url)


@pytest.fixture
def sentinel(tmp_path: Path) -> Iterator[tuple[int, RedisServer]]:
    """A Sentinel's port, and the password-protected server that it watches as `main`."""
    port = free_port()
    with protected_redis("pw") as server:
        config = tmp_path / "sentinel.conf"
        config.write_text(
            f"port {port}\nsentinel monitor main 127.0.0.1 {server.port} 1\n"
            "sentinel auth-pass main pw\n"
        )
        command = [require("redis7"), str(config), "--sentinel", "--dir", str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as watcher:
            try:
                yield port, server
            finally:
                watcher.kill()


def test_sentinel_leads_to_the_server_that_it_watches(sentinel: tuple[int, RedisServer]) -> None:
    port, server = sentinel
    dead = free_port()
    url = f"sentinel://:pw@127.0.0.1:{dead},127.0.0.1:{port}/2?master=main"

    def found() -> bool:
        try:
            return check_broker(url).name == "redis"
        except BrokerUnavailable:
            return False

    wait_until(found, "the Sentinel has found its server")
    with connect(url) as client:
        info = client.client_info()
        assert int(str(info["laddr"]).rpartition(":")[2]) == server.port
        assert info["db"] == 2

    async def asked() -> int:
        async with connect_async(url) as asynchronous:
            return int((await asynchronous.client_info())["db"])

    assert asyncio.run(asked()) == 2
    with pytest.raises(BrokerUnavailable, match="No master found"):
        check_broker(f"sentinel://:pw@127.0.0.1:{port}/0?master=other")
    with pytest.raises(BrokerUnsupported, match="is a Sentinel"):
        check_broker(f"redis://127.0.0.1:{port}/0")


def test_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with redis_server("redis7", "--unixsocket", str(path)):
        assert check_broker(f"unix://{path}?db=1").name == "redis"
    with pytest.raises(BrokerUnavailable, match="does not answer"):
        check_broker(f"unix://{path}")


def test_a_command_that_times_out_is_not_said_again() -> None:
    """A repeat that nobody knows of is how a job is claimed twice."""
    options: dict[str, Any] = {"protocol": 2, "socket_timeout": 0.1}
    with fake_redis("") as fake:

        def said() -> None:
            with connect(fake.url, **options) as client:
                client.get("n")

        def said_asynchronously() -> None:
            async def get() -> None:
                async with connect_async(fake.url, **options) as client:
                    await client.get("n")

            asyncio.run(get())

        def heard(say: Callable[[], None]) -> int:
            """How often; not at all where the connection itself has taken too long."""
            before = fake.heard.count(b"GET")
            with pytest.raises(redis.exceptions.TimeoutError):
                say()
            return fake.heard.count(b"GET") - before

        for say in (said, said_asynchronously):
            assert wait_until(lambda say=say: heard(say), "it is heard") == 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("redis://:secret@h:1/0", "redis://:***@h:1/0"),
        ("rediss://user:secret@h", "rediss://user:***@h"),
        ("redis://:se/cr@et@h:1", "redis://:***@h:1"),
        ("redis://:se?cret@h:1", "redis://***@h:1"),
        ("unix:///tmp/s?db=1&password=secret", "unix:///tmp/s?db=1&password=***"),
        (
            "sentinel://:secret@a,b/0?master=m&sentinel_password=secret",
            "sentinel://:***@a,b/0?master=m&sentinel_password=***",
        ),
        ("secret@nothing", "***"),
    ],
)
def test_redaction(url: str, shown: str) -> None:
    assert redact_url(url) == shown
