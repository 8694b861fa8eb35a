"""API, worker, Flower and commands with an ACL user and TLS, on a real server with both."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from typing_extensions import override

from headrace import Client, errors
from headrace.errors import BrokerUnavailable, ConfigError
from headrace.redis.compatibility import check_broker
from headrace.redis.connection import connect
from headrace.redis.url import celery_url
from headrace.server.ports import free_port
from tests.harness.clients.celery_client import GET_TIMEOUT_S, send, stock_client
from tests.harness.deployments.pipelines import pipeline_site
from tests.harness.monitoring.flower import asked
from tests.harness.servers.api_process import api_process
from tests.harness.servers.certificates import Authority
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.servers.up import RunningUp, headrace, started
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Worker, celery_worker, write_models

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs/security.md"
PASSWORD = "p%ss/w@rd:of the user"
QUOTED = "p%25ss%2Fw%40rd%3Aof%20the%20user"


def documented_acl() -> list[str]:
    """The words of `ACL SETUSER` that docs/security.md gives."""
    found = re.search(r"^user (.*)$", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    assert found is not None
    return found[1].split()


def documented_commands() -> list[str]:
    """The commands that a managed Redis has to allow, by docs/scaling.md: `+get` and so on."""
    section = (ROOT / "docs/scaling.md").read_text("utf-8").partition("## Managed Redis")[2]
    return re.findall(r"\+[a-z|]+", section.split("```")[1])


@dataclass(frozen=True)
class Guarded:
    """A server with TLS and the documented user, whose plain port is the test's own.

    The user has the documented keys and channels, and of the commands those that a managed server
    has to allow.
    """

    server: RedisServer
    url: str
    ca_file: Path

    def refusals(self) -> list[str]:
        """What the user was refused since it began."""
        with self.server.client() as client:
            log: Any = client.execute_command("ACL", "LOG")
        return [str(row) for row in log]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    authority = Authority(tmp_path_factory.mktemp("tls"))
    own, port = authority.sign(), free_port()
    # Debian's: the servers that wheels bring are built without TLS.
    arguments = (
        "--tls-port", str(port), "--tls-cert-file", str(own.cert_file),
        "--tls-key-file", str(own.key_file), "--tls-ca-cert-file", str(authority.ca_file),
        "--tls-auth-clients", "no",
    )  # fmt: skip
    with redis_server("redis7", *arguments) as server:
        words = [f">{PASSWORD}" if word == ">PASSWORD" else word for word in documented_acl()]
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", *words, "-@all", *documented_commands())
        url = f"rediss://headrace:{QUOTED}@127.0.0.1:{port}/0?ssl_ca_certs={authority.ca_file}"
        yield Guarded(server, url, authority.ca_file)


@pytest.fixture(scope="module")
def worker(guarded: Guarded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    folder = tmp_path_factory.mktemp("worker")
    models = write_models(
        folder,
        echo={"handler": "echo"},
        tricky={"handler": f"{HANDLERS / 'trouble/tricky.py'}:Tricky", "max_retries": 0},
    )
    with celery_worker(guarded.url, models, folder) as running:
        running.wait_ready("echo", "tricky")
        yield running


def operate(client: Client) -> None:
    """Whatever an operator does over HTTP."""
    client.pause_queue("echo")
    waiting = client.submit("echo", 1)
    late = client.submit("echo", 1, countdown=600)
    assert client.cancel(waiting).outcome == "removed"
    assert client.purge_queue("echo") == 1
    client.resume_queue("echo")
    assert client.status(late).status == "cancelled"
    assert {job.id for job in client.jobs()} >= {waiting.id, late.id}
    assert [queue.paused for queue in client.queues()] == [False, False]
    assert list(client.dead_letters("echo")) == []


@pytest.mark.slow
def test_a_workload_runs_with_the_documented_user_over_tls(
    guarded: Guarded, worker: Worker, tmp_path: Path
) -> None:
    with (
        api_process(guarded.url, worker.models, auth="on") as api,
        guarded.server.client() as admin,
    ):
        admin.execute_command("ACL", "LOG", "RESET")
        own = {"HEADRACE_REDIS_URL": guarded.url}
        made = headrace("keys", "create", "x", "--scope", "submit", "--scope", "read",
                        "--scope", "manage", "--rate", "1000", cwd=tmp_path, **own)  # fmt: skip
        assert made.returncode == 0, made.stderr
        key = made.stdout.strip()
        with Client(api.url, api_key=key) as client:
            assert client.result(client.submit("echo", {"x": 1})) == {"x": 1}
            large = "y" * 200_000
            assert client.result(client.submit("echo", large)) == large, "by the payload store"
            assert [one.value for one in client.map("echo", range(300), ordered=True)] == [
                *range(300)
            ]
            with pytest.raises(errors.JobError):
                client.result(client.submit("tricky", {"do": "transient"}))
            operate(client)
            assert client.ready()
        with stock_client(celery_url(guarded.url).url) as app:
            assert send(app, "echo", {"y": 2}).get(timeout=GET_TIMEOUT_S) == {"y": 2}
            inspected = app.control.inspect(timeout=30, limit=1).ping()
            assert inspected, "remote control goes by channels of Celery's own"
            revoked = send(app, "echo", 1, countdown=600)
            app.control.revoke(revoked.id, reply=True, timeout=30, limit=1)
        assert headrace("health", "redis", cwd=tmp_path, **own).returncode == 0
        assert guarded.refusals() == []


@pytest.mark.slow
def test_flower_shows_the_deployment_by_the_same_user(
    guarded: Guarded, worker: Worker, tmp_path: Path
) -> None:
    port = free_port()
    flower = RunningUp(
        tmp_path, HEADRACE_REDIS_URL=guarded.url, HEADRACE_FLOWER_PORT=str(port),
        HEADRACE_STATE_DIR="state", FLOWER_UNAUTHENTICATED_API="true",
    )  # fmt: skip
    flower.arguments = ["flower", "--models", str(worker.models)]
    with guarded.server.client() as admin, started(flower):
        admin.execute_command("ACL", "LOG", "RESET")

        def sees_worker() -> bool:
            try:
                url = f"http://127.0.0.1:{port}/api/workers?refresh=1"
                with urllib.request.urlopen(url, timeout=20) as answer:
                    return worker.node in json.loads(answer.read())
            except OSError:
                return False

        wait_until(sees_worker, "Flower sees the worker", 90)
        status, text = asked(port, "GET", "/api/queues/length")
        assert status == 200, text
        assert {"name": "headrace.echo", "messages": 0} in json.loads(text)["active_queues"]
        assert guarded.refusals() == []


class Behind(RedisServer):
    """A server by the way that the deployment takes to it."""

    way = ""

    @property
    @override
    def url(self) -> str:
        return self.way


@pytest.mark.slow
def test_pipelines_and_the_background_worker_run_by_the_same_user(
    guarded: Guarded, tmp_path: Path
) -> None:
    server = Behind("redis7", guarded.server.port, guarded.server.folder)
    server.way = guarded.url
    stages = {"cut": None, "weigh": {"model": "weigh", "each": "pieces[*]"}}
    with (
        guarded.server.client() as admin,
        pipeline_site(server, tmp_path, {"pieces": {"stages": stages}}) as site,
    ):
        admin.execute_command("ACL", "LOG", "RESET")
        site.background_worker()
        assert len(site.result(site.submit("pieces", {"pieces": 5, "size": 100_000}))) == 5
        assert guarded.refusals() == []


def test_a_server_that_asks_for_a_client_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own, ours, port = authority.sign(), authority.sign("headrace"), free_port()
    arguments = (
        "--tls-port", str(port), "--tls-cert-file", str(own.cert_file),
        "--tls-key-file", str(own.key_file), "--tls-ca-cert-file", str(authority.ca_file),
        "--tls-auth-clients", "yes",
    )  # fmt: skip
    with redis_server("redis7", *arguments):
        url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={authority.ca_file}"
        # Whether its alert or the end of the connection is seen first is a matter of luck.
        with pytest.raises(BrokerUnavailable, match="does not answer"):
            check_broker(url)
        url += f"&ssl_certfile={ours.cert_file}&ssl_keyfile={ours.key_file}"
        models = write_models(tmp_path, echo={"handler": "echo"})
        with (
            celery_worker(url, models, tmp_path) as worker,
            api_process(url, models) as api,
            Client(api.url) as client,
        ):
            worker.wait_ready("echo")
            assert client.result(client.submit("echo", {"x": 1})) == {"x": 1}
            with stock_client(celery_url(url).url) as app:
                assert send(app, "echo", {"y": 2}).get(timeout=GET_TIMEOUT_S) == {"y": 2}


@pytest.mark.parametrize(
    "command",
    [
        ("CONFIG", "GET", "*"), ("FLUSHALL",), ("KEYS", "*"), ("ACL", "LIST"), ("SHUTDOWN",),
        ("SCAN", "0"), ("RANDOMKEY",),
        ("DEBUG", "SLEEP", "0"), ("GET", "another"), ("SET", "another", "1"), ("PUBLISH", "x", "1"),
        ("EVAL", "return redis.call('GET', 'another')", "0"), ("CLIENT", "LIST"), ("MONITOR",),
        ("EVAL", "return redis.call('CONFIG', 'GET', '*')", "0"), ("REPLICAOF", "NO", "ONE"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_the_user_can_do_no_more(guarded: Guarded, command: tuple[str, ...]) -> None:
    with redis.Redis.from_url(guarded.url) as client:
        execute: Any = client.execute_command
        with pytest.raises(redis.ResponseError, match=r"(?i)permission|not allowed|can't"):
            execute(*command)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("headrace:", "headrace:wrong"), "password"),
        (("headrace:", "nobody:"), "password"),
        ((r"\?.*", ""), "certificate"),
    ],
    ids=["password", "user", "ca"],
)
def test_what_does_not_fit_is_said_in_a_line_without_the_password(
    guarded: Guarded, change: tuple[str, str], said: str
) -> None:
    with pytest.raises(BrokerUnavailable, match=f"(?i){said}") as refused:
        check_broker(re.sub(*change, guarded.url, count=1))
    assert QUOTED not in refused.value.message
    assert PASSWORD not in refused.value.message


def test_a_url_with_an_option_that_there_is_none_of_is_said_too(guarded: Guarded) -> None:
    for wrong in (guarded.url.replace("rediss:", "redis:"), f"{guarded.url}&sll_certfile=x"):
        with pytest.raises(ConfigError, match=r"ssl_ca_certs|sll_certfile") as refused:
            check_broker(wrong)
        assert QUOTED not in refused.value.message


def test_every_flavour_knows_the_documented_user(any_redis: RedisServer) -> None:
    words = [">secret" if word == ">PASSWORD" else word for word in documented_acl()]
    with any_redis.client() as admin:
        try:
            admin.execute_command("ACL", "SETUSER", *words)
            url = f"redis://headrace:secret@127.0.0.1:{any_redis.port}/0"
            with connect(url) as client:
                execute: Any = client.execute_command
                assert execute("CLIENT", "TRACKING", "ON")
                assert execute("SCRIPT", "LOAD", "return 1")
                assert client.info("server")
                with pytest.raises(redis.ResponseError):
                    execute("CONFIG", "GET", "*")
        finally:
            admin.execute_command("ACL", "DELUSER", "headrace")


def test_a_managed_server_has_to_allow_what_the_code_names_and_the_user_may_do() -> None:
    """Also what is sent once a minute, or for a profile."""
    documented = {word[1:] for word in documented_commands()}
    named = {
        word.lower()
        for top in ("headrace", "api", "workers")
        for path in (ROOT / top).rglob("*")
        if path.suffix in {".py", ".lua"}
        for word in re.findall(r"""["']([A-Z]{2,20})["']""", path.read_text("utf-8"))
    }
    words = documented_acl()
    categories = {word[2:] for word in words if word.startswith("+@")}
    with redis_server("redis7") as server, server.client() as client:
        execute: Any = client.execute_command
        commands = {name.decode() for name in execute("COMMAND LIST")}
        needed = named & commands - {"readonly"}  # that is the code of an error
        assert len(needed) > 60
        assert needed <= {name.partition("|")[0] for name in documented}
        for name in documented - {word[1:] for word in words}:
            (about,) = execute("COMMAND", "INFO", name).values()
            of = {one.removeprefix("@") for one in about["acl_categories"]}
            assert of & categories, name
            assert "dangerous" not in of, name


