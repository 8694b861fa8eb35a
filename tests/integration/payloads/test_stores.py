"""One suite over every payload store: a real Redis, a real folder, a real S3 server."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from api.submission.input_store import InputStore
from headrace.config.settings import Settings
from headrace.errors import (
    ConfigError,
    InputUnavailable,
    JobNotFound,
    PayloadTooLarge,
    StoreFull,
    StoreUnavailable,
)
from headrace.jobs.job import StoredResult
from headrace.payloads import stores as file_store
from headrace.payloads.input_ref import InputRefs
from headrace.payloads.store import PayloadEntry, PayloadMissing
from headrace.payloads.stores import PayloadStores, build_stores
from headrace.server.ports import free_port
from tests.harness.clients.payloads import make_due, noted
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.servers.s3 import S3Server, s3_server

BODY = bytes(range(256)) * 300


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def bucket(s3: S3Server) -> str:
    return s3.bucket("payloads")


@dataclass
class Site:
    """Stores over one kind, and what lies in it."""

    stores: PayloadStores
    kind: str
    redis: RedisServer
    folder: Path
    s3: S3Server | None
    bucket: str

    def entry(self, job_id: str = "j") -> PayloadEntry:
        return self.stores.new_entry(job_id, "m", "i")

    def lying(self) -> int:
        if self.kind == "file":
            return sum(path.is_file() for path in self.folder.rglob("*"))
        if self.s3 is not None:
            return len(self.s3.keys(self.bucket))
        with self.redis.client() as client:
            return sum(1 for _ in client.scan_iter("hr:payload:*"))

    def noted(self) -> list[str]:
        with self.redis.client() as client:
            return noted(client)

    def sweep(self) -> int:
        with self.redis.client() as client:
            make_due(client)
        return self.stores.sweep()


@pytest.fixture(params=["redis", "file", "s3"])
def site(request: pytest.FixtureRequest, redis_db: RedisServer, tmp_path: Path) -> Iterator[Site]:
    server = request.getfixturevalue("s3") if request.param == "s3" else None
    bucket = request.getfixturevalue("bucket") if server else ""
    folder = tmp_path / "payloads"
    settings = Settings(
        payload_store=request.param,
        payload_dir=folder if request.param == "file" else None,
        payload_bucket=bucket or None,
        payload_endpoint_url=server.url if server else None,
    )
    stores = build_stores(settings, redis_db.url)
    stores.check()
    running = Site(stores, request.param, redis_db, folder, server, bucket)
    yield running
    while running.sweep():
        pass
    stores.close()
    assert running.lying() == 0


def test_what_is_put_is_got(site: Site) -> None:
    entry = site.entry()
    site.stores.put(entry, BODY)
    store = site.stores.of(entry.ref)
    assert entry.ref.startswith(site.kind + ":")
    assert (store.get(entry.ref), store.size(entry.ref)) == (BODY, len(BODY))
    assert site.noted() == [entry.text]


@pytest.mark.parametrize(
    ("start", "length"), [(0, 1), (0, None), (100, 5), (76_799, 1), (76_790, 1000), (5, None)]
)
def test_a_range_is_what_python_gives(site: Site, start: int, length: int | None) -> None:
    entry = site.entry()
    site.stores.put(entry, BODY)
    end = None if length is None else start + length
    assert site.stores.of(entry.ref).read(entry.ref, start, length) == BODY[start:end]


def test_behind_the_end_there_is_nothing(site: Site) -> None:
    entry = site.entry()
    site.stores.put(entry, BODY)
    assert site.stores.of(entry.ref).read(entry.ref, len(BODY), 10) == b""


def test_a_whole_result_or_an_error(site: Site) -> None:
    entry = site.entry()
    site.stores.put(entry, BODY)
    site.stores.of(entry.ref).chunk_bytes = 1000
    longer = StoredResult(entry.ref, len(BODY) + 1, "")
    with closing(InputStore(site.stores, InputRefs(Settings(), 1))) as results:
        assert asyncio.run(results.read_whole(longer._replace(size=len(BODY)))) == BODY
        with pytest.raises(JobNotFound, match="only 76800 of 76801 bytes"):
            asyncio.run(results.read_whole(longer))


def test_what_is_not_there_is_missing(site: Site) -> None:
    entry = site.entry()
    store = site.stores.of(entry.ref)
    with pytest.raises(PayloadMissing):
        store.get(entry.ref)
    with pytest.raises(PayloadMissing):
        store.size(entry.ref)
    store.delete(entry.ref)


def test_what_nobody_needs_is_dropped_with_its_entry(site: Site) -> None:
    entry = site.entry()
    site.stores.put(entry, BODY)
    site.stores.drop(entry)
    assert (site.lying(), site.noted()) == (0, [])
    site.stores.drop(entry)


def test_what_was_entered_and_never_written_is_swept(site: Site) -> None:
    entry = site.entry()
    site.stores.index.note(entry)
    assert site.sweep() == 1
    assert (site.lying(), site.noted()) == (0, [])


def test_what_was_written_and_never_submitted_is_swept(site: Site) -> None:
    site.stores.put(site.entry(), BODY)
    assert site.stores.sweep() == 0
    assert site.lying() == 1
    assert site.sweep() == 1
    assert (site.lying(), site.noted()) == (0, [])


@pytest.mark.parametrize(
    "ref", ["redis:../../etc/passwd", "file:/etc/passwd", "s3:" + "0" * 31, "redis:" + "0" * 33]
)
def test_what_we_did_not_mint_is_no_reference(site: Site, ref: str) -> None:
    with pytest.raises(InputUnavailable):
        site.stores.of(ref).get(ref)


def test_a_store_without_settings_is_named(site: Site) -> None:
    other = "s3:" + "0" * 32 if site.kind != "s3" else "file:" + "0" * 32
    with pytest.raises(InputUnavailable, match="which is not configured on this server"):
        site.stores.of(other)


def folder_stores(redis_db: RedisServer, folder: Path) -> PayloadStores:
    return build_stores(Settings(payload_store="file", payload_dir=folder), redis_db.url)


def test_files_are_the_servers_own(redis_db: RedisServer, tmp_path: Path) -> None:
    stores = folder_stores(redis_db, tmp_path / "p")
    stores.check()
    stores.put(stores.new_entry("j", "m", "i"), BODY)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "p").rglob("*")}
    assert modes == {0o700, 0o600}
    assert stat.S_IMODE((tmp_path / "p").stat().st_mode) == 0o700


def test_a_write_that_broke_off_is_not_seen_and_is_swept(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    stores = folder_stores(redis_db, tmp_path)
    entry = stores.new_entry("j", "m", "i")
    stores.index.note(entry)
    name = entry.ref.partition(":")[2]
    (tmp_path / name[:2]).mkdir()
    (tmp_path / name[:2] / f"{name}.part").write_bytes(BODY[:100])
    with pytest.raises(PayloadMissing):
        stores.of(entry.ref).get(entry.ref)
    with redis_db.client() as client:
        make_due(client)
    assert stores.sweep() == 1
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_full_disk_says_so(redis_db: RedisServer, tmp_path: Path) -> None:
    # A real ENOSPC wants a file system; a file size limit of this process is one that can be had.
    import resource
    import signal

    stores = folder_stores(redis_db, tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(StoreFull):
            stores.put(stores.new_entry("j", "m", "i"), BODY)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    with redis_db.client() as client:
        make_due(client)
    assert stores.sweep() == 1


def test_a_folder_that_is_gone_is_an_outage_and_no_loss(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    stores = folder_stores(redis_db, tmp_path / "p")
    stores.check()
    entry = stores.new_entry("j", "m", "i")
    stores.put(entry, BODY)
    (tmp_path / "p").rename(tmp_path / "away")  # as when a mount is lost
    with pytest.raises(StoreUnavailable):
        stores.of(entry.ref).get(entry.ref)
    (tmp_path / "away").rename(tmp_path / "p")
    assert stores.of(entry.ref).get(entry.ref) == BODY


def test_a_folder_that_cannot_be_made_is_a_mistake_of_the_settings(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"payload_dir: .* cannot be created"):
        folder_stores(redis_db, tmp_path / "file" / "p").check()


def test_a_link_in_the_folder_is_not_followed(redis_db: RedisServer, tmp_path: Path) -> None:
    stores = folder_stores(redis_db, tmp_path)
    ref = "file:" + "ab" * 16
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / ("ab" * 16)).symlink_to("/etc/passwd")
    with pytest.raises(StoreUnavailable):
        stores.of(ref).get(ref)
    assert file_store._READ_FLAGS & os.O_NOFOLLOW


def test_a_store_whose_settings_are_missing_is_a_mistake(redis_db: RedisServer) -> None:
    with pytest.raises(
        ConfigError, match="payload_store: s3 needs payload_bucket, which is not set"
    ):
        build_stores(Settings(payload_store="s3"), redis_db.url)
    with pytest.raises(
        ConfigError, match="payload_store: file needs payload_dir, which is not set"
    ):
        build_stores(Settings(payload_store="file"), redis_db.url)


def bucket_stores(redis_db: RedisServer, url: str, bucket: str) -> PayloadStores:
    settings = Settings(payload_store="s3", payload_bucket=bucket, payload_endpoint_url=url)
    return build_stores(settings, redis_db.url)


def test_a_bucket_that_is_not_there_is_a_mistake(redis_db: RedisServer, s3: S3Server) -> None:
    stores = bucket_stores(redis_db, s3.url, "nowhere")
    with pytest.raises(ConfigError, match="the S3 server has no bucket nowhere"):
        stores.check()


def test_a_server_that_is_away_is_no_mistake(
    redis_db: RedisServer, s3: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    stores = bucket_stores(redis_db, f"http://127.0.0.1:{free_port()}", "payloads")
    stores.check()
    assert "payload store s3: the S3 server does not answer" in caplog.text
    entry = stores.new_entry("j", "m", "i")
    with pytest.raises(StoreUnavailable):
        stores.put(entry, BODY)
    with pytest.raises(StoreUnavailable):
        stores.of(entry.ref).size(entry.ref)


def test_objects_lie_under_the_prefix(redis_db: RedisServer, s3: S3Server, bucket: str) -> None:
    settings = Settings(
        payload_store="s3", payload_bucket=bucket, payload_endpoint_url=s3.url,
        payload_prefix="mine/",
    )  # fmt: skip
    stores = build_stores(settings, redis_db.url)
    entry = stores.new_entry("j", "m", "i")
    stores.put(entry, BODY)
    assert s3.keys(bucket) == ["mine/" + entry.ref.partition(":")[2]]
    stores.drop(entry)
    assert s3.keys(bucket) == []


def test_the_old_store_is_still_read_and_swept(redis_db: RedisServer, tmp_path: Path) -> None:
    old = build_stores(Settings(), redis_db.url)
    entry = old.new_entry("j", "m", "i")
    old.put(entry, BODY)
    new = folder_stores(redis_db, tmp_path)
    assert new.of(entry.ref).get(entry.ref) == BODY
    with redis_db.client() as client:
        make_due(client)
        assert new.sweep() == 1
        assert noted(client) == []


# Objects of the operator's own


def origins_at(url: str, bucket: str) -> InputRefs:
    settings = Settings(input_buckets=(bucket,), payload_endpoint_url=url, body_limit_bytes=1000)
    return InputRefs(settings, 1)


def test_an_object_that_is_exchanged_for_a_larger_one_is_not_read_whole(
    s3: S3Server, bucket: str
) -> None:
    own = origins_at(s3.url, bucket)
    for size in (0, 1, 1000):
        s3.client.put_object(Bucket=bucket, Key="exchanged", Body=bytes(size))
        assert own.read(f"s3://{bucket}/exchanged") == bytes(size)
    sent: list[int] = []

    def exchange(**_: Any) -> None:
        s3.client.put_object(Bucket=bucket, Key="exchanged", Body=bytes(1_000_000))

    events = own._buckets[bucket].client.meta.events
    events.register("before-call.s3.GetObject", exchange)
    events.register(
        "after-call.s3.GetObject", lambda parsed, **_: sent.append(parsed["ContentLength"])
    )
    with pytest.raises(PayloadTooLarge, match="the limit is 1000"):
        own.read(f"s3://{bucket}/exchanged")
    assert sent == [1001]
    s3.client.delete_object(Bucket=bucket, Key="exchanged")


class Endless(BaseHTTPRequestHandler):
    """Says that each object is small, and sends without end, whatever range was asked for."""

    def do_HEAD(self) -> None:
        self._begin(4)

    def do_GET(self) -> None:
        self._begin(1 << 50)
        try:
            while True:
                self.wfile.write(bytes(65536))
        except OSError:
            self.server.cut.set()  # type: ignore[attr-defined] # see endless_server

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def _begin(self, size: int) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()


@contextmanager
def endless_server() -> Iterator[tuple[str, threading.Event]]:
    """Its address, and what is set once a reader has hung up."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        server.cut = threading.Event()  # type: ignore[attr-defined] # read by its handlers
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", server.cut  # type: ignore[attr-defined]
        finally:
            server.shutdown()
            thread.join()


def test_a_server_that_knows_no_ranges_is_not_read_without_end(s3: S3Server) -> None:
    with endless_server() as (url, cut):
        with pytest.raises(PayloadTooLarge, match="the limit is 1000"):
            origins_at(url, "bucket").read("s3://bucket/key")
        assert cut.wait(60)
