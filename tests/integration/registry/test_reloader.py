"""The files that `headrace up --reload` watches, and what comes of their changes."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import NoReturn

import pytest

from headrace.config.settings import Settings
from headrace.errors import BrokerUnavailable
from headrace.models.folder import MODEL_FILE
from headrace.registry.model import register
from headrace.registry.store import registry_at
from headrace.server import reloader
from headrace.server.reloader import Reloader
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until

FILE = "models: {words: {handler: words.py, max_batch_size: %d}}\n"


class Site:
    """A models file with a handler, whose changes a reloader finds."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.file, self.handler = folder / "models.yaml", folder / "words.py"
        self.file.write_text(FILE % 1)
        self.handler.write_text("x = 1\n")
        self.redis_url = redis_url
        self.reports: list[str] = []
        settings = Settings(models_file=self.file, state_dir=folder)
        self.reloader = Reloader(settings, redis_url, self.reports.append, watch=True)

    def change(self, path: Path, text: str) -> None:
        before = path.stat().st_mtime_ns
        path.write_text(text)
        # The clock of the file system may be too coarse for two changes in a row.
        os.utime(path, ns=(before + 10**9, before + 10**9))

    def words(self) -> tuple[int, int]:
        """The batch size and the reloads of the model."""
        with registry_at(self.redis_url) as store:
            version = store.read().get("words").version("")
        return version.options["max_batch_size"], version.loads


@pytest.fixture
def site(redis_db: RedisServer, tmp_path: Path) -> Site:
    return Site(tmp_path, redis_db.url)


def test_a_change_is_applied_once(site: Site) -> None:
    site.reloader.turn()
    assert site.words() == (1, 1)
    site.reloader.turn()
    assert site.words() == (1, 1)
    site.change(site.file, FILE % 20)
    site.reloader.turn()
    assert site.words() == (20, 1)
    assert site.reports[-1] == "model words: applied the file: max_batch_size=20"


def test_the_folder_of_a_source_is_watched(site: Site, tmp_path: Path) -> None:
    def stored() -> dict[str, int]:
        with registry_at(site.redis_url) as store:
            model = store.read().get("words")
            return {version: one.loads for version, one in model.versions.items()}

    folder = tmp_path / "words"
    folder.mkdir()
    model, handler = folder / MODEL_FILE, folder / "words.py"
    model.write_text("name: words\nhandler: words.py\nversion: '2.1'\n")
    handler.write_text("x = 1\n")
    site.file.write_text("models: {words: {source: words}, other: {handler: echo}}\n")
    site.reloader.turn()
    assert stored() == {"2.1": 1}
    site.change(handler, "x = 2\n")
    site.reloader.turn()
    assert stored() == {"2.1": 2}
    site.change(model, "name: words\nhandler: words.py\nversion: '2.2'\n")
    site.reloader.turn()
    assert list(stored()) == ["2.2"]


def test_a_change_that_redis_does_not_take_is_due_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: str) -> NoReturn:
        raise BrokerUnavailable("Redis does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(reloader, "registry_at", away)
        site.reloader.turn()
        site.reloader.turn()
    assert site.reports == ["nothing was reloaded: Redis does not answer"]
    site.reloader.turn()
    assert site.words() == (1, 1)


def test_a_mistake_in_the_models_file_does_not_keep_a_handler_from_its_reload(site: Site) -> None:
    site.reloader.turn()
    site.change(site.file, FILE % 0)
    site.change(site.handler, "x = 'two'\n")
    site.reloader.turn()

    assert site.words() == (1, 2)
    assert "max_batch_size" in site.reports[-2]
    before = list(site.reports)
    site.reloader.turn()
    assert site.reports == before


def test_a_file_that_is_saved_while_the_servers_start_is_reloaded(site: Site) -> None:
    with registry_at(site.redis_url) as store:
        options = {"handler": "words.py", "max_batch_size": 1}
        store.write(seen := store.read(), register(seen, "words", "1.0", options), "the API")
    site.reloader.note()
    site.change(site.handler, "x = 2\n")
    site.reloader.turn()
    assert site.words() == (1, 1)


def test_a_model_with_a_malformed_handler_keeps_no_other_from_its_reload(site: Site) -> None:
    site.reloader.turn()
    with registry_at(site.redis_url) as store:
        for wrong in ("words.py:", "a.zip"):
            seen = store.read()
            store.write(seen, register(seen, "broken", wrong[0], {"handler": wrong}), "a script")
    site.change(site.handler, "x = 2\n")
    site.reloader.turn()
    assert site.words() == (1, 2)


def test_all_versions_of_a_folder_are_reloaded(site: Site) -> None:
    site.reloader.turn()
    with registry_at(site.redis_url) as store:
        seen = store.read()
        store.write(seen, register(seen, "words", "2.0", {"handler": "words.py"}), "me")
        site.change(site.handler, "x = 2\n")
        site.reloader.turn()
        versions = store.read().get("words").versions

    assert {version: one.loads for version, one in versions.items()} == {"1.0": 2, "2.0": 1}
    assert site.reports[-1] == "model words: its code has changed; the workers load it again"


@pytest.mark.parametrize("error", [MemoryError(), RecursionError("too deep"), KeyError("x")])
def test_code_that_cannot_be_compiled_is_reported_in_one_line(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    site.reloader.turn()
    with monkeypatch.context() as patch:
        patch.setattr(reloader, "compile", fail, raising=False)
        before = len(site.reports)
        site.change(site.handler, "x = 2\n")
        site.reloader.turn()
        assert len(site.reports) == before + 1
        assert "\n" not in site.reports[-1]
    site.change(site.handler, "x = 3\n")
    site.reloader.turn()
    assert site.words() == (1, 2)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_thread_goes_on_after_an_error(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Reloader) -> NoReturn:
        raise errors.pop()

    errors = [SystemExit(), OSError("no such folder"), OSError("no such folder")]
    monkeypatch.setattr(Reloader, "turn", fail)
    site.reloader.start()
    wait_until(
        lambda: all(thread.name != "headrace-reload" for thread in threading.enumerate()),
        "the last error ends the thread",
    )
    assert (errors, site.reports) == ([], ["nothing was reloaded: OSError: no such folder"])


def test_an_unknown_users_folder_is_a_mistake_in_the_models_file(site: Site) -> None:
    site.reloader.turn()
    site.change(site.file, "models: {words: {handler: words.py, weights: ~nouser/x}}\n")
    site.reloader.turn()
    assert "models.words.weights" in site.reports[-1]
    site.change(site.file, FILE % 20)
    site.reloader.turn()
    assert site.words()[0] == 20
