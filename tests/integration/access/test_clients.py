"""API keys as clients and operators meet them: the SDK, and `headrace keys`."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import Client
from headrace.errors import Forbidden, InvalidRequest, RateLimited, TooManyInFlight, Unauthorized
from headrace.server.ports import free_port
from tests.harness.clients.access import make_key, revoke_key
from tests.harness.clients.clients import SHELLS, client_of
from tests.harness.clients.commands import headrace_here
from tests.harness.fakes.worker import FakeWorker
from tests.harness.servers.api_server import ApiServer, api_server, catalog
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.servers.up import clean_environment
from tests.harness.wait import wait_until


@pytest.fixture
def api(redis_db: RedisServer) -> Iterator[ApiServer]:
    with api_server(redis_db.url, catalog(echo={}), auth="on") as server:
        yield server


@pytest.mark.parametrize("shell", SHELLS)
def test_a_client_sends_its_key_and_raises_what_it_is_told(
    shell: str, api: ApiServer, redis_db: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_id, key = make_key(redis_db)
    with (
        FakeWorker(redis_db.url, "echo"),
        client_of(shell, api.url, api_key=key) as client,
    ):
        assert client.result(client.submit("echo", {"x": 1})) == {"x": 1}
        assert list(client.map("echo", [1, 2, 3], ordered=True))[2].value == 3
        with pytest.raises(Forbidden, match="manage"):
            client.queues()
    monkeypatch.setenv("HEADRACE_API_KEY", key)
    with client_of(shell, api.url) as client:
        assert [model.name for model in client.models()] == ["echo"]
    with client_of(shell, api.url, api_key="") as client, pytest.raises(Unauthorized):
        client.models()
    revoke_key(redis_db, key_id)

    def none_any_more() -> bool:
        with client_of(shell, api.url) as client:
            try:
                client.models()
            except Unauthorized:
                return True
        return False

    wait_until(none_any_more, "the key is none")


@pytest.mark.leaves_keys  # of a cancelled job, in its list
def test_limits_are_typed_and_say_when_to_try_again(api: ApiServer, redis_db: RedisServer) -> None:
    with Client(api.url, api_key=make_key(redis_db, in_flight=1)[1], retry_s=0) as client:
        job = client.submit("echo", 1)
        with pytest.raises(TooManyInFlight) as full:
            client.submit("echo", 1)
        assert full.value.retry_after_s >= 1
        client.cancel(job)
    with Client(api.url, api_key=make_key(redis_db, rate=0.001)[1], retry_s=0) as client:
        client.models()
        with pytest.raises(RateLimited) as fast:
            client.models()
        assert fast.value.retry_after_s > 500


def test_map_waits_for_room_under_a_limit(api: ApiServer, redis_db: RedisServer) -> None:
    _, key = make_key(redis_db, in_flight=3)
    with FakeWorker(redis_db.url, "echo"), Client(api.url, api_key=key) as client:
        assert [result.value for result in client.map("echo", range(20), ordered=True)] == [
            *range(20)
        ]


def test_nothing_says_the_key(
    api: ApiServer, redis_db: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    _, key = make_key(redis_db)
    caplog.set_level(logging.DEBUG)
    with Client(api.url, api_key=key) as client:
        client.models()
        with pytest.raises(Forbidden) as refused:
            client.queues()
        said = [repr(client), str(vars(client)), repr(refused.value), str(refused.value.hint)]
    with Client("http://127.0.0.1:1", api_key=key, retry_s=0) as client:
        with pytest.raises(Exception, match="does not answer") as lost:
            client.models()
        said += [repr(lost.value), str(lost.value)]
    with pytest.raises(InvalidRequest) as broken:
        Client(api.url, api_key=key + "\n")
    said += [str(broken.value), caplog.text]
    assert "127.0.0.1" in caplog.text, "something was logged"
    assert not any(key[-43:] in text for text in said)


def headrace(
    *arguments: str, cwd: Path, url: str = "", rc: int = 0
) -> subprocess.CompletedProcess[str]:
    environ = {"HEADRACE_REDIS_URL": url} if url else {}
    ended = headrace_here(*arguments, cwd=cwd, **environ)
    assert ended.returncode == rc, ended.stderr
    return ended


@pytest.mark.leaves_keys  # likewise
def test_an_operator_makes_lists_renews_and_revokes_keys(
    api: ApiServer, redis_db: RedisServer, tmp_path: Path
) -> None:
    url = redis_db.url
    made = headrace("keys", "create", "night batch", "--rate", "50", "--in-flight", "7",
                    "--expires", "90d", cwd=tmp_path, url=url)  # fmt: skip
    key = made.stdout.strip()
    key_id = key.split("_")[1]
    assert key_id in made.stderr
    # By the settings of this command, which know of loopback alone.
    assert "the API does not require keys; set HEADRACE_AUTH=on" in made.stderr
    assert key[-43:] not in made.stderr
    with Client(api.url, api_key=key) as client:
        job = client.submit("echo", 1)
        listed = json.loads(headrace("keys", "list", "--json", cwd=tmp_path, url=url).stdout)
        assert {name: listed[name] for name in ("id", "name", "scopes", "rate")} == {
            "id": key_id, "name": "night batch", "scopes": ["read", "submit"], "rate": 50.0,
        }  # fmt: skip
        assert (listed["in_flight"], listed["max_in_flight"]) == (1, 7)
        shown = headrace("keys", "list", cwd=tmp_path, url=url).stdout
        assert "1/7" in shown
        assert "TOKENS" not in shown, "no key has this limit"
        assert listed["tokens_per_minute"] is None
        assert key[-43:] not in shown + json.dumps(listed)
        other = headrace("keys", "create", "writer", "--tokens-per-minute", "9000", "--json",
                         cwd=tmp_path, url=url)  # fmt: skip
        assert json.loads(other.stdout)["tokens_per_minute"] == 9000
        head, first, second = headrace("keys", "list", cwd=tmp_path, url=url).stdout.splitlines()
        assert head.split()[:6] == ["ID", "NAME", "SCOPES", "RATE", "TOKENS", "IN"]
        assert "9,000/min" not in first
        assert "9,000/min" in second
        headrace("keys", "revoke", json.loads(other.stdout)["id"], cwd=tmp_path, url=url)
        renewed = headrace("keys", "rotate", key_id, "--grace", "1h", cwd=tmp_path, url=url)
        with Client(api.url, api_key=renewed.stdout.strip()) as again:
            assert again.status(job).status == "queued", "it is the same key"
            assert client.status(job).status == "queued", "for an hour"
            again.cancel(job)
        headrace("keys", "revoke", key_id, cwd=tmp_path, url=url)
    assert headrace("keys", "list", "--json", cwd=tmp_path, url=url).stdout == ""
    gone = headrace("keys", "revoke", key_id, cwd=tmp_path, rc=2, url=url)
    assert "there is no API key" in gone.stderr
    whole = headrace("keys", "revoke", key, cwd=tmp_path, rc=2, url=url).stderr
    assert f"its id is {key_id}" in whole
    assert key[-43:] not in whole
    for wrong in (
        ("--expires", "soon"), ("--expires", "0s"), ("--scope", "all"), ("--rate", "-1"),
        ("--rate", "inf"), ("--rate", "1e-9"), ("--tokens-per-minute", "-1"),
        ("--tokens-per-minute", "1000000000001"),
    ):  # fmt: skip
        headrace("keys", "create", "x", *wrong, cwd=tmp_path, rc=2, url=url)
    for name in ("", "x" * 65, "a\nb"):
        headrace("keys", "create", name, cwd=tmp_path, rc=2, url=url)
    keyless = headrace("models", "--url", api.url, cwd=tmp_path, rc=2)
    assert "set HEADRACE_API_KEY" in keyless.stderr
    nowhere = headrace("keys", "list", cwd=tmp_path, rc=2)
    assert "no Redis URL is set" in nowhere.stderr


def test_whoever_opens_the_api_to_others_is_told(redis_db: RedisServer, tmp_path: Path) -> None:
    models = tmp_path / "models.yaml"
    models.write_text("models: {echo: {handler: echo}}\n")
    own = {
        "HEADRACE_REDIS_URL": redis_db.url, "HEADRACE_MODELS_FILE": str(models),
        "HEADRACE_PORT": str(free_port()), "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    for more, told in (
        ({"HEADRACE_PUBLISHED_AT": "192.0.2.1"}, "make one with `headrace keys create`"),
        ({"HEADRACE_PUBLISHED_AT": "192.0.2.1", "HEADRACE_AUTH": "off"}, "auth is off"),
    ):
        with subprocess.Popen(
            [sys.executable, "-m", "api"], env={**clean_environment(**own, **more)},
            stderr=subprocess.PIPE, cwd=os.getcwd(),
        ) as process:  # fmt: skip
            try:
                assert process.stderr is not None
                lines = iter(process.stderr.readline, b"")
                assert any(told.encode() in line for line in lines)
            finally:
                process.kill()
