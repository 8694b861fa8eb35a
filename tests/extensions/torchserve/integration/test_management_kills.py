"""Kills and lost replies in a registration: the model is registered whole or not at all."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from extensions.torchserve.api.management.model_files import PARTIAL
from extensions.torchserve.config.settings import TorchServeConfig, write_config
from tests.extensions.torchserve.harness.site import (
    GATED,
    TorchServeSite,
    torchserve_site,
    write_archive,
)
from tests.harness.fakes.proxy import Proxy, proxy
from tests.harness.http.plain_http import PLAIN
from tests.harness.servers.api_process import ApiProcess, api_process
from tests.harness.servers.file_server import FileServer, file_server
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from tests.harness.workers.worker import Worker, celery_worker, write_models


@dataclass
class Site:
    """An API process that a test kills, and a worker that it does not."""

    store: Path
    api: ApiProcess
    worker: Worker

    def ask(self, method: str, path: str, **options: Any) -> httpx2.Response:
        with httpx2.Client(base_url=self.api.url, timeout=90, verify=PLAIN) as http:
            return http.request(method, path, **options)

    def register_in_background(self, **query: Any) -> threading.Thread:
        """Send a registration whose answer will never come."""

        def send() -> None:
            with contextlib.suppress(httpx2.TransportError):
                self.ask("POST", "/models", params={"initial_workers": 1, **query})

        thread = threading.Thread(target=send)
        thread.start()
        return thread

    def names(self) -> list[str]:
        return [one["modelName"] for one in self.ask("GET", "/models").json()["models"]]


@pytest.fixture
def files() -> Iterator[FileServer]:
    with file_server() as server:
        yield server


@pytest.fixture
def site(redis_db: RedisServer, tmp_path: Path) -> Iterator[Site]:
    store = tmp_path / "model-store"
    store.mkdir()
    models = write_models(tmp_path, echo={"handler": "echo"})
    config = tmp_path / "torchserve.properties"
    write_config(config, TorchServeConfig(enable_model_api=True, disable_token_authorization=True))
    own = {"model_store": str(store), "state_dir": str(tmp_path / "state")}
    environ = {f"HEADRACE_{name.upper()}": value for name, value in own.items()}
    with (
        api_process(redis_db.url, models, torchserve=str(config), **own) as api,
        celery_worker(redis_db.url, models, tmp_path, environ=environ) as worker,
    ):
        worker.wait_ready("echo")
        yield Site(store, api, worker)


def test_a_kill_during_a_download_leaves_no_model_and_no_file(
    site: Site, files: FileServer, tmp_path: Path
) -> None:
    files.files["/digits.mar"] = write_archive(tmp_path / "digits.mar", "digits").read_bytes()
    files.stalled = threading.Event()
    sent = site.register_in_background(url=f"{files.url}/digits.mar")
    wait_until(lambda: list(site.store.glob(f"{PARTIAL}*")), "the download has begun")
    site.api.kill()
    sent.join(60)
    files.stalled.set()
    files.stalled = None

    site.api.start()
    assert site.names() == ["echo"]
    again = site.ask("POST", f"/models?url={files.url}/digits.mar&initial_workers=1")
    assert again.status_code == 200, again.text
    assert [path.name for path in site.store.iterdir()] == ["digits.mar"]
    assert site.ask("POST", "/predictions/digits", json={}).text == "1.0"


def test_a_kill_before_the_registration_leaves_a_file_that_the_next_one_replaces(
    site: Site, files: FileServer, redis_db: RedisServer, tmp_path: Path
) -> None:
    files.files["/digits.mar"] = write_archive(tmp_path / "digits.mar", "digits").read_bytes()
    target = site.store / "digits.mar"
    with redis_db.client() as client:
        # The registration reads the registry, names the file, and waits for Redis to write.
        client.execute_command("CLIENT", "PAUSE", 600_000, "WRITE")
        try:
            sent = site.register_in_background(url=f"{files.url}/digits.mar")
            wait_until(target.exists, "the file has its name")
            site.api.kill()
            sent.join(60)
        finally:
            client.execute_command("CLIENT", "UNPAUSE")
    assert target.exists()

    # What the URL has now is another archive.
    other = write_archive(tmp_path / "digits.mar", "digits", version="2.0").read_bytes()
    files.files["/digits.mar"] = other
    site.api.start()
    assert site.names() == ["echo"]
    again = site.ask("POST", f"/models?url={files.url}/digits.mar&initial_workers=1")
    assert again.status_code == 200, again.text
    assert [path.name for path in site.store.iterdir()] == ["digits.mar"]
    assert target.read_bytes() == other
    assert site.ask("POST", "/predictions/digits", json={}).text == "2.0"


def test_a_kill_behind_the_registration_leaves_the_file_of_the_model(
    site: Site, files: FileServer, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    code = GATED.replace("GATE", repr(str(gate)))
    files.files["/digits.mar"] = write_archive(tmp_path / "digits.mar", "digits", code).read_bytes()
    files.files["/other.mar"] = write_archive(tmp_path / "other.mar", "other").read_bytes()
    sent = site.register_in_background(url=f"{files.url}/digits.mar")
    wait_until(lambda: "digits" in site.names(), "the model is registered")
    site.api.kill()
    sent.join(60)
    # As a kill between the change and the removal of the first name leaves it.
    (site.store / f"{PARTIAL}0a-digits.mar").hardlink_to(site.store / "digits.mar")

    site.api.start()
    again = site.ask("POST", f"/models?url={files.url}/digits.mar")
    assert (again.status_code, again.json()["type"]) == (500, "InternalServerException")
    added = site.ask("POST", f"/models?url={files.url}/other.mar&initial_workers=1")
    assert added.status_code == 200, added.text
    assert {path.name for path in site.store.iterdir()} == {"digits.mar", "other.mar"}
    gate.touch()
    assert site.ask("POST", "/predictions/digits", json={}).text == "1.0"


def test_a_kill_during_the_load_leaves_a_whole_model(site: Site, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    code = GATED.replace("GATE", repr(str(gate)))
    write_archive(site.store / "digits.mar", "digits", code)
    sent = site.register_in_background(url="digits.mar", batch_size=3)
    wait_until(lambda: "digits" in site.names(), "the model is registered")
    site.api.kill()
    sent.join(60)

    site.api.start()
    (shown,) = site.ask("GET", "/models/digits").json()
    assert (shown["batchSize"], shown["minWorkers"]) == (3, 1)
    gate.touch()
    assert site.ask("POST", "/predictions/digits", json={}).text == "1.0"
    assert site.ask("DELETE", "/models/digits").status_code == 200
    assert site.names() == ["echo"]


@pytest.fixture
def behind_proxy(redis_db: RedisServer, tmp_path: Path) -> Iterator[tuple[TorchServeSite, Proxy]]:
    """An API whose connections to Redis can lose replies; its scripts are loaded."""
    with proxy(redis_db.port) as network:
        url = redis_db.url.replace(str(redis_db.port), str(network.port))
        with torchserve_site(url, tmp_path, worker=False) as site:
            assert site.register(site.archive("first"), initial_workers=0).status_code == 200
            yield site, network


def _lose_replies(network: Proxy, model: str) -> None:
    # A change is repeated once.
    network.lose_answer_to(b'"model":"%s"' % model.encode(), times=2)


def test_a_change_whose_reply_is_lost_leaves_the_file_of_the_model(
    behind_proxy: tuple[TorchServeSite, Proxy], tmp_path: Path
) -> None:
    site, network = behind_proxy
    urls = [f"file://{write_archive(tmp_path / f'{one}.mar', one)}" for one in ("digits", "other")]
    _lose_replies(network, "digits")
    lost = site.register(urls[0], initial_workers=0)
    assert (lost.status_code, network.lost) == (503, 2)
    assert site.names() == ["digits", "echo", "first"]
    # The next fetch finds the file in use.
    assert site.register(urls[1], initial_workers=0).status_code == 200
    assert {path.name for path in site.store.iterdir()} == {"digits.mar", "first.mar", "other.mar"}
    assert site.http.delete("/models/digits").status_code == 200
    assert site.register(urls[0], initial_workers=0).status_code == 200


def test_a_change_that_is_lost_leaves_a_file_that_the_next_registration_replaces(
    behind_proxy: tuple[TorchServeSite, Proxy], redis_db: RedisServer, tmp_path: Path
) -> None:
    site, network = behind_proxy
    url = f"file://{write_archive(tmp_path / 'digits.mar', 'digits')}"
    with redis_db.client() as client:
        client.execute_command("SCRIPT", "FLUSH")  # so the lost replies are refusals
    _lose_replies(network, "digits")
    lost = site.register(url, initial_workers=0)
    assert (lost.status_code, network.lost) == (503, 2)
    assert site.names() == ["echo", "first"]
    assert (site.store / "digits.mar").exists()
    assert site.register(url, initial_workers=0).status_code == 200
    assert {path.name for path in site.store.iterdir()} == {"digits.mar", "first.mar"}
