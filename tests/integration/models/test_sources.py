"""Sources of models: the disk, and real servers with redirects, S3, or away."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.config.settings import Settings
from headrace.errors import ConfigError
from headrace.models.archive import unpack
from headrace.models.catalog import hosted, load_models
from headrace.models.download import Downloader, Unreachable
from headrace.models.source import SourceReader, digest_of
from tests.harness.archives import MODEL, good_members, write_folder, write_tar, write_zip
from tests.harness.servers.certificates import Authority
from tests.harness.servers.file_server import FileServer, file_server
from tests.harness.servers.s3 import S3Server, s3_server


@pytest.fixture
def https(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A server whose certificate this process trusts, as the system's would be."""
    authority = Authority(tmp_path)
    certificate = authority.sign()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert_file, certificate.key_file)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca_file))
    with file_server(context) as server:
        yield server


def reader(folder: Path, **settings: Any) -> SourceReader:
    return SourceReader(Settings(state_dir=folder / "state", **settings), folder)


def zipped(folder: Path) -> bytes:
    return write_zip(folder / "packed.zip", good_members()).read_bytes()


def left(folder: Path) -> list[str]:
    """The unpacked models; notes do not count."""
    models = folder / "state" / "models"
    return sorted(path.name for path in models.glob("*") if path.suffix != ".json")


def refusal(reading: Callable[[], Any], kind: type[ConfigError] = ConfigError) -> str:
    with pytest.raises(kind) as caught:
        reading()
    return caught.value.message


def test_a_path_a_name_in_the_store_and_a_file_url(tmp_path: Path) -> None:
    store = tmp_path / "store"
    write_folder(store / "folder")
    write_zip(store / "a.zip", good_members())
    write_tar(tmp_path / "b.tgz", good_members())
    found = reader(tmp_path, model_store=store)
    for source in ("store/folder", "folder", "a.zip", "b.tgz", f"file://{store}/a.zip"):
        model = found.read(source)
        assert (model.name, model.options["version"]) == ("twice", "3")
        assert (model.folder / "handler.py").read_text() == MODEL["handler.py"]
    assert len(left(tmp_path)) == 2
    for source, problem in {
        "gone.zip": "does not exist",
        "../store/a.zip": "does not exist",
        "file://elsewhere/a.zip": "names no file of this host",
        "ftp://example.com/a.zip": "kind of URL",
    }.items():
        assert problem in refusal(lambda source=source: found.read(source))  # type: ignore[misc]


