"""`input_ref`: what may be named, and each way out of it that was thought of."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from headrace.config.settings import Settings
from headrace.errors import (
    HeadraceError,
    InputForbidden,
    InputUnavailable,
    InvalidRequest,
    PayloadTooLarge,
)
from headrace.payloads.input_ref import InputRefs, type_of

LIMIT = 1000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a file in it, and a secret beside it."""
    inside = tmp_path / "root"
    (inside / "deep" / "er").mkdir(parents=True)
    (inside / "a.png").write_bytes(b"picture")
    (inside / "deep" / "er" / "b").write_bytes(b"deep")
    (inside / "100%.txt").write_bytes(b"literal")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "root-beside").mkdir()
    (tmp_path / "root-beside" / "a").write_bytes(b"secret")
    return inside


def origins(*roots: Path, buckets: tuple[str, ...] = (), limit: int = LIMIT) -> InputRefs:
    settings = Settings(input_roots=roots, input_buckets=buckets, body_limit_bytes=limit)
    return InputRefs(settings, 2)


@pytest.mark.parametrize(
    ("path", "body"), [("a.png", b"picture"), ("deep/er/b", b"deep"), ("100%.txt", b"literal")]
)
def test_a_file_in_a_root_is_read(root: Path, path: str, body: bytes) -> None:
    own = origins(root)
    assert own.look(f"file:{root}/{path}") == len(body)
    assert own.read(f"file:{root}/{path}") == body


def refused(own: InputRefs, reference: str) -> HeadraceError:
    """Both the API's look and the worker's read refuse it; the look's error."""
    with pytest.raises(HeadraceError):
        own.read(reference)
    with pytest.raises(HeadraceError) as found:
        own.look(reference)
    return found.value


def test_by_default_nothing_may_be_named(root: Path) -> None:
    for reference, setting in (
        (f"file:{root}/a.png", "input_roots"),
        ("s3://bucket/k", "input_buckets"),
    ):
        error = refused(origins(), reference)
        assert isinstance(error, InputForbidden)
        assert setting in error.message


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd", "{beside}/secret", "{root}-beside/a", "/", "{root}", "/proc/self/environ",
        "/dev/stdin",
    ],
)  # fmt: skip
def test_outside_the_roots_is_forbidden(root: Path, path: str) -> None:
    text = path.format(root=root, beside=root.parent)
    error = refused(origins(root), f"file:{text}")
    assert isinstance(error, (InputForbidden, InvalidRequest))
    if text not in ("/", str(root)):
        assert isinstance(error, InputForbidden)
        assert "input_roots" in error.message


@pytest.mark.parametrize(
    "reference",
    [
        "file:{root}/../secret", "file:{root}/deep/../../secret", "file:{root}/./a.png",
        "file:{root}//a.png", "file:{root}/..", "file:{root}/a.png/", "file:{root}/deep/..",
        "file:root/a.png", "file:a.png", "file:", "file", "", "{root}/a.png", "file:~/a",
        "file://{root}/a.png", "file://localhost{root}/a.png", "file://host/share/a.png",
        "file:{root}/a.png\0", "file:{root}/\0../secret", "file:{root}/a\n.png",
        "FILE:{root}/a.png", "http://127.0.0.1/a.png", "ftp:/x", "redis:" + "0" * 32,
        "file:" + "0" * 32, "file:{root}/" + "x" * 5000,
        "s3:/b/k", "s3://", "s3://b", "s3://bucket", "s3://bucket/", "s3://bucket/../k",
        "s3://bucket/a/../../k", "s3://bucket/./k", "s3://../k", "s3://bucket\0/k",
    ],
)  # fmt: skip
def test_what_is_no_reference_is_told(root: Path, reference: str) -> None:
    error = refused(origins(root, buckets=()), reference.format(root=root))
    assert isinstance(error, InvalidRequest)
    assert "input_ref" in error.message
    assert "input_roots" in error.hint
    assert "input_buckets" in error.hint


@pytest.mark.parametrize(
    ("reference", "setting"),
    [
        ("file:{root}/../secret", "input_roots"), ("file:{root}/deep/..", "input_roots"),
        ("file://{root}/a.png", "input_roots"), ("file://host/share/a.png", "input_roots"),
        ("s3://bucket/../k", "input_buckets"),
    ],
)  # fmt: skip
def test_a_way_out_is_refused_with_the_name_of_the_setting(
    root: Path, reference: str, setting: str
) -> None:
    assert setting in refused(origins(root), reference.format(root=root)).message


@pytest.mark.parametrize(
    "encoded", ["%2e%2e/secret", "..%2fsecret", "%2e%2e%2fsecret", "..%c0%afsecret", "%00"]
)
def test_nothing_is_decoded(root: Path, encoded: str) -> None:
    error = refused(origins(root), f"file:{root}/{encoded}")
    assert isinstance(error, InvalidRequest)
    assert "does not exist" in error.message
    assert "without any decoding" in error.hint
    assert "input_roots" in error.hint
    assert "does not exist" in str(refused(origins(root), f"file:{root}/deep/{encoded}"))


@pytest.mark.parametrize("where", ["a", "deep/a", "d/a", "deep/d/a", "dangling", "loop"])
def test_no_link_is_followed(root: Path, where: str) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "a").write_bytes(b"secret")
    (root / "a").symlink_to(root.parent / "secret")
    (root / "deep" / "a").symlink_to("../../secret")
    (root / "d").symlink_to(outside)
    (root / "deep" / "d").symlink_to("../../outside")
    (root / "dangling").symlink_to("nowhere")
    (root / "loop").symlink_to("loop")
    error = refused(origins(root), f"file:{root}/{where}")
    assert isinstance(error, InputForbidden)
    assert "symbolic link" in error.message


