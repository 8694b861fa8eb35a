"""`/v1/files` with OpenAI's own SDK, over every payload store, and half of an upload."""

from __future__ import annotations

import asyncio
import io
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from extensions.openai.api.files import FORM_MAX_BYTES, FileService
from extensions.openai.batches import files as files_module
from headrace.redis import keys
from tests.extensions.openai.harness.batches import sdk
from tests.harness.clients.payloads import make_due, noted, payload_keys
from tests.harness.servers.api_process import api_process
from tests.harness.servers.api_server import ApiServer, api_server, catalog
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.servers.s3 import S3Server, s3_server
from tests.harness.servers.up import write_models
from tests.harness.wait import wait_until

LIMIT_BYTES = 12 * 1024 * 1024
#: Three parts, none of which is like another.
LINES = 400_000
BODY = (b'{"custom_id": "%07d"}\n' * LINES) % tuple(range(LINES))
BOUNDARY = "b0undary"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@dataclass
class Site:
    api: ApiServer
    client: openai.OpenAI
    redis: RedisServer
    folder: Path
    s3: S3Server | None
    bucket: str

    def lying(self) -> int:
        """How many payloads there are."""
        with self.redis.client() as client:
            found = len(payload_keys(client))
        found += sum(path.is_file() for path in self.folder.rglob("*"))
        return found + (len(self.s3.keys(self.bucket)) if self.s3 else 0)

    def sweep(self) -> None:
        with self.redis.client() as client:
            make_due(client)
        self.api.services.of(FileService).store.stores.sweep()

    def run_out(self, pattern: str = "hr:file:*") -> None:
        """As though the time of these records had come."""
        with self.redis.client() as client:
            for key in client.scan_iter(pattern):
                client.delete(key)

    def upload(self, body: bytes = b"{}\n", name: str = "in.jsonl", **more: Any) -> Any:
        return self.client.files.create(file=(name, io.BytesIO(body)), purpose="batch", **more)


@pytest.fixture
def site(request: pytest.FixtureRequest, redis_db: RedisServer, tmp_path: Path) -> Iterator[Site]:
    kind = getattr(request, "param", "redis")
    server = request.getfixturevalue("s3") if kind == "s3" else None
    bucket = server.bucket("files") if server else None
    folder = tmp_path / "payloads"
    with (
        api_server(
            redis_db.url, catalog(echo={}), file_limit_bytes=LIMIT_BYTES, payload_store=kind,
            payload_dir=folder if kind == "file" else None, payload_bucket=bucket,
            payload_endpoint_url=server.url if server else None,
        ) as api,
        sdk(api.url) as client,
    ):  # fmt: skip
        made = Site(api, client, redis_db, folder, server, bucket or "")
        yield made
        made.run_out()
        made.sweep()
        assert made.lying() == 0
        with redis_db.client() as left:
            assert noted(left) == []


@pytest.mark.parametrize("site", ["redis", "file", "s3"], indirect=True)
def test_a_file_comes_back_as_it_was_and_goes_without_a_trace(site: Site) -> None:
    file = site.upload(BODY)
    assert (file.bytes, file.filename, file.purpose) == (len(BODY), "in.jsonl", "batch")
    assert site.lying() == 3
    # None of it is touched while it is needed.
    site.sweep()
    assert site.client.files.content(file.id).read() == BODY
    assert site.client.files.retrieve(file.id) == file
    assert site.client.files.delete(file.id).deleted is True
    assert site.lying() == 0
    with pytest.raises(openai.NotFoundError) as caught:
        site.client.files.content(file.id)
    assert caught.value.code == "file-not-found"


def test_a_file_is_gone_when_it_has_expired(site: Site) -> None:
    file = site.upload(BODY, expires_after={"anchor": "created_at", "seconds": 2})
    assert file.expires_at == file.created_at + 2

    def gone() -> bool:
        try:
            site.client.files.retrieve(file.id)
        except openai.NotFoundError:
            return True
        return False

    wait_until(gone, "the file expires")
    assert site.client.files.list().data == []
    site.sweep()
    assert site.lying() == 0