def test_a_digest_is_checked(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", good_members())
    good = digest_of(path)
    found = reader(tmp_path)
    assert "sha256:" in refusal(lambda: found.read("a.zip", "0" * 64))
    assert left(tmp_path) == []
    assert found.read("a.zip", f"sha256:{good}").folder.name == good
    # What was unpacked before is checked too.
    assert "sha256:" in refusal(lambda: found.read("a.zip", "0" * 64))
    write_folder(tmp_path / "folder")
    assert "has no digest" in refusal(lambda: found.read("folder", good))
    (tmp_path / "p.pt2").write_bytes(b"program")
    assert "sha256:" in refusal(lambda: found.read("p.pt2", good))


def test_a_changed_archive_is_another_model(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", good_members())
    first = reader(tmp_path).read("a.zip").folder
    path.unlink()
    write_zip(path, [*good_members(), ("more", b"")])
    second = reader(tmp_path).read("a.zip").folder
    assert (second / "more").exists()
    assert left(tmp_path) == sorted([first.name, second.name])


def test_https_within_the_allowed_urls(https: FileServer, tmp_path: Path) -> None:
    https.files = {"/v2/a.zip": zipped(tmp_path), "/b.zip": b""}
    url = f"{https.url}/v2/a.zip"
    assert "not allowed" in refusal(lambda: reader(tmp_path).read(url))
    found = reader(tmp_path, allowed_urls=(f"{https.url}/v2",))
    assert found.read(url).name == "twice"
    assert "not allowed" in refusal(lambda: found.read(f"{https.url}/b.zip"))
    assert "a URL must end in" in refusal(lambda: found.read(f"{https.url}/v2/a.rar"))
    assert "404" in refusal(lambda: found.read(f"{https.url}/v2/gone.zip"))
    assert len(left(tmp_path)) == 1


def test_it_is_fetched_again_when_it_has_changed(https: FileServer, tmp_path: Path) -> None:
    https.files = {"/a.zip": zipped(tmp_path)}
    url, allowed = f"{https.url}/a.zip?signature=secret", (https.url,)
    first = reader(tmp_path, allowed_urls=allowed).read(url)
    assert reader(tmp_path, allowed_urls=allowed).read(url) == first
    assert https.sent == 1
    other = write_zip(tmp_path / "other.zip", [*good_members(), ("more", b"")])
    https.files = {"/a.zip": other.read_bytes()}
    assert (reader(tmp_path, allowed_urls=allowed).read(url).folder / "more").exists()
    # What is pinned and there needs no request at all.
    https.status = 500
    assert reader(tmp_path).read(url, first.folder.name) == first


def test_what_was_fetched_before_serves_while_the_server_is_away(
    https: FileServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    https.files = {"/a.zip": zipped(tmp_path)}
    url, allowed = f"{https.url}/a.zip?signature=secret", (https.url,)
    first = reader(tmp_path, allowed_urls=allowed).read(url)
    https.status = 503
    assert reader(tmp_path, allowed_urls=allowed).read(url) == first
    assert "what was fetched before is used" in caplog.text
    assert "secret" not in caplog.text
    unknown = f"{https.url}/b.zip?signature=secret"
    message = refusal(lambda: reader(tmp_path, allowed_urls=allowed).read(unknown), Unreachable)
    assert "503" in message
    assert "secret" not in message


def test_redirects_are_checked_like_the_first_url(https: FileServer, tmp_path: Path) -> None:
    https.files = {"/ok/a.zip": zipped(tmp_path), "/secret/a.zip": zipped(tmp_path)}
    https.redirects = {
        "/ok/here.zip": "a.zip",
        "/ok/out.zip": "/secret/a.zip",
        "/ok/away.zip": "https://169.254.169.254/ok/a.zip",
        "/ok/file.zip": "file:///etc/passwd.zip",
        "/ok/loop.zip": "/ok/loop.zip",
        "/ok/plain.zip": f"{https.url.replace('https', 'http')}/ok/a.zip",
    }
    plain = https.url.replace("https", "http")
    found = reader(tmp_path, allowed_urls=(f"{https.url}/ok", f"{plain}/ok"))
    assert found.read(f"{https.url}/ok/here.zip").name == "twice"
    for name, problem in {
        "out": "not allowed",
        "away": "not allowed",
        "file": "is not a URL",
        "loop": "more than 5 redirects",
        "plain": "from https to http",
    }.items():
        url = f"{https.url}/ok/{name}.zip"
        assert problem in refusal(lambda url=url: found.read(url))  # type: ignore[misc]


def test_addresses_that_are_no_hosts_are_refused() -> None:
    for address in (
        "169.254.169.254", "fe80::1", "224.0.0.1", "0.0.0.0", "::ffff:169.254.1.1",
        "fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16",
    ):  # fmt: skip
        downloader = Downloader(bool, 100, 5, resolve=lambda *_, found=address: [found])
        with (
            pytest.raises(ConfigError, match="link-local, multicast, reserved, or one where"),
            downloader.fetch("https://models.example.com/a.zip"),
        ):
            pass


def test_a_certificate_must_be_valid(https: FileServer, tmp_path: Path) -> None:
    https.files = {"/a.zip": zipped(tmp_path)}
    strange = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    downloader = Downloader(bool, 1 << 20, 30, strange)
    with (
        pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"),
        downloader.fetch(f"{https.url}/a.zip"),
    ):
        pass


def test_plain_http_needs_a_digest(tmp_path: Path) -> None:
    with file_server() as server:
        body = zipped(tmp_path)
        server.files = {"/a.zip": body}
        found = reader(tmp_path, allowed_urls=(server.url,))
        assert "http:// needs sha256" in refusal(lambda: found.read(f"{server.url}/a.zip"))
        digest = digest_of(tmp_path / "packed.zip")
        assert found.read(f"{server.url}/a.zip", digest).name == "twice"
        server.files = {"/a.zip": body + b"x"}
        other = reader(tmp_path / "other", allowed_urls=(server.url,))
        assert "sha256:" in refusal(lambda: other.read(f"{server.url}/a.zip", digest))
        assert left(tmp_path / "other") == []


def test_a_download_is_bounded_in_size_and_time(
    https: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    https.files = {"/a.zip": bytes(5000)}
    url, allowed = f"{https.url}/a.zip", (https.url,)
    small = reader(tmp_path, allowed_urls=allowed, model_limit_bytes=1000)
    assert "larger than 1,000 bytes" in refusal(lambda: small.read(url))
    https.cut = True
    assert "has ended early" in refusal(
        lambda: reader(tmp_path, allowed_urls=allowed).read(url), Unreachable
    )
    # Not by the timeout of the socket, which a byte now and then resets.
    monkeypatch.setattr("headrace.models.download.IDLE_TIMEOUT_S", 600.0)
    https.stalled = threading.Event()
    slow = reader(tmp_path, allowed_urls=allowed, model_fetch_timeout_s=1.0)
    assert "longer than model_fetch_timeout_s" in refusal(lambda: slow.read(url), Unreachable)
    assert https.stalls_ended == 0
    assert left(tmp_path) == []


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


def test_s3(s3: S3Server, tmp_path: Path) -> None:
    bucket = s3.bucket("models")
    body = zipped(tmp_path)
    s3.client.put_object(Bucket=bucket, Key="v2/a.zip", Body=body)
    found = reader(tmp_path, payload_endpoint_url=s3.url)
    model = found.read(f"s3://{bucket}/v2/a.zip")
    assert model.name == "twice"
    s3.client.put_object(Bucket=bucket, Key="p.pt2", Body=b"program")
    program = found.read(f"s3://{bucket}/p.pt2")
    assert (program.folder / program.options["weights"]).read_bytes() == b"program"
    for source, problem in {
        f"s3://{bucket}/gone.zip": "404",
        f"s3://{bucket}": "a URL must end in",
        "s3:///a.zip": "names no object",
        "s3://no-such-bucket-here/a.zip": "404",
    }.items():
        assert problem in refusal(lambda source=source: found.read(source))  # type: ignore[misc]
    small = reader(tmp_path / "small", payload_endpoint_url=s3.url, model_limit_bytes=10)
    assert "larger than 10 bytes" in refusal(lambda: small.read(f"s3://{bucket}/v2/a.zip"))


def test_s3_that_has_changed_or_is_away(s3: S3Server, tmp_path: Path) -> None:
    bucket = s3.bucket("changing")
    url = f"s3://{bucket}/a.zip"
    s3.client.put_object(Bucket=bucket, Key="a.zip", Body=zipped(tmp_path))
    settings = {"payload_endpoint_url": s3.url}
    first = reader(tmp_path, **settings).read(url)
    assert reader(tmp_path, **settings).read(url) == first
    other = write_zip(tmp_path / "b.zip", [*good_members(), ("more", b"")])
    s3.client.put_object(Bucket=bucket, Key="a.zip", Body=other.read_bytes())
    second = reader(tmp_path, **settings).read(url)
    assert second != first
    s3.stop()
    try:
        assert reader(tmp_path, **settings).read(url) == second
        with pytest.raises(Unreachable, match="does not answer"):
            reader(tmp_path / "other", **settings).read(url)
    finally:
        s3.start_again()


def test_the_models_file_wins_over_the_source(tmp_path: Path) -> None:
    yaml = "handler: handler.py\nversion: '3'\nmax_batch_size: 8\noptions: {a: 1, b: 1}\n"
    members = [("model.yaml", yaml.encode()), ("handler.py", MODEL["handler.py"].encode())]
    write_zip(tmp_path / "a.zip", members)
    path = tmp_path / "models.yaml"
    path.write_text(
        "models:\n"
        "  plain: {source: a.zip}\n"
        "  tuned: {source: a.zip, max_batch_size: 2, options: {b: 2}, weights: w.pt}\n"
        "  echo: {handler: echo}\n"
    )
    settings = Settings(models_file=path, state_dir=tmp_path / "state", timeout_s=7)
    models = load_models(settings).models
    plain, tuned = models["plain"], models["tuned"]
    assert (plain.version, plain.max_batch_size, plain.timeout_s) == ("3", 8, 7)
    assert (tuned.max_batch_size, tuned.options) == (2, {"a": 1, "b": 2})
    assert plain.folder == tuned.folder
    assert tuned.weights == f"{plain.folder}/w.pt"
    frame = plain.init_frame(tmp_path, "cpu")
    assert (frame["handler"], frame["model_dir"]) == ("handler.py", plain.folder)
    assert models["echo"].init_frame(tmp_path, "cpu")["model_dir"] == str(tmp_path)


def test_a_source_declares_inputs_too(tmp_path: Path) -> None:
    yaml = b"handler: echo\ninputs: {fields: {a: integer}}\n"
    write_zip(tmp_path / "a.zip", [("model.yaml", yaml)])
    path = tmp_path / "models.yaml"
    path.write_text(
        "models:\n  plain: {source: a.zip}\n"
        "  tuned: {source: a.zip, inputs: {fields: {b: integer}}}\n"
    )
    models = load_models(Settings(models_file=path, state_dir=tmp_path / "state")).models
    for name, field in (("plain", "a"), ("tuned", "b")):
        schema, _ = models[name].init_frame(tmp_path, "cpu")["input_check"]
        assert schema["required"] == [field]


def test_the_mistakes_of_all_sources_are_named_at_once(tmp_path: Path) -> None:
    write_zip(tmp_path / "a.zip", [("model.yaml", b"handler: echo\nallowed_batch_sizes: [1, 2]")])
    path = tmp_path / "models.yaml"
    path.write_text(
        "models:\n  a: {source: a.zip, max_batch_size: 4}\n  b: {source: gone.zip}\n"
        "  c: {source: 'https://models.example.com/a.zip'}\n"
    )
    message = refusal(lambda: load_models(Settings(models_file=path, state_dir=tmp_path / "state")))
    lines = message.splitlines()
    assert [line.split(": ")[1] for line in lines] == [f"models.{n}.source" for n in "abc"]
    assert "the largest is 2, but max_batch_size is 4" in lines[0]
    assert "HEADRACE_ALLOWED_URLS" in lines[2]


def test_an_archive_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_zip(tmp_path / "a.zip", good_members())

    def changing(*arguments: Any) -> None:
        unpack(*arguments)
        with path.open("ab") as file:
            file.write(b"x")

    monkeypatch.setattr("headrace.models.source.unpack", changing)
    assert "was changed while it was read" in refusal(lambda: reader(tmp_path).read("a.zip"))
    assert left(tmp_path) == []


def test_a_process_that_runs_no_model_goes_on_without_its_source(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "models.yaml"
    path.write_text("models: {m: {source: gone.zip, version: '7'}, echo: {handler: echo}}")
    settings = Settings(models_file=path, state_dir=tmp_path / "state")
    catalog = load_models(settings, needed=lambda _: False)
    assert {name: model.version for name, model in catalog.models.items()} == {
        "m": "7", "echo": "1.0",
    }  # fmt: skip
    assert "only the models file's keys are known here" in caplog.text


def test_a_worker_needs_the_sources_of_the_models_that_its_labels_admit(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text("models: {m: {source: gone.zip, labels: [zone=b]}, echo: {handler: echo}}")
    other = Settings(models_file=path, state_dir=tmp_path / "state", worker_labels=("zone=a",))
    assert set(load_models(other, needed=hosted(other)).models) == {"m", "echo"}
    own = msgspec.structs.replace(other, worker_labels=("zone=a", "zone=b"))
    assert "gone.zip: it does not exist" in refusal(lambda: load_models(own, needed=hosted(own)))


def test_a_number_for_all_workers_replaces_those_for_each(tmp_path: Path) -> None:
    files = {**MODEL, "model.yaml": "handler: handler.py\nmin_replicas: 1\nmax_replicas: 4\n"}
    write_folder(tmp_path / "m", files)

    def load(more: str) -> tuple[int | None, int | None]:
        (tmp_path / "models.yaml").write_text(f"models: {{m: {{source: m{more}}}}}")
        catalog = load_models(Settings(models_file=tmp_path / "models.yaml"))
        return catalog.models["m"].max_replicas, catalog.models["m"].total_replicas

    assert load("") == (4, None)
    assert load(", replicas: 2") == (4, None)
    assert load(", total_replicas: 2") == (None, 2)
    (tmp_path / "m" / "model.yaml").write_text("handler: handler.py\ntotal_replicas: 3\n")
    assert load("") == (None, 3)
    assert load(", max_replicas: 2") == (2, None)


def test_a_model_with_sequences_has_one_process_in_the_whole_deployment(tmp_path: Path) -> None:
    files = {
        "MAR-INF/MANIFEST.json": '{"model": {"modelName": "m", "modelVersion": "1.0",'
        ' "handler": "h.py", "configFile": "c.yaml"}}',
        "h.py": "def handle(data, context):\n    return data\n",
        "c.yaml": "sequenceBatching: true\n",
    }
    write_folder(tmp_path / "m", files)

    def load(more: str) -> int | None:
        (tmp_path / "models.yaml").write_text(f"models: {{m: {{source: m{more}}}}}")
        catalog = load_models(Settings(models_file=tmp_path / "models.yaml"))
        return catalog.models["m"].total_replicas

    assert load("") == load(", total_replicas: 1") == 1
    assert load(", total_replicas: 0") == 0
    for more in (", replicas: 1", ", max_replicas: 2", ", total_replicas: 2"):
        assert "the archive has sequences" in refusal(partial(load, more))
