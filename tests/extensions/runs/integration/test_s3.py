"""S3 as source and output of a run, with a real S3 server; killed before and behind the upload."""

from __future__ import annotations

import gzip
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from typing_extensions import override

from extensions.runs.registry import sink_for
from extensions.runs.sources import s3 as runs_s3
from extensions.runs.sources.patterns import pattern_regex
from headrace.client.inputs import encode_input
from headrace.errors import ConfigError, Conflict, StoreUnavailable
from headrace.payloads.s3_client import s3_client
from headrace.server.ports import free_port
from tests.extensions.runs.harness.sinks import begun, ended, recovered, row
from tests.extensions.runs.harness.sources import (
    errors,
    inputs,
    opened,
    read_all,
    resumes_everywhere,
)
from tests.harness.fakes.proxy import Carrier, shut
from tests.harness.servers.s3 import S3Server, s3_server


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture(scope="module")
def client(server: S3Server) -> Any:
    return s3_client(server.url, 16)


@pytest.fixture
def s3(server: S3Server, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, with one client for all: to make one takes longer than most of these tests."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setattr(runs_s3, "s3_client", lambda *_, **__: client)
    monkeypatch.setenv("HEADRACE_SPOOL_DIR", str(tmp_path / "spool"))
    return server


@pytest.fixture
def bucket(s3: S3Server, request: pytest.FixtureRequest) -> str:
    return s3.bucket("b" + str(abs(hash(request.node.name)))[:12])


def put(s3: S3Server, bucket: str, **bodies: bytes) -> None:
    for key, body in bodies.items():
        s3.client.put_object(Bucket=bucket, Key=key, Body=body)


def put_all(s3: S3Server, bucket: str, keys: list[str]) -> None:
    for key in keys:
        s3.client.put_object(Bucket=bucket, Key=key, Body=key.encode())


def test_objects_under_a_prefix_in_the_order_of_their_keys(
    s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_s3, "AHEAD", 2)
    keys = [f"in/{number:03d}.png" for number in range(6)] + ["in/a/b.jpg"]
    put_all(s3, bucket, [*keys, "in/", "in/.hidden", "in/.d/x.png", "in-other/x.png", "z"])
    url = f"s3://{bucket}/in"
    entries = resumes_everywhere(lambda: opened(url), 3)
    assert [entry["key"] for entry in entries] == [f"s3://{bucket}/{key}" for key in keys]
    assert [entry["input"] for entry in entries] == [key.encode() for key in keys]
    assert {entry["content_type"] for entry in entries} == {"image/png", "image/jpeg"}
    assert opened(url).count() == 7
    assert opened(url, glob=("a/*",)).count() == 1
    assert opened(f"s3://{bucket}/in/*.png").count() == 6
    assert opened(f"s3://{bucket}/in**").count() == 8
    assert opened(f"s3://{bucket}").count() == 9


def test_a_prefix_with_other_objects_is_another_source(s3: S3Server, bucket: str) -> None:
    put_all(s3, bucket, ["in/1", "in/2"])
    first = opened(f"s3://{bucket}/in").describe()
    put(s3, bucket, **{"in/1": b"changed"})
    second = opened(f"s3://{bucket}/in").describe()
    put_all(s3, bucket, ["in/3"])
    third = opened(f"s3://{bucket}/in").describe()
    assert len({one["version"] for one in (first, second, third)}) == 3
    assert [one["objects"] for one in (first, second, third)] == [2, 2, 3]


def test_the_run_s_own_output_is_no_input_of_it(s3: S3Server, bucket: str) -> None:
    put(s3, bucket, **{"in/a.jsonl": b"1\n"})
    output = f"s3://{bucket}/in/out.jsonl"
    for named in (f"s3://{bucket}/in/", f"s3://{bucket}/in/*.jsonl"):
        before = opened(named, output=output).describe()
        put(s3, bucket, **{"in/out.jsonl": b"{}\n"})
        source = opened(named, output=output)
        assert (source.describe(), len(list(source.entries(None, 0)))) == (before, 1)
        assert opened(named).describe() != before
        s3.client.delete_object(Bucket=bucket, Key="in/out.jsonl")


def test_an_object_that_goes_meanwhile_fails_alone(s3: S3Server, bucket: str) -> None:
    put_all(s3, bucket, [f"in/{number}" for number in range(3)])
    source = opened(f"s3://{bucket}/in/")
    listed = s3.client
    entries = source.entries(None, 0)
    real = runs_s3.RunBucket.read_object

    def gone_first(self: Any, found: Any, *rest: Any) -> bytes:
        if found.key == "in/1":
            listed.delete_object(Bucket=bucket, Key="in/1")
        return real(self, found, *rest)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runs_s3.RunBucket, "read_object", gone_first)
        found = list(entries)
    assert [entry.input for entry in (found[0], found[2])] == [b"in/0", b"in/2"]
    assert "in/1: cannot be read: NoSuchKey" in str(found[1].input)


