"""The registry in a real Redis: two writers at once, repeats, and what is read back."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.config.model.catalog import Catalog, load_catalog
from headrace.config.model.traffic import Traffic
from headrace.config.settings import Settings
from headrace.errors import Conflict
from headrace.redis import keys
from headrace.redis.connection import connect_async
from headrace.redis.script_client import AsyncScriptClient, ScriptClient
from headrace.registry.catalog import ConfigReader, read_declared
from headrace.registry.model import register, reload, set_options, unregister
from headrace.registry.store import AsyncRegistryStore, RegistryStore
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until

WORDS = {"handler": "words.py"}


@pytest.fixture
def store(redis_db: RedisServer) -> Iterator[RegistryStore]:
    with redis_db.client() as client:
        yield RegistryStore(ScriptClient(client))


def test_what_is_written_is_read(store: RegistryStore, redis_db: RedisServer) -> None:
    # JSON has no numbers as keys, and no times.
    at = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    options = {**WORDS, "options": {"names": {0: "cat"}, "at": at}}
    empty = store.read()
    assert (empty.generation, empty.models) == (0, {})

    generation = store.write(empty, register(empty, "words", "1.0", options), "me")

    found = store.read()
    assert found.generation == generation == 1
    assert found.get("words").version("1.0").options == options
    assert (found.get("words").generation, found.get("words").by) == (1, "me")


def test_the_second_of_two_writers_learns_who_was_first(store: RegistryStore) -> None:
    empty = store.read()
    store.write(empty, register(empty, "words", "1.0", WORDS), "alice")
    seen = store.read()
    store.write(seen, reload(seen, "words"), "bob")

    with pytest.raises(Conflict, match=r"to generation 2, by bob at .*: reloaded 1\.0"):
        store.write(seen, set_options(seen, "words", "", {"weight": 2}), "carol")
    assert store.read().get("words").version("").options == WORDS


def test_two_changes_of_one_model_are_refused(store: RegistryStore) -> None:
    empty = store.read()
    first = register(empty, "words", "1.0", WORDS)
    with pytest.raises(ValueError, match="one model"):
        store.write(empty, first + register(empty, "words", "2.0", WORDS), "me")
    assert store.read() == empty


def test_a_change_of_a_model_that_was_removed_and_added_again_is_refused(
    store: RegistryStore,
) -> None:
    empty = store.read()
    store.write(empty, register(empty, "words", "1.0", WORDS), "alice")
    seen = store.read()
    store.write(seen, unregister(seen, "words"), "bob")
    gone = store.read()
    with pytest.raises(Conflict, match="was removed meanwhile"):
        store.write(seen, reload(seen, "words"), "carol")
    store.write(gone, register(gone, "words", "1.0", WORDS), "bob")

    with pytest.raises(Conflict, match="by bob"):
        store.write(seen, reload(seen, "words"), "carol")


def test_of_several_changes_all_or_none_are_written(store: RegistryStore) -> None:
    empty = store.read()
    store.write(empty, register(empty, "words", "1.0", WORDS), "alice")

    both = [*register(empty, "other", "1.0", WORDS), *register(empty, "words", "1.0", WORDS)]
    with pytest.raises(Conflict):
        store.write(empty, both, "bob")
    assert list(store.read().models) == ["words"]


def test_a_repeated_call_is_no_conflict(store: RegistryStore, redis_db: RedisServer) -> None:
    empty = store.read()
    with redis_db.client() as client:
        sent = []
        real = client.execute_command
        client.execute_command = lambda *call: sent.append(call) or real(*call)  # type: ignore[func-returns-value]
        first = RegistryStore(ScriptClient(client)).write(
            empty, register(empty, "words", "1.0", WORDS), "alice"
        )
        assert real(*sent[-1]) == [first]
    assert store.read().generation == first
    assert [change.by for change in store.log()] == ["alice"]


def test_changes_are_published_and_logged(store: RegistryStore, redis_db: RedisServer) -> None:
    with redis_db.client() as client, client.pubsub(ignore_subscribe_messages=True) as news:
        news.subscribe(keys.MODEL_CHANGES)
        wait_until(lambda: not news.get_message(timeout=0.1) and news.subscribed, "it listens")
        empty = store.read()
        store.write(empty, register(empty, "words", "1.0", WORDS), "alice")
        message = wait_until(lambda: news.get_message(timeout=0.1), "it is published")
        assert message["data"] == b"1"
    seen = store.read()
    store.write(seen, unregister(seen, "words"), "bob")

    newest, first = store.log()
    assert (first.model, first.what, first.by) == ("words", "registered version 1.0", "alice")
    assert (newest.what, newest.by) == ("removed the model", "bob")


def test_a_models_file_is_applied_and_then_served(store: RegistryStore, tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text("models: {words: {handler: echo, version: '2.0', options: {names: {1: one}}}}")
    declared = read_declared(file)
    seen = store.read()
    store.write(seen, declared.changes(seen, prune=True), "the file", applied=declared)

    found = store.read()
    configs = ConfigReader(
        Settings(timeout_s=7.0, state_dir=tmp_path), load_catalog(file, timeout_s=7)
    )
    assert (found.file, found.declared) == (declared.digest, {"words": "2.0"})
    assert declared.changes(found, prune=True) == []
    (model,) = configs.versions(found)["words"].values()
    assert (model.version, model.options, model.timeout_s) == ("2.0", {"names": {1: "one"}}, 7.0)


def test_what_only_a_newer_headrace_knows_is_left_out(
    store: RegistryStore, redis_db: RedisServer, tmp_path: Path
) -> None:
    newer = {
        "weights": {"1.0": 3},
        "sticky": {"cookie": "user"},
        "shadow": "1.0",
        "mirrors": ["2.0"],
    }
    options = {"handler": "echo", "traffic": newer, "version": "1.0"}
    written = {
        "name": "words", "generation": 1, "declared_default": "1.0", "colour": "red",
        "versions": {"1.0": {"declared": options, "since": 7}},
    }  # fmt: skip
    with redis_db.client() as client:
        for traffic in ({}, {"traffic": newer}):
            value = b"1 " + msgspec.msgpack.encode({**written, **traffic})
            client.hset(keys.MODELS, "words", value)
            found = store.read()
            routing = found.get("words").routing
            assert routing == Traffic(weights={"1.0": 3}, shadow="1.0")
    settings = Settings(state_dir=tmp_path)
    reader = ConfigReader(settings, Catalog(tmp_path / "models.yaml", {}))
    ((_, _, registered),) = reader.all(found)
    assert registered.config is not None, registered.problem
    assert registered.config.traffic == routing


def test_the_asyncio_store_does_the_same(redis_db: RedisServer) -> None:
    async def scenario() -> None:
        client = connect_async(redis_db.url)
        try:
            store = AsyncRegistryStore(AsyncScriptClient(client))
            empty = await store.read()
            assert await store.write(empty, register(empty, "words", "1.0", WORDS), "alice") == 1
            assert (await store.read()).get("words").version("1.0").options == WORDS
            with pytest.raises(Conflict):
                await store.write(empty, register(empty, "words", "1.0", {}), "bob")
            assert [change.by for change in await store.log()] == ["alice"]
        finally:
            await client.aclose()

    asyncio.run(scenario())
