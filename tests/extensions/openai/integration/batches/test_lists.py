"""Lists of files and batches: each key reads its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from api.services import Services
from extensions.openai.api.files import FileService
from extensions.openai.batches.store import JOBS_ENDPOINT, BatchSpec
from extensions.openai.redis import keys as batch_keys
from headrace.access.api_key import EVERYBODY, Caller, Scope
from headrace.redis import keys
from headrace.redis.keys import Prefix
from tests.harness.clients.access import http_as, make_key
from tests.harness.servers.api_server import ApiServer, api_server, catalog
from tests.harness.servers.redis_servers import RedisServer

FOREIGN = 150


@dataclass
class Kind:
    """Files, or batches.

    Attributes:
        create: creates one that an API key owns; returns its id.
        page: returns the ids of a page of a caller, and whether more follow.
        names: the lists: of all, and of one key.
    """

    path: str
    record: Prefix
    create: Callable[[str], str]
    page: Callable[[Caller, str, int], tuple[list[str], bool]]
    names: tuple[str, Prefix]

    def make(self, owner: str) -> str:
        """Create one; its id sorts behind the others, as that of another millisecond."""
        now_ms = time.time_ns() // 10**6
        while time.time_ns() // 10**6 == now_ms:
            pass
        return self.create(owner)


def files_of(services: Services) -> Kind:
    store = services.of(FileService).store

    def page(caller: Caller, after: str, limit: int) -> tuple[list[str], bool]:
        found = store.page(caller, after=after, limit=limit)
        return [file.id for file in found.items], found.has_more

    return Kind(
        "/v1/files", keys.file, lambda owner: store.begin("in.jsonl", owner).finish("batch").id,
        page, (batch_keys.FILES, batch_keys.files_of),
    )  # fmt: skip


def batches_of(services: Services) -> Kind:
    store = services.of(FileService).batches

    def create(owner: str) -> str:
        spec = BatchSpec(
            endpoint=JOBS_ENDPOINT, input_file_id="f", window="24h", window_s=86_400, owner=owner
        )
        return store.create(spec).id

    def page(caller: Caller, after: str, limit: int) -> tuple[list[str], bool]:
        found = store.page(caller, after=after, limit=limit)
        return [batch.id for batch in found.items], found.has_more

    names = (batch_keys.BATCHES, batch_keys.batches_of)
    return Kind("/v1/batches", batch_keys.batch, create, page, names)


@dataclass
class Site:
    kind: Kind
    redis: redis.Redis
    api: ApiServer
    server: RedisServer

    def read_records(self, caller: Caller) -> int:
        """How many records Redis reads for a page of this caller."""

        def count() -> int:
            found: Any = self.redis.info("commandstats")
            return int(found.get("cmdstat_hgetall", {"calls": 0})["calls"])

        before = count()
        self.kind.page(caller, "", 20)
        return count() - before


@pytest.fixture(params=[files_of, batches_of], ids=["files", "batches"])
def site(request: pytest.FixtureRequest, redis_db: RedisServer) -> Iterator[Site]:
    with (
        api_server(redis_db.url, catalog(echo={}), auth="on") as api,
        redis_db.client() as client,
    ):
        yield Site(request.param(api.services), client, api, redis_db)
        client.flushall()


def caller(key_id: str) -> Caller:
    return Caller(key_id=key_id, sees_all=False)


def test_a_key_reads_no_records_of_other_keys(site: Site) -> None:
    kind = site.kind
    mine = [kind.make("mine") for _ in range(3)]
    for _ in range(FOREIGN):
        kind.make("another")
    assert kind.page(caller("mine"), "", 20) == (mine[::-1], False)
    assert site.read_records(caller("mine")) < FOREIGN / 2
    assert site.read_records(EVERYBODY) < FOREIGN / 2


def test_a_caller_without_a_key_has_what_no_key_made(site: Site) -> None:
    site.kind.make("another")
    own = site.kind.make("")
    assert site.kind.page(caller(""), "", 20) == ([own], False)


def test_ids_of_records_that_are_gone_leave_every_list(site: Site) -> None:
    kind = site.kind
    expired = [kind.make("mine") for _ in range(4)]
    for one in expired:
        site.redis.delete(kind.record(one))
    every, of = kind.names
    # The key never lists: each that it makes removes the two oldest.
    made = [kind.make("mine") for _ in range(2)]
    for name in (every, of("mine")):
        left: Any = site.redis.zrange(name, 0, -1)
        assert [raw.decode() for raw in left] == made
    site.redis.delete(kind.record(made[0]))
    assert kind.page(caller("mine"), "", 5) == (made[1:], False)
    for name in (every, of("mine")):
        assert site.redis.zcard(name) == 1


def test_over_http_a_key_sees_its_own_and_a_manager_all(site: Site) -> None:
    key_id, mine = make_key(site.server)
    _, other = make_key(site.server)
    _, chief = make_key(site.server, *Scope)
    ids = [site.kind.make(key_id) for _ in range(3)] + [site.kind.make("")]
    listed = {}
    for name, key in (("mine", mine), ("other", other), ("chief", chief)):
        with http_as(site.api, key) as http:
            reply = http.get(site.kind.path, params={"limit": 10}).json()
            listed[name] = [one["id"] for one in reply["data"]]
    assert listed == {"mine": ids[2::-1], "other": [], "chief": ids[::-1]}