def test_tables_and_shards_in_s3(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    put(s3, bucket, **{
        "t/a.csv": b'id,text\n1,"x\ny"\n2,z\n', "t/b.csv.gz": gzip.compress(b"id,text\n3,w\n"),
        "t/a.jsonl": b'{"text": 1}\n{"text": 2}\n', "t/c.csv": b"text\nv\n",
    })  # fmt: skip
    pq.write_table(
        pa.table({"text": [str(n) for n in range(12)]}), tmp_path / "x", row_group_size=5
    )
    put(s3, bucket, **{"t/a.parquet": (tmp_path / "x").read_bytes()})
    url = f"s3://{bucket}/t"
    rows = resumes_everywhere(lambda: opened(f"{url}/{{a,c}}.csv", input="text"))
    assert [(entry["key"], entry["input"]) for entry in rows] == [
        ("a.csv:2", "x\ny"), ("a.csv:4", "z"), ("c.csv:2", "v"),
    ]  # fmt: skip
    assert inputs(opened(f"{url}/b.csv.gz", input="text")) == ["w"]
    assert len(resumes_everywhere(lambda: opened(f"{url}/a.jsonl", input="text"))) == 2
    assert len(resumes_everywhere(lambda: opened(f"{url}/*.parquet"), 5)) == 12
    assert opened(f"{url}/a.parquet").count() == 12


def test_long_objects_are_read_by_ranges(
    s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_s3, "FETCH_BYTES", 1000)
    monkeypatch.setattr(runs_s3, "FETCH_MAX_BYTES", 4000)
    lines = [b'{"x": "%s"}\n' % (b"%06d" % n * 20) for n in range(500)]
    put(s3, bucket, **{"x.jsonl": b"".join(lines)})
    source = opened(f"s3://{bucket}/x.jsonl", input="x")
    entries = read_all(source)
    assert len(entries) == 500
    middle = entries[250]
    rest = list(source.entries(middle["cursor"], 251))
    assert [entry.n for entry in rest] == list(range(251, 500))


def test_an_object_that_changes_ends_the_run(s3: S3Server, bucket: str) -> None:
    put(s3, bucket, **{"x.jsonl": b"1\n2\n"})
    source = opened(f"s3://{bucket}/x.jsonl")
    before = source.describe()
    put(s3, bucket, **{"x.jsonl": b"1\n3\n"})
    with pytest.raises(Conflict, match="has changed since the run began"):
        read_all(source)
    assert opened(f"s3://{bucket}/x.jsonl").describe() != before


def test_errors_name_what_is_missing(
    s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_s3, "s3_client", s3_client)
    with pytest.raises(ConfigError, match="no such bucket: no-such-bucket"):
        opened("s3://no-such-bucket/in")
    with pytest.raises(ConfigError, match="no such bucket: no-such-bucket"):
        sink_for("s3://no-such-bucket/x.jsonl").recover(None)
    with pytest.raises(ConfigError, match="no object"):
        opened(f"s3://{bucket}/in")
    with pytest.raises(ConfigError, match=r"x\.csv: no such object"):
        opened(f"s3://{bucket}/x.csv")
    with pytest.raises(ConfigError, match="names no bucket"):
        opened("s3:///x.csv")
    with pytest.raises(ConfigError, match="unknown kind of output"):
        sink_for(f"s3://{bucket}/out")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with pytest.raises(ConfigError, match="no credentials"):
        opened(f"s3://{bucket}/in")


def test_no_answer(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr(runs_s3, "s3_client", s3_client)
    monkeypatch.setattr(runs_s3, "TRIES", 1)
    with pytest.raises(StoreUnavailable, match="does not respond"):
        opened("s3://bucket/in")


def rows_of(s3: S3Server, bucket: str, key: str) -> list[dict[str, Any]]:
    body = s3.client.get_object(Bucket=bucket, Key=key)["Body"].read()
    if key.endswith(".parquet"):
        found: list[dict[str, Any]] = pq.read_table(pa.BufferReader(body)).to_pylist()
    else:
        found = [json.loads(line) for line in body.splitlines()]
    return sorted(found, key=lambda one: one["n"])


@pytest.mark.parametrize("key", ["d/out.jsonl", "d/out.parquet"])
def test_rows_become_an_object(s3: S3Server, bucket: str, key: str, tmp_path: Path) -> None:
    url = f"s3://{bucket}/{key}"
    sink = begun(lambda: sink_for(url))
    assert s3.client.list_multipart_uploads(Bucket=bucket).get("Uploads", []) == []
    sink.append([row(0, label=3), row(1, well=False, label=4)])
    mark = sink.sync()
    assert s3.keys(bucket) == []
    sink.close()
    sink = sink_for(url)
    assert recovered(sink, mark) == set()
    mark = ended(sink)
    assert [path.suffix for path in (tmp_path / "spool").iterdir()] == [".run"]
    assert [(one["n"], one["status"], one["label"]) for one in rows_of(s3, bucket, key)] == [
        (0, "succeeded", 3), (1, "failed", 4),
    ]  # fmt: skip
    assert recovered(sink_for(url), mark) == set()
    again = sink_for(url)
    assert set(again.retract()) == {0}
    again.append([row(1, label=4)])
    ended(again)
    assert [one["status"] for one in rows_of(s3, bucket, key)] == ["succeeded", "succeeded"]
    for path in (tmp_path / "spool").iterdir():
        path.unlink()
    with pytest.raises(Conflict, match="already exists"):
        sink_for(url).recover(None)


class Killed(BaseException):
    """The process ends here."""


class Dying:
    """A client with which the process dies, before or behind the upload.

    Args:
        client: the real one.
        behind: whether the server has the object.
    """

    def __init__(self, client: Any, *, behind: bool) -> None:
        self._client = client
        self._behind = behind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def upload_file(self, *arguments: Any, **options: Any) -> None:
        if self._behind:
            self._client.upload_file(*arguments, **options)
        raise Killed


def finish_with(client: Any, url: str, mark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resume an output and end it, or die."""
    with monkeypatch.context() as patched:
        patched.setattr(runs_s3, "s3_client", lambda *_, **__: client)
        sink = sink_for(url)
        assert recovered(sink, mark) == set()
        try:
            ended(sink)
        except Killed:
            sink.close()


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("text_bytes", [100, 5 << 20], ids=["one request", "parts"])
def test_a_kill_during_the_upload(
    s3: S3Server,
    client: Any,
    bucket: str,
    behind: bool,
    text_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, key = f"s3://{bucket}/out.jsonl", "out.jsonl"
    sink = begun(lambda: sink_for(url))
    sink.append([row(n, text="x" * text_bytes) for n in range(3)])
    mark = sink.sync()
    sink.close()
    finish_with(Dying(client, behind=behind), url, mark, monkeypatch)
    assert s3.keys(bucket) == ([key] if behind else [])
    finish_with(client, url, mark, monkeypatch)
    assert [one["n"] for one in rows_of(s3, bucket, key)] == [0, 1, 2]
    assert client.list_multipart_uploads(Bucket=bucket).get("Uploads", []) == []


def test_an_upload_that_is_denied(
    s3: S3Server, client: Any, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from boto3.exceptions import S3UploadFailedError
    from botocore.exceptions import ClientError

    def denied(*_: Any, **__: Any) -> None:
        try:
            raise ClientError({"Error": {"Code": "AccessDenied"}}, "PutObject")  # noqa: TRY301
        except ClientError as error:
            raise S3UploadFailedError(f"Failed to upload: {error}")  # noqa: B904 - as boto3 does

    sink = begun(lambda: sink_for(f"s3://{bucket}/out.jsonl"))
    sink.append([row(0)])
    monkeypatch.setattr(client, "upload_file", denied)
    with pytest.raises(ConfigError, match="S3 denies access: AccessDenied"):
        sink.finish()
    sink.close()


def test_the_spool_of_each_output_is_its_own(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    for key in ("a/b.jsonl", "a-b.jsonl"):
        sink = begun(lambda: sink_for(f"s3://{bucket}/{key}"))  # noqa: B023
        sink.append([row(0)])
        sink.sync()
        sink.close()
    assert len([path for path in (tmp_path / "spool").iterdir() if path.suffix == ".rows"]) == 2


def test_a_write_that_is_refused_is_known_at_the_start(
    s3: S3Server, client: Any, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(Dying):
        def __getattr__(self, name: str) -> Any:
            from botocore.exceptions import ClientError

            if name == "create_multipart_upload":
                raise ClientError({"Error": {"Code": "AccessDenied"}}, name)
            return getattr(self._client, name)

    refusing = Refusing(client, behind=False)
    monkeypatch.setattr(runs_s3, "s3_client", lambda *_, **__: refusing)
    with pytest.raises(ConfigError, match="S3 denies access: AccessDenied"):
        sink_for(f"s3://{bucket}/out.jsonl").recover(None)


@pytest.mark.parametrize(
    ("pattern", "fits", "not_"),
    [
        ("a/*.png", ["a/x.png"], ["a/b/x.png", "a/x.jpg"]),
        ("a/**/x.png", ["a/x.png", "a/b/c/x.png"], ["b/x.png"]),
        ("a**", ["a", "ab/c"], ["b"]),
        ("?[0-9].x", ["a1.x"], ["ab.x", "/1.x"]),
        ("[!a]", ["b"], ["a"]),
        ("a.b+c", ["a.b+c"], ["aXb+c"]),
    ],
)
def test_patterns_of_keys(pattern: str, fits: list[str], not_: list[str]) -> None:
    assert all(pattern_regex(pattern).fullmatch(key) for key in fits)
    assert not any(pattern_regex(pattern).fullmatch(key) for key in not_)


class Breaking(Carrier):
    """Breaks off the next answers with bodies, each after so many bytes."""

    def __init__(self, to_port: int) -> None:
        self.fates: list[int] = []
        super().__init__(to_port)

    @override
    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        for source, target in ((client, server), (server, client)):
            threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                head, blank, body = b"", b"", data
                if data.startswith(b"HTTP/1.1 200"):  # the body may come with it, or later
                    head, blank, body = data.partition(b"\r\n\r\n")
                target.sendall(head + blank)
                if self.fates and b"BODY" in body:
                    target.sendall(body[: self.fates.pop()])
                    break
                target.sendall(body)
        shut(source)
        shut(target)


def test_an_answer_that_breaks_off_is_repeated(
    s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b"BODY" * 1000
    put(s3, bucket, **{f"in/{n}": body for n in range(3)}, **{"x.jsonl": b'"BODY"\n'})
    network = Breaking(int(s3.url.rpartition(":")[2]))
    client = s3_client(f"http://127.0.0.1:{network.port}", 4)
    monkeypatch.setattr(runs_s3, "s3_client", lambda *_, **__: client)
    with closing(network):
        source, lines = opened(f"s3://{bucket}/in/"), opened(f"s3://{bucket}/x.jsonl")
        network.fates = [10, 0, 700]
        assert inputs(source) == [body] * 3
        assert not network.fates
        network.fates = [3]
        assert inputs(lines) == [("json", "BODY")]
        assert not network.fates


def test_a_server_that_is_busy_is_asked_again(
    s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(s3, bucket, **{"in/1": b"1"})
    # One try of boto's own, as when its budget of tries is used up.
    client = s3_client(s3.url, 4, tries=1)
    monkeypatch.setattr(runs_s3, "s3_client", lambda *_, **__: client)
    busy = ["SlowDown", "InternalError"]
    seen = []

    def answer(request: Any, **_: Any) -> Any:
        if not busy or request.method != "GET" or "/in/1" not in request.url:
            return None
        seen.append(code := busy.pop())
        xml = f"<Error><Code>{code}</Code><Message>x</Message></Error>".encode()
        raw = SimpleNamespace(stream=lambda *_, **__: iter([xml]))
        return AWSResponse(request.url, 503, HTTPHeaders(), raw)

    source = opened(f"s3://{bucket}/in/")
    client.meta.events.register("before-send.s3.GetObject", answer)
    assert inputs(source) == [b"1"]
    assert seen == ["InternalError", "SlowDown"]


def test_an_existing_key_is_no_pattern(s3: S3Server, bucket: str) -> None:
    put_all(s3, bucket, ["a+b.txt", "[2026].png", "2.png", "in[1]/x.png"])
    put(s3, bucket, **{"[2026].csv": b"x\n1\n", "2.csv": b"x\n2\n", "{a,b}.csv": b"x\n3\n"})
    for key in ("a+b.txt", "[2026].png"):
        assert inputs(opened(f"s3://{bucket}/{key}")) == [key.encode()]
    assert inputs(opened(f"s3://{bucket}/[2026].csv", input="x")) == ["1"]
    assert inputs(opened(f"s3://{bucket}/{{a,b}}.csv", input="x")) == ["3"]
    assert inputs(opened(f"s3://{bucket}/[29].csv", input="x")) == ["2"]


def test_a_packed_name_has_no_type(s3: S3Server, bucket: str) -> None:
    packed = gzip.compress(b"{}")
    put(s3, bucket, **{"in/a.json.gz": packed, "in/b.json": b"\xef\xbb\xbf{}"})
    first, second = read_all(opened(f"s3://{bucket}/in/"))
    assert (first["input"], first["content_type"]) == (packed, None)
    assert second["content_type"] == "application/json"
    assert encode_input(second["input"], second["content_type"]) == b"{}"
    assert b"application/octet-stream" in encode_input(first["input"], first["content_type"])


def test_errors_of_shards_in_s3(s3: S3Server, bucket: str) -> None:
    put(s3, bucket, **{"a.tar": b"no tar", "b.csv": b"x\n1\n"})
    assert "the tar is cut off" in errors(opened(f"s3://{bucket}/a.tar"))[0]
    assert inputs(opened(f"s3://{bucket}/b.csv")) == [("json", {"x": "1"})]
    assert msgspec.json.encode(opened(f"s3://{bucket}/b.csv").describe())
    assert os.environ["AWS_ENDPOINT_URL"] == s3.url
