"""Several payloads in one call: what becomes of each, in every store and beside troubles."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.config.settings import Settings
from headrace.errors import BrokerUnavailable, PayloadTooLarge, StoreFull
from headrace.payloads.index import SCRIPT_MAX_BYTES
from headrace.payloads.store import PayloadEntry
from headrace.payloads.stores import PayloadStores, build_stores
from tests.harness.clients.payloads import make_due, noted, payload_keys, sweep_all
from tests.harness.servers.api_server import api_server, catalog
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.servers.s3 import s3_server

BODIES = (b"a" * 70_000, bytes(SCRIPT_MAX_BYTES + 1), b"c")


def entries(stores: PayloadStores, count: int) -> list[PayloadEntry]:
    return [stores.new_entry(f"j{n}", "m", "i") for n in range(count)]


@contextmanager
def running(server: RedisServer, settings: Settings | None = None) -> Iterator[PayloadStores]:
    stores = build_stores(settings or Settings(), server.url)
    stores.check()
    try:
        yield stores
        with server.client() as client:
            make_due(client)
        while stores.sweep():
            pass
    finally:
        stores.close()


def check_written(server: RedisServer, stores: PayloadStores) -> None:
    fresh = entries(stores, len(BODIES))
    found = stores.default.put_all(list(zip(fresh, BODIES, strict=True)))
    assert found == [None, None, None]
    assert [stores.of(entry.ref).get(entry.ref) for entry in fresh] == list(BODIES)
    with server.client() as client:
        assert sorted(noted(client)) == sorted(entry.text for entry in fresh)


def test_in_redis(any_redis: RedisServer) -> None:
    with running(any_redis) as stores:
        check_written(any_redis, stores)


def test_in_a_folder(redis_db: RedisServer, tmp_path: Path) -> None:
    with running(redis_db, Settings(payload_store="file", payload_dir=tmp_path)) as stores:
        check_written(redis_db, stores)


def test_in_a_bucket(redis_db: RedisServer) -> None:
    with s3_server() as s3:
        settings = Settings(
            payload_store="s3", payload_bucket=s3.bucket("together"), payload_endpoint_url=s3.url
        )
        with running(redis_db, settings) as stores:
            check_written(redis_db, stores)


def test_each_that_has_no_room_hears_so_and_the_others_are_there(redis_db: RedisServer) -> None:
    with running(redis_db, Settings(max_payload_memory_bytes=100_000)) as stores:
        bodies = [b"1" * 60_000, b"2" * 60_000, b"3" * 100_001, b"4" * 40_000, b""]
        fresh = entries(stores, len(bodies))
        found = stores.default.put_all(list(zip(fresh, bodies, strict=True)))
        kinds = [type(error) for error in found]
        assert kinds == [type(None), StoreFull, PayloadTooLarge, type(None), type(None)]
        with redis_db.client() as client:
            assert len(payload_keys(client)) == 3
            assert len(noted(client)) == 3


def test_a_server_that_has_forgotten_its_scripts(redis_db: RedisServer) -> None:
    with running(redis_db) as stores, redis_db.client() as client:
        client.script_flush()
        check_written(redis_db, stores)


def test_connections_that_were_cut_meanwhile(redis_db: RedisServer) -> None:
    with running(redis_db) as stores:
        stores.put(entries(stores, 1)[0], b"opens a connection")
        with redis_db.client() as client:
            make_due(client)
            stores.sweep()
            client.client_kill_filter(_type="normal", skipme=True)
            check_written(redis_db, stores)


def test_a_redis_that_is_away_is_said_of_each() -> None:
    with redis_server("valkey9") as server, running(server) as stores:
        server.stop()
        found = stores.default.put_all([(entry, b"x") for entry in entries(stores, 3)])
        assert [type(error) for error in found] == [BrokerUnavailable] * 3
        server.start()


def test_lines_of_one_request_at_a_store_that_becomes_full(redis_db: RedisServer) -> None:
    models = catalog(echo={"max_queue_depth": 100})
    with api_server(redis_db.url, models, max_payload_memory_bytes=200_000) as api:
        inputs = ["a" * 70_000, "b" * 90_000, "c" * 60_000, "d", "e" * 200_000]
        lines = [json.dumps({"model": "echo", "input": text}) for text in inputs]
        answer = api.http.post("/api/v1/jobs/bulk?hold=0", content="\n".join(lines))
        found = [json.loads(line) for line in answer.text.splitlines()]
        codes = [line.get("error", {}).get("type", "").rpartition("/")[2] for line in found]
        assert codes == ["", "", "payload-storage-full", "", "payload-too-large"]
        with redis_db.client() as client:
            assert len(payload_keys(client)) == 2
        sweep_all(api, redis_db, cancel=True)


@pytest.mark.parametrize("count", [1, 300])
def test_many_lines_keep_their_inputs(redis_db: RedisServer, count: int) -> None:
    with api_server(redis_db.url, catalog(echo={"max_queue_depth": 1000})) as api:
        lines = [json.dumps({"model": "echo", "input": f"{n:05}" * 14_000}) for n in range(count)]
        answer = api.http.post("/api/v1/jobs/bulk", content="\n".join(lines))
        found = [json.loads(line) for line in answer.text.splitlines()]
        assert [line["status"] for line in found] == ["queued"] * count
        with redis_db.client() as client:
            by_job = {text.split()[1]: text.split()[0].partition(":")[2] for text in noted(client)}
            for n, job in enumerate(found):
                body = client.get(f"hr:payload:{by_job[job['id']]}")
                assert body == f'"{n:05}'.encode() + f"{n:05}".encode() * 13_999 + b'"'
        sweep_all(api, redis_db, cancel=True)