@pytest.mark.slow
def test_the_password_is_changed_under_load_and_no_request_fails(tmp_path: Path) -> None:
    models = write_models(tmp_path, echo={"handler": "echo"})
    count, seen = 3_000, []
    with redis_server() as server, server.client() as admin:
        words = [">one" if word == ">PASSWORD" else word for word in documented_acl()]
        admin.execute_command("ACL", "SETUSER", *words)
        old, new = (f"redis://headrace:{word}@127.0.0.1:{server.port}/0" for word in ("one", "two"))
        with (
            celery_worker(old, models, tmp_path) as first,
            api_process(old, models) as api,
            Client(api.url, retry_s=120) as client,
        ):
            first.wait_ready("echo")
            results = client.map("echo", range(count), ordered=True)
            seen += [one.value for one in islice(results, 500)]
            # A user may have several passwords.
            admin.execute_command("ACL", "SETUSER", "headrace", ">two")
            with celery_worker(new, models, tmp_path, node="cpu1@test") as second:
                second.wait_ready("echo")
                assert first.stop() == 0
                seen += [one.value for one in islice(results, 500)]
                api.restart(new)
                seen += [one.value for one in islice(results, 500)]
                admin.execute_command("ACL", "SETUSER", "headrace", "<one")
                # Connections outlive their password: what still had the old one shows now.
                admin.execute_command("CLIENT", "KILL", "USER", "headrace")
                seen += [one.value for one in results]
                assert client.ready()
        with pytest.raises(BrokerUnavailable, match=r"(?i)password"):
            check_broker(old)
    assert seen == [*range(count)]


def test_celery_checks_the_certificate_too(guarded: Guarded) -> None:
    unknown_ca = re.sub(r"\?.*", "", guarded.url)
    url = celery_url(unknown_ca).url
    with Celery("t", broker=url, set_as_current=False) as app:
        connection = app.connection_for_write(transport_options={"socket_connect_timeout": 5})
        with pytest.raises(Exception, match=r"(?i)certificate"), connection:
            connection.ensure_connection(max_retries=0, timeout=20)
