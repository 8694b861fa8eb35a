"""`headrace doctor` on Redis: each test breaks a real server, or the way to it."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.cli.doctor import deployment as sites
from headrace.cli.doctor import redis_server as server
from headrace.cli.doctor.check import CheckResult
from headrace.cli.shared.exit_codes import ExitCode
from headrace.server.ports import free_port
from tests.harness.clients.doctor import breaks, found, look, site, verdict
from tests.harness.fakes.redis import fake_redis
from tests.harness.servers.certificates import Authority
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.wait import wait_until

REDIS = (
    "redis", "redis-version", "redis-mode", "redis-rights", "redis-scripts", "redis-tracking",
    "redis-persistence", "redis-writes", "redis-eviction", "redis-memory", "redis-replicas",
    "redis-clients", "redis-keys",
)  # fmt: skip


@pytest.fixture(scope="module")
def _server() -> Iterator[RedisServer]:
    with redis_server("valkey9") as running:
        yield running


@pytest.fixture
def own(_server: RedisServer) -> Iterator[RedisServer]:
    """A server whose configuration is put back afterwards."""
    changed = ("maxmemory", "maxmemory-policy", "min-replicas-to-write", "maxclients", "save",
               "appendonly", "appendfsync")  # fmt: skip
    with _server.client() as client:
        before = {name: client.config_get(name) for name in changed}
        yield _server
        for values in before.values():
            for name, value in values.items():
                client.config_set(name, value)
        client.flushall()
        for user in client.acl_users():
            if user != "default":
                client.acl_deluser(user)


def user(own: RedisServer, *words: str) -> str:
    """The URL of a new user with these rights."""
    with own.client() as client:
        client.execute_command("ACL", "SETUSER", "odd", "on", ">odd", "~*", "&*", *words)
    return f"redis://odd:odd@127.0.0.1:{own.port}/0"


@pytest.mark.parametrize("flavour", ["valkey9", "redis7", "redis62"])
def test_a_server_as_it_should_be_is_found_so(flavour: str) -> None:
    with redis_server(flavour, "--appendonly", "yes") as running, site(running.url) as whole:
        assert {name: str(look(whole, name).verdict) for name in REDIS} == dict.fromkeys(
            REDIS, "ok"
        )


@breaks("redis")
def test_each_way_of_not_reaching_it_has_its_own_advice(
    own: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = found("redis", f"redis://:secret@127.0.0.1:{free_port()}/0")
    verdict(refused, "fail", "nothing listens there", ":***@")
    assert refused.code is ExitCode.UNREACHABLE
    verdict(found("redis", "redis://nowhere.invalid:6379/0"), "fail", "cannot be resolved")
    verdict(found("redis", f"redis://odd:no@127.0.0.1:{own.port}/0"), "fail", "user and password")
    verdict(found("redis", f"rediss://127.0.0.1:{own.port}/0"), "fail", "does not use TLS")
    verdict(found("redis", f"redis://127.0.0.1:{own.port}/99"), "fail", "no such database")
    verdict(found("redis-tracking", f"redis://127.0.0.1:{own.port}/99"), "skip", "does not answer")
    verdict(found("redis", "unix:///nowhere/redis.sock"), "fail", "no such socket")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(sites, "TIMEOUT_S", 0.3)
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        verdict(found("redis", url), "fail", "no answer within")
    verdict(found("redis"), "warn", "no Redis URL is set", "--redis-url")
    verdict(found("redis", "redis://127.0.0.1:1/0?nonsense=1"), "fail", "unknown option")


@breaks("redis")
def test_tls_is_told_apart_from_its_certificate_and_from_none(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own, port = authority.sign(), free_port()
    arguments = (
        "--tls-port", str(port), "--tls-cert-file", str(own.cert_file), "--tls-key-file",
        str(own.key_file), "--tls-ca-cert-file", str(authority.ca_file), "--tls-auth-clients", "no",
    )  # fmt: skip
    with redis_server("redis7", *arguments):
        url = f"rediss://127.0.0.1:{port}/0"
        verdict(found("redis", url), "fail", "ssl_ca_certs")
        verdict(found("redis", f"redis://127.0.0.1:{port}/0"), "fail", "rediss://")
        verdict(found("redis", f"{url}?ssl_ca_certs={authority.ca_file}"), "ok", "over TLS")


@breaks("redis-version")
def test_a_server_that_is_too_old() -> None:
    with fake_redis("redis_version:5.0.14\nredis_mode:standalone\nrole:master") as old:
        verdict(found("redis-version", old.url), "fail", "5.0.14", "6.2")


@breaks("redis-mode")
def test_a_cluster_a_sentinel_and_a_replica_are_refused(own: RedisServer) -> None:
    # By default 10,000 above the other, which may be no port.
    bus = str(free_port())
    with redis_server("valkey9", "--cluster-enabled", "yes", "--cluster-port", bus) as cluster:
        verdict(found("redis-mode", cluster.url), "fail", "Cluster", "single server")
    with redis_server("valkey9", "--replicaof", f"127.0.0.1 {own.port}") as replica:
        verdict(found("redis-mode", replica.url), "fail", "replica", "primary")
    with fake_redis("redis_version:7.0.0\nredis_mode:sentinel") as sentinel:
        verdict(found("redis-mode", sentinel.url), "fail", "Sentinel")


@breaks("redis-rights", "redis-scripts", "redis-tracking")
def test_users_who_may_not_do_our_work(own: RedisServer) -> None:
    verdict(found("redis-rights", user(own, "+@all", "-@write")), "fail", "write to headrace.*")
    verdict(found("redis-rights", user(own, "+@all", "resetkeys", "~hr:*")), "fail", "headrace")
    narrow = user(own, "+@all", "allkeys", "resetchannels", "&hr:*")
    verdict(found("redis-rights", narrow), "fail", "publish on celery-task-meta-*")
    verdict(found("redis-scripts", user(own, "+@all", "-evalsha")), "fail", "@scripting")
    verdict(found("redis-tracking", user(own, "+@all", "-client|tracking")), "warn", "50 ms")
    # What is looked at by commands that a user may not say is left out, and says why.
    verdict(found("redis-slow", user(own, "+@all", "-slowlog")), "skip", "lacks permission")
    verdict(found("redis-disk", user(own, "+@all", "-config")), "skip", "CONFIG GET dir")


@breaks("redis-persistence")
def test_what_is_not_on_a_disk_is_lost(own: RedisServer) -> None:
    verdict(found("redis-persistence", own.url), "fail", "every job is lost", "appendonly yes")
    with own.client() as client:
        client.config_set("save", "3600 1")
        client.set("x", 1, ex=60)
        verdict(found("redis-persistence", own.url), "warn", "snapshots only", "changes now")
        client.config_set("appendonly", "yes")
        client.config_set("appendfsync", "no")
        verdict(found("redis-persistence", own.url), "warn", "appendfsync no", "everysec")
        client.config_set("appendfsync", "always")
        verdict(found("redis-persistence", own.url), "ok", "always")


@breaks("redis-writes")
def test_a_snapshot_that_failed() -> None:
    with redis_server("redis7") as broken, broken.client() as client:
        shutil.rmtree(broken.folder)
        client.bgsave()
        wait_until(lambda: client.info()["rdb_last_bgsave_status"] != "ok", "the snapshot failed")
        verdict(found("redis-writes", broken.url), "fail", "snapshot failed")


@breaks("redis-eviction")
def test_a_policy_that_drops_jobs(own: RedisServer) -> None:
    with own.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        verdict(found("redis-eviction", own.url), "warn", "allkeys-lru", "noeviction")
        client.config_set("maxmemory", "1gb")
        verdict(found("redis-eviction", own.url), "fail", "1.0 GiB", "queued jobs")


@breaks("redis-memory")
def test_a_server_that_is_full(own: RedisServer) -> None:
    with own.client() as client:
        used = int(client.info()["used_memory"])
        client.config_set("maxmemory", used + used // 16)
        verdict(found("redis-memory", own.url), "warn", "maxmemory", "payload_store")
        client.config_set("maxmemory", used // 2)
        verdict(found("redis-memory", own.url), "fail", "takes no new jobs")
        client.config_set("maxmemory", 1 << 50)
        verdict(found("redis-memory", own.url), "warn", "more than the host's")


@breaks("redis-replicas")
def test_replicas_that_it_waits_for(own: RedisServer) -> None:
    with own.client() as client:
        client.config_set("min-replicas-to-write", 2)
        verdict(found("redis-replicas", own.url), "fail", "accepts no writes", "2")


@breaks("redis-clients")
def test_no_room_for_connections(own: RedisServer) -> None:
    with own.client() as client, ExitStack() as held:
        client.config_set("maxclients", 14)
        for _ in range(11):
            held.enter_context(own.client()).ping()
        verdict(found("redis-clients", own.url), "warn", "of at most 14", "maxclients")


@breaks("redis-latency")
def test_a_server_that_stands_still_or_is_far(
    own: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "TYPICAL_MS", 10_000.0)  # this machine may be busy
    with own.client() as client, site(own.url) as waiting:
        waiting.reach()

        def paused() -> list[CheckResult]:
            """What is found; nothing where this test was held up for longer than Redis."""
            client.execute_command("CLIENT", "PAUSE", 1500, "ALL")
            told = look(waiting, "redis-latency")
            return [] if str(told.verdict) == "ok" else [told]

        (told,) = wait_until(paused, "it is noticed")
        verdict(told, "warn", "PING", "it paused")
    monkeypatch.setattr(server, "TYPICAL_MS", 0.0)
    verdict(found("redis-latency", own.url), "warn", "nearer to the workers")


@breaks("redis-slow")
def test_commands_that_held_all_up(own: RedisServer) -> None:
    with own.client() as client:
        client.eval("for i = 1, 4e7 do end", 0)
        verdict(found("redis-slow", own.url), "warn", "EVAL", "SLOWLOG")


@breaks("redis-fork")
def test_a_fork_that_took_long(own: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with own.client() as client:
        client.bgsave()
        verdict(found("redis-fork", own.url), "ok", "fork took")
        monkeypatch.setattr(server, "FORK_MS", -1.0)  # a large server would be needed for real
        verdict(found("redis-fork", own.url), "warn", "blocks every job")


@breaks("redis-keys")
def test_keys_that_stay_for_ever(own: RedisServer) -> None:
    with own.client() as client:
        client.set("celery-task-meta-old", "{}")
        client.set("theirs", 1)
        verdict(found("redis-keys", own.url), "warn", "1 of 2 sampled keys", "celery-task-meta-old")


@breaks("redis-disk")
def test_a_disk_that_fills(own: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, expected in ((5, "warn"), (1, "fail"), (50, "ok")):
        usage = shutil._ntuple_diskusage(100 << 30, 0, free << 30)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, usage=usage: usage)
        verdict(found("redis-disk", own.url), expected, f"{free}.0 GiB of 100.0 GiB")


@breaks("redis-host")
def test_a_kernel_that_makes_forks_dear(own: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"overcommit_memory": "0", "enabled": "[always] madvise never"}
    monkeypatch.setattr(server, "_kernel", lambda path: said[path.rpartition("/")[2]])
    verdict(found("redis-host", own.url), "warn", "overcommit_memory", "Huge Pages", "sysctl")
    said.update(overcommit_memory="1", enabled="always [madvise] never")
    verdict(found("redis-host", own.url), "ok")


def test_what_it_tries_changes_nothing(own: RedisServer) -> None:
    with own.client() as client, site(own.url) as looked:
        for name in (*REDIS, "redis-latency", "redis-slow"):
            look(looked, name)
        assert client.dbsize() == 0
        assert server.rights(looked).verdict == "ok"