def test_lists_are_paged_in_both_orders_and_by_purpose(site: Site) -> None:
    ids = [site.upload(name=f"{n}.jsonl").id for n in range(5)]
    files = site.client.files
    assert [file.id for file in files.list(limit=2)] == ids[::-1]
    page = files.list(limit=2, order="asc")
    assert ([file.id for file in page.data], page.has_more) == (ids[:2], True)
    assert [file.id for file in files.list(order="asc", after=ids[2])] == ids[3:]
    assert files.list(purpose="batch_output").data == []
    assert len(files.list(purpose="batch").data) == 5
    # A page goes on behind a file that is gone.
    for file in files.list(limit=1):
        files.delete(file.id)
    assert files.list().data == []
    assert site.api.http.get("/v1/files").json() == {
        "object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False,
    }  # fmt: skip


def test_an_empty_file_is_a_file(site: Site) -> None:
    file = site.upload(b"", name="C:\\folder\\empty.jsonl")
    assert (file.bytes, file.filename) == (0, "empty.jsonl")
    assert site.client.files.content(file.id).read() == b""


def test_the_async_sdk(site: Site) -> None:
    async def used() -> None:
        async with openai.AsyncOpenAI(base_url=f"{site.api.url}/v1", api_key="none") as client:
            file = await client.files.create(file=b"{}\n", purpose="batch")
            assert (await client.files.content(file.id)).content == b"{}\n"
            assert [one.id async for one in client.files.list()] == [file.id]

    asyncio.run(used())


def form(*parts: tuple[str, str, bytes], end: bool = True) -> bytes:
    """A form; a part is its name, more of its Content-Disposition, and its body."""
    texts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode()
        + body + b"\r\n"
        for name, more, body in parts
    ]  # fmt: skip
    return b"".join(texts) + (f"--{BOUNDARY}--\r\n".encode() if end else b"")


FILE = ("file", '; filename="a"', b"{}")
PURPOSE = ("purpose", "", b"batch")


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        (form(FILE), "purpose is missing", "purpose"),
        (form(FILE, ("purpose", "", b"vision")), "'vision' is not served", "purpose"),
        (form(PURPOSE), "has no part 'file'", None),
        (form(FILE, FILE, PURPOSE), "more than one file", None),
        (form(FILE, PURPOSE, PURPOSE), "has the field 'purpose' twice", None),
        (form(FILE, PURPOSE, ("mode", "", b"x")), "unknown field 'mode'", None),
        (form(FILE, PURPOSE, end=False), "ends before its last boundary", None),
        (form(FILE, ("purpose", "", b"x" * 5000)), "longer than 4096", None),
        (form(*[(str(n), "", b"") for n in range(30)]), "more than 20 fields", None),
        (b"no form at all", "does not begin with the boundary", None),
        (
            form(FILE, PURPOSE, ("expires_after[seconds]", "", b"60")),
            "counts from when the file was made",
            "expires_after",
        ),
        (
            form(FILE, PURPOSE, ("expires_after[anchor]", "", b"created_at")),
            "no seconds",
            "expires_after",
        ),
        (
            form(
                FILE, PURPOSE, ("expires_after[anchor]", "", b"created_at"),
                ("expires_after[seconds]", "", b"2592001"),
            ),
            "not in 1 to 2592000",
            "expires_after",
        ),
    ],
)  # fmt: skip
def test_a_form_that_is_none_of_ours(
    site: Site, body: bytes, message: str, param: str | None
) -> None:
    kind = f"multipart/form-data; boundary={BOUNDARY}"
    answer = site.api.http.post("/v1/files", content=body, headers={"content-type": kind})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert message in error.pop("message")
    assert error == {"type": "invalid_request_error", "param": param, "code": "invalid-request"}
    assert site.client.files.list().data == []
    assert site.lying() == 0


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/files?limit=0", 400, "invalid-request"),
        ("GET", "/v1/files?order=up", 400, "invalid-request"),
        ("GET", "/v1/files?ordre=asc", 400, "invalid-request"),
        ("GET", "/v1/files/file-0", 404, "file-not-found"),
        ("DELETE", "/v1/files/file-0", 404, "file-not-found"),
        ("GET", "/v1/files/file-0/content", 404, "file-not-found"),
        ("PUT", "/v1/files", 405, "method-not-allowed"),
        ("GET", "/v1/nothing", 404, "not-found"),
        ("POST", "/v1/files", 415, "unsupported-media"),
    ],
)
def test_errors_are_openais(site: Site, method: str, path: str, status: int, code: str) -> None:
    kind = {"content-type": "text/plain"} if method == "POST" else {}
    answer = site.api.http.request(method, path, headers=kind)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("invalid_request_error", code)


