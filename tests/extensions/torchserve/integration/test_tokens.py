"""Tokens of TorchServe, its key file, and API keys of Headrace, on a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import msgspec
import pytest

from extensions.torchserve.config.key_file import Key, make_keys, read_keys
from headrace.access.api_key import Scope
from headrace.server.ports import free_port
from tests.extensions.torchserve.harness.site import TorchServeSite, torchserve_site
from tests.extensions.torchserve.integration.test_management import refusal
from tests.harness.clients.access import make_key
from tests.harness.fakes.worker import publish_state
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until

INVALID = (400, "InvalidKeyException")


@pytest.fixture
def site(redis_db: RedisServer, tmp_path: Path) -> Iterator[TorchServeSite]:
    path = tmp_path / "key_file.json"
    make_keys(path, 60)
    with torchserve_site(
        redis_db.url, tmp_path, worker=False, disable_token_authorization=False, key_file=path
    ) as site:
        yield site


def keys_of(path: Path) -> dict[str, str]:
    """The text of each key."""
    return {kind: key["key"] for kind, key in json.loads(path.read_text()).items()}


def write(site: TorchServeSite, key: Key) -> None:
    """Replace the key for the management interface."""
    path = site.config.key_file
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(read_keys(path), management=key)))


def models(site: TorchServeSite, token: str, scheme: str = "Bearer") -> tuple[int, str]:
    """The code of a management request with a token, and the type of its error."""
    found = site.http.get(
        "/models", headers=[(b"authorization", f"{scheme} {token}".encode("latin-1"))]
    )
    return (200, "") if found.status_code == 200 else refusal(found)


def renewed(site: TorchServeSite, token: str, query: str) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"}
    found = site.http.get(f"/token{query}", headers=headers)
    return (200, found.json()["key"]) if found.status_code == 200 else refusal(found)


@pytest.mark.leaves_keys
def test_each_interface_needs_its_own_token(site: TorchServeSite) -> None:
    keys = keys_of(site.config.key_file)
    assert models(site, keys["management"]) == (200, "")
    assert models(site, keys["management"], "bearer") == (200, "")
    for token in (keys["inference"], keys["API"], "x", "é"):
        assert models(site, token) == INVALID
    assert models(site, keys["management"], "Basic") == INVALID
    assert refusal(site.http.get("/models")) == INVALID
    assert refusal(site.http.delete("/models/echo")) == INVALID
    assert refusal(site.register("none.mar")) == INVALID
    # Each path of a shared port needs only its own token.
    missing = (404, "ModelNotFoundException")
    for path, kind, other in (
        ("/predictions/none", "inference", "management"),
        ("/models/none/invoke", "inference", "management"),
        ("/models/none/1.0", "management", "inference"),
        ("/models/none", "management", "inference"),
    ):
        right = site.http.get(path, headers={"Authorization": f"Bearer {keys[kind]}"})
        wrong = site.http.get(path, headers={"Authorization": f"Bearer {keys[other]}"})
        assert (refusal(right), refusal(wrong)) == (missing, INVALID)
    for path in ("/ping", "/metrics", "/api-description"):
        assert site.http.get(path).status_code != 400


@pytest.mark.leaves_keys
def test_the_api_key_makes_new_tokens(site: TorchServeSite) -> None:
    before = keys_of(site.config.key_file)
    status, text = renewed(site, before["API"], "?type=management")
    after = keys_of(site.config.key_file)
    assert (status, text) == (200, after["management"])
    assert text != before["management"]
    assert after["inference"] == before["inference"]
    assert models(site, before["management"]) == INVALID
    assert models(site, text) == (200, "")
    assert renewed(site, before["API"], "?type=inference")[0] == 200

    assert renewed(site, before["API"], "?type=other") == INVALID
    assert renewed(site, before["API"], "") == INVALID
    assert renewed(site, text, "?type=management") == INVALID
    assert refusal(site.http.get("/token?type=management")) == INVALID
    # Another path may have the word.
    headers = {"Authorization": f"Bearer {text}"}
    missing = site.http.get("/models/token", headers=headers)
    assert refusal(missing) == (404, "ModelNotFoundException")


@pytest.mark.leaves_keys
def test_a_token_expires_and_a_static_one_does_not(site: TorchServeSite) -> None:
    past = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
    write(site, Key("x", past))
    assert models(site, "x") == INVALID
    write(site, Key("static"))
    assert models(site, "static") == (200, "")
    site.config.key_file.unlink()
    assert models(site, "static") == INVALID


@pytest.mark.leaves_keys
def test_without_tokens_there_is_no_token_path(redis_db: RedisServer, tmp_path: Path) -> None:
    with torchserve_site(redis_db.url, tmp_path, worker=False) as site:
        assert refusal(site.http.get("/token?type=inference")) == (404, "ResourceNotFoundException")
        assert site.http.get("/models").status_code == 200


@pytest.mark.leaves_keys
def test_an_api_key_of_headrace_is_as_good_as_a_token(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    path = tmp_path / "key_file.json"
    make_keys(path, 60)
    token = keys_of(path)["management"]
    manager = make_key(redis_db, Scope.MANAGE)[1]
    reader = make_key(redis_db, Scope.READ)[1]
    for disabled in (False, True):
        folder = tmp_path / str(disabled)
        folder.mkdir()
        with torchserve_site(
            redis_db.url, folder, worker=False, settings={"auth": "on"},
            disable_token_authorization=disabled, key_file=path,
        ) as site:  # fmt: skip
            assert models(site, manager) == (200, "")
            assert models(site, reader) == (403, "InvalidKeyException")
            assert models(site, "hr_nonsense") == INVALID
            assert (models(site, token) == (200, "")) is not disabled


@pytest.mark.leaves_keys
def test_the_native_api_needs_a_token_too(site: TorchServeSite) -> None:
    keys = keys_of(site.config.key_file)

    def status(method: str, path: str, kind: str) -> int:
        headers = {"Authorization": f"Bearer {keys[kind]}"} if kind else {}
        return site.http.request(method, path, headers=headers).status_code

    for path in ("/api/v1/jobs", "/api/v1/models"):
        assert [status("GET", path, kind) for kind in ("", "API")] == [401, 401]
        assert [status("GET", path, kind) for kind in ("inference", "management")] == [200, 200]
        assert status("HEAD", path, "") == 401
    submit = "/api/v1/models/none/jobs"
    assert [status("POST", submit, kind) for kind in ("", "inference")] == [401, 404]
    queues = "/api/v1/queues"
    assert [status("GET", queues, kind) for kind in ("", "inference", "management")] == [
        401, 401, 200,
    ]  # fmt: skip
    # The metrics of TorchServe are here on the same port, and need no token.
    for path in ("/live", "/metrics"):
        assert status("GET", path, "") == 200


@pytest.mark.leaves_keys
def test_open_pages_show_models_only_to_who_has_a_token(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    port, path = free_port(), tmp_path / "key_file.json"
    make_keys(path, 60)
    token = keys_of(path)["inference"]
    with (
        torchserve_site(
            redis_db.url, tmp_path, worker=False, settings={"port": port},
            disable_token_authorization=False, key_file=path,
            inference_address=f"http://127.0.0.1:{port}",
        ) as site,
        redis_db.client() as client,
    ):  # fmt: skip
        publish_state(client, "w", "echo", "failed", ready=0, error="no licence for customer-4711")
        anyone: dict[str, str] = {}
        nobody = {"Authorization": "Bearer wrong"}
        holder = {"Authorization": f"Bearer {token}"}

        def get(where: str, headers: dict[str, str]) -> httpx2.Response:
            return site.http.get(where, headers=headers)

        wait_until(lambda: "customer-4711" in get("/ready", holder).text, "the state is known")
        for headers in (anyone, nobody):
            for where in ("/ready", "/ready?models=all"):
                states = get(where, headers).json()["models"]
                assert states == {"echo": {"state": "failed", "ready_replicas": 0}}
            for where in ("/openapi.json", "/docs"):
                found = get(where, headers)
                assert (found.status_code, "job for echo" in found.text) == (200, False)
            assert get("/metrics", headers).status_code == 401
        assert get("/metrics", holder).status_code == 200