def test_a_link_within_the_root_is_not_followed_either(root: Path) -> None:
    (root / "alias").symlink_to("a.png")
    assert isinstance(refused(origins(root), f"file:{root}/alias"), InputForbidden)


def test_a_root_may_itself_be_reached_by_a_link(root: Path) -> None:
    (root.parent / "link").symlink_to(root)
    own = origins(root.parent / "link")
    assert own.read(f"file:{root.parent}/link/a.png") == b"picture"
    assert isinstance(refused(own, f"file:{root}/a.png"), InputForbidden)


def test_a_file_that_becomes_a_link_between_the_looks_is_not_followed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.stat

    def exchanged(name: str, **options: Any) -> os.stat_result:
        found = real(name, **options)
        if name == "a.png":
            (root / "a.png").unlink()
            (root / "a.png").symlink_to(root.parent / "secret")
        return found

    monkeypatch.setattr("headrace.payloads.input_ref.os.stat", exchanged)
    with pytest.raises(InputForbidden):
        origins(root).read(f"file:{root}/a.png")


def test_a_folder_that_becomes_a_link_between_the_looks_is_not_followed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root.parent / "other" / "er").mkdir(parents=True)
    (root.parent / "other" / "er" / "b").write_bytes(b"secret")
    real = os.stat

    def exchanged(name: str, **options: Any) -> os.stat_result:
        found = real(name, **options)
        if name == "deep":
            (root / "deep").rename(root / "was")
            (root / "deep").symlink_to(root.parent / "other")
        return found

    monkeypatch.setattr("headrace.payloads.input_ref.os.stat", exchanged)
    with pytest.raises((InputForbidden, InputUnavailable)):
        origins(root).read(f"file:{root}/deep/er/b")


def test_only_regular_files_are_read(root: Path) -> None:
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
        for name in ("fifo", "socket", "deep"):
            error = refused(origins(root), f"file:{root}/{name}")
            assert isinstance(error, InvalidRequest)
            assert "not a regular file" in error.message
    error = refused(origins(Path("/dev")), "file:/dev/zero")
    assert "not a regular file" in error.message


def test_a_fifo_that_takes_the_place_of_a_file_does_not_block(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(root / "fifo")
    regular = os.stat(root / "a.png")
    monkeypatch.setattr("headrace.payloads.input_ref.os.stat", lambda *_, **__: regular)
    with pytest.raises(InputUnavailable, match="not a regular file"):
        origins(root).read(f"file:{root}/fifo")


def test_no_more_is_read_than_a_body_may_have(root: Path) -> None:
    (root / "large").write_bytes(b"x" * (LIMIT + 1))
    (root / "fits").write_bytes(b"x" * LIMIT)
    assert len(origins(root).read(f"file:{root}/fits")) == LIMIT
    error = refused(origins(root), f"file:{root}/large")
    assert isinstance(error, PayloadTooLarge)
    assert "1001 bytes; the limit is 1000" in error.message


def test_a_file_that_grows_meanwhile_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = os.stat(root / "a.png")
    (root / "a.png").write_bytes(b"x" * (LIMIT + 1))
    monkeypatch.setattr("headrace.payloads.input_ref.os.fstat", lambda _: small)
    with pytest.raises(PayloadTooLarge):
        origins(root).read(f"file:{root}/a.png")


def test_what_is_gone_is_a_bad_request_now_and_the_jobs_error_later(root: Path) -> None:
    own = origins(root)
    with pytest.raises(InvalidRequest, match="does not exist"):
        own.look(f"file:{root}/gone")
    with pytest.raises(InputUnavailable, match="does not exist"):
        own.read(f"file:{root}/gone")


def test_a_root_that_this_host_does_not_have_is_left_to_the_worker(tmp_path: Path) -> None:
    own = origins(tmp_path / "elsewhere")
    assert own.look(f"file:{tmp_path}/elsewhere/a") == -1
    with pytest.raises(InputUnavailable):
        own.read(f"file:{tmp_path}/elsewhere/a")


def test_the_innermost_root_is_the_one(root: Path) -> None:
    (root / "link").symlink_to("deep")
    own = origins(root, root / "link")
    assert own.read(f"file:{root}/link/er/b") == b"deep"


def test_handles_are_closed(root: Path) -> None:
    own = origins(root)
    before = len(os.listdir("/proc/self/fd"))
    for name in ("a.png", "deep/er/b", "gone", "deep", "deep/gone/x"):
        for call in (own.look, own.read):
            try:
                call(f"file:{root}/{name}")
            except HeadraceError:
                continue
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.png", "image/png"), ("b.JPG", "image/jpeg"), ("c.json", "application/json"),
        ("d.txt", "text/plain"), ("e.webp", "image/webp"), ("f", "application/octet-stream"),
        ("g.txt.gz", "application/octet-stream"), ("x.png/h", "application/octet-stream"),
    ],
)  # fmt: skip
def test_the_type_is_guessed_from_the_name(name: str, kind: str) -> None:
    assert type_of(f"file:/x/{name}") == kind
    assert type_of(f"s3://bucket/{name}") == kind