def test_a_file_that_is_too_large_is_refused_before_or_while_it_comes(site: Site) -> None:
    body = b"x" * (LIMIT_BYTES + 1)
    with pytest.raises(openai.APIStatusError) as caught:
        site.upload(body)
    assert (caught.value.status_code, caught.value.code) == (413, "payload-too-large")
    # A body that declares a larger size is not read.
    with pytest.raises(openai.APIStatusError, match=str(LIMIT_BYTES)):
        site.upload(body + b"x" * FORM_MAX_BYTES)
    assert site.lying() == 0


def test_a_full_store_is_an_error_and_leaves_nothing(redis_db: RedisServer) -> None:
    with (
        api_server(redis_db.url, catalog(echo={}), max_payload_memory_bytes=5_000_000) as api,
        sdk(api.url) as client,
    ):
        with pytest.raises(openai.InternalServerError) as caught:
            client.files.create(file=BODY, purpose="batch")
        assert (caught.value.status_code, caught.value.code) == (507, "payload-storage-full")
        with redis_db.client() as left:
            assert payload_keys(left) == []


def begun(url: str, sent: bytes) -> socket.socket:
    """A connection on which a part of an upload was sent."""
    host, _, port = url.rpartition("/")[2].partition(":")
    connection = socket.create_connection((host, int(port)), 60)
    head = (
        f"POST /v1/files HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(BODY) + 500}\r\n"
        f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n"
    )
    connection.sendall(head.encode() + form(("file", '; filename="a"', sent), end=False)[:-2])
    return connection


def test_who_hangs_up_in_the_midst_leaves_nothing(site: Site) -> None:
    with begun(site.api.url, BODY[: len(BODY) // 2]):
        wait_until(lambda: site.lying() == 1, "a part of it is stored", 30)
        # It cannot be seen, whatever its size.
        with site.redis.client() as client:
            found = [raw.decode() for raw in client.scan_iter("hr:file:*")]
            (key,) = (name for name in found if not name.endswith(":parts"))
        file_id = key.removeprefix("hr:file:")
        assert site.client.files.list().data == []
        with pytest.raises(openai.NotFoundError):
            site.client.files.retrieve(file_id)
    wait_until(lambda: site.lying() == 0, "what was written is deleted", 30)
    with site.redis.client() as client:
        assert not client.exists(key)


def test_an_upload_that_stalls_for_too_long_is_abandoned(site: Site) -> None:
    with begun(site.api.url, BODY[: len(BODY) // 2]) as connection:
        wait_until(lambda: site.lying() == 1, "a part of it is stored", 30)
        with site.redis.client() as client:
            kept_s = [client.ttl(record) for record in client.scan_iter("hr:file:*")]
        assert all(0 < ttl <= files_module.ABANDONED_S for ttl in kept_s)
        site.run_out()
        connection.sendall(BODY[len(BODY) // 2 :])
        answer = connection.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 404"), answer
    assert b"was abandoned" in answer
    site.sweep()
    assert site.lying() == 0


def test_a_killed_api_leaves_half_of_a_file_to_the_sweep(site: Site, tmp_path: Path) -> None:
    with api_process(site.redis.url, write_models(tmp_path)) as process:
        with begun(process.url, BODY[: len(BODY) // 2]):
            with site.redis.client() as client:
                named = keys.file_parts("*")
                wait_until(lambda: list(client.scan_iter(named)), "its record names a part", 30)
            assert site.lying() == 1
            process.kill()
        with site.redis.client() as client:
            records = [raw.decode() for raw in client.scan_iter("hr:file:*")]
            assert all(0 < client.ttl(record) <= files_module.ABANDONED_S for record in records)
        site.sweep()
        assert site.lying() == 1, "it may still be written"
        site.run_out()
        site.sweep()
        assert site.lying() == 0


def test_a_part_that_is_gone_cuts_the_answer_short(site: Site) -> None:
    file = site.upload(BODY)
    with site.redis.client() as client:
        (_, second, _) = client.zrange(keys.file_parts(file.id), 0, -1)
        client.delete(keys.payload + second.decode().partition(":")[2])
    with pytest.raises(openai.APIError):
        site.client.files.content(file.id)
    assert json.loads(site.api.http.get(f"/v1/files/{file.id}").content)["bytes"] == len(BODY)
