"""WebDataset tar shards as a source of a run."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extensions.runs.sources.patterns import expand_braces
from headrace.errors import ConfigError
from tests.extensions.runs.harness.sources import (
    errors,
    inputs,
    opened,
    read_all,
    resumes_everywhere,
)


def shard(members: list[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for name, body in members:
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    return out.getvalue()


_NAME = st.text(st.sampled_from("abé/"), min_size=1, max_size=120)


@given(
    names=st.lists(_NAME, unique=True, max_size=6),
    form=st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
    packed=st.booleans(),
    size=st.integers(0, 1500),
)
@settings(max_examples=60, deadline=None)
def test_samples_are_read_from_every_cursor(
    names: list[str], form: int, packed: bool, size: int
) -> None:
    samples = [f"x{number}{name.strip('/')}" for number, name in enumerate(names)]
    members = [
        member
        for number, name in enumerate(samples)
        for member in ((f"{name}.bin", bytes([number]) * size), (f"{name}.cls", b"%d" % number))
    ]
    body = shard(members, form)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.tgz" if packed else "x.tar")
        path.write_bytes(gzip.compress(body) if packed else body)
        entries = resumes_everywhere(lambda: opened(path))
    assert [entry["key"] for entry in entries] == samples
    assert [entry["input"] for entry in entries] == [bytes([n]) * size for n in range(len(names))]
    assert [entry["carried"] for entry in entries] == [{"cls": n} for n in range(len(names))]


@given(cut=st.integers(0, 9), offset=st.integers(-1, 1))
@settings(max_examples=30, deadline=None)
def test_a_shard_that_is_cut_off_is_an_error_and_the_next_is_read(cut: int, offset: int) -> None:
    body = shard([(f"{number}.bin", bytes([number]) * 600) for number in range(3)])
    with tempfile.TemporaryDirectory() as folder:
        for name, end in (("a", max(0, cut * 512 + offset)), ("b", None)):
            Path(folder, f"{name}.tar").write_bytes(body[:end])
        entries = resumes_everywhere(lambda: opened(Path(folder, "*.tar")))
        messages = errors(opened(Path(folder, "*.tar")))
    # Two blocks of zeros end a tar; the first of them has to be there.
    assert len(messages) == 1
    assert "a.tar: the tar is cut off or broken from" in messages[0]
    assert [entry["key"] for entry in entries[-3:]] == [f"b.tar:{number}" for number in range(3)]


def _one(
    tmp_path: Path, members: list[tuple[str, bytes]], **options: str
) -> list[dict[str, object]]:
    path = tmp_path / "x.tar"
    path.write_bytes(shard(members))
    return resumes_everywhere(lambda: opened(path, **options))


def test_the_member_that_is_the_input_and_what_is_carried(tmp_path: Path) -> None:
    (entry,) = _one(
        tmp_path,
        [
            ("d/1.seg.png", b"seg"), ("d/1.jpg", b"image"), ("d/1.json", b'{\n"a": [1]}'),
            ("d/1.txt", "é\n".encode()), ("d/1.cls", b"3\n"), ("d/1.meta.json", b"2"),
        ],
        input="png;JPG",
    )  # fmt: skip
    assert entry["key"] == "d/1"
    assert (entry["input"], entry["content_type"]) == (b"image", "image/jpeg")
    assert entry["carried"] == {"json": {"a": [1]}, "txt": "é\n", "cls": 3, "meta.json": 2}


@pytest.mark.parametrize(
    ("kind", "body", "given"),
    [
        ("json", b"[1]", ("json", [1])),
        ("txt", b"text", "text"),
        ("cls", b"4", 4),
        ("npy", b"x", b"x"),
    ],
)
def test_inputs_by_their_kind(tmp_path: Path, kind: str, body: bytes, given: object) -> None:
    (entry,) = _one(tmp_path, [(f"1.{kind}", body), ("1.other", b"")], input=kind)
    assert entry["input"] == given


def test_several_members_are_an_object(tmp_path: Path) -> None:
    members = [("1.png", b"\x89PNG"), ("1.cls", b"3"), ("1.txt", b"x"), ("1.npy", b"-")]
    (entry,) = _one(tmp_path, members, input="jpg;png, cls")
    image = {"content_type": "image/png", "base64": "iVBORw=="}
    assert entry["input"] == ("json", {"jpg": image, "cls": 3})
    assert entry["carried"] == {"txt": "x"}
    (message,) = errors(opened(tmp_path / "x.tar", input="png,seg.png"))
    assert "it has no member 'seg.png'" in message


def test_a_packed_member_has_no_type_and_a_mark_is_no_text(tmp_path: Path) -> None:
    packed, mark = gzip.compress(b"{}"), b"\xef\xbb\xbf"
    (entry,) = _one(tmp_path, [("1.json.gz", packed)])
    assert (entry["input"], entry["content_type"]) == (packed, None)
    (entry,) = _one(
        tmp_path,
        [("1.json", mark + b"[1]"), ("1.txt", mark + b"x"), ("1.cls", mark + b"3")],
        input="json",
    )
    assert (entry["input"], entry["carried"]) == (("json", [1]), {"txt": "x", "cls": 3})


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_names_that_are_not_utf8(tmp_path: Path, form: int) -> None:
    path = tmp_path / "x.tar"
    names = [os.fsdecode(name) for name in (b"caf\xe9.bin", b"caf\xe9.n\xe9.txt")]
    path.write_bytes(shard([(name, b"x") for name in names], form))
    (entry,) = resumes_everywhere(lambda: opened(path))
    assert entry["key"] == "caf\\xe9"
    assert entry["carried"] == {"n\\xe9.txt": "x"}
    assert msgspec.json.encode(entry["key"])


@pytest.mark.parametrize("form", ["bin", "json"])
@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE])
def test_a_sample_of_a_link_fails_alone(tmp_path: Path, kind: bytes, form: str) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as tar:
        for name in (f"1.{form}", f"2.{form}", f"3.{form}"):
            info = tarfile.TarInfo(name)
            if name == f"2.{form}":
                info.type, info.linkname = kind, f"1.{form}"
            else:
                info.size = 1
            tar.addfile(info, io.BytesIO(b"1"))
    entries = resumes_everywhere(lambda: opened(path))
    assert [entry["key"] for entry in entries] == ["1", "2", "3"]
    (message,) = errors(opened(path))
    assert f"sample '2': its member {form!r} is a" in message
    assert "--hard-dereference" in message


def test_what_belongs_to_no_sample_is_passed_over(tmp_path: Path) -> None:
    members = [("./1.bin", b"x"), ("__meta__.json", b"-"), ("._1.bin", b"-"), ("README", b"-")]
    assert [entry["key"] for entry in _one(tmp_path, members)] == ["1"]


@pytest.mark.parametrize(
    ("members", "wanted", "why"),
    [
        (
            [("1.jpg", b""), ("1.png", b"")],
            "",
            "it has 'jpg', 'png': name the one that is the input",
        ),
        ([("1.jpeg", b"")], "jpg", "it has no member 'jpg'; did you mean jpeg?; it has 'jpeg'"),
        ([("1.jpg", b""), ("1.jpg", b"")], "jpg", "it has two members 'jpg'"),
        ([("1.jpg", b""), ("1.json", b"{")], "jpg", "member 'json' is not JSON"),
        ([("1.jpg", b""), ("1.txt", b"\xff")], "jpg", "member 'txt' is not UTF-8"),
    ],
)
def test_a_bad_sample_fails_alone(
    tmp_path: Path, members: list[tuple[str, bytes]], wanted: str, why: str
) -> None:
    entries = _one(tmp_path, [*members, ("2.jpg", b"good")], input=wanted)
    assert entries[1]["input"] == b"good"
    (messages,) = errors(opened(tmp_path / "x.tar", input=wanted))
    assert f"{tmp_path / 'x.tar'}, sample '1': {why}" in messages


def test_a_shard_that_is_broken_in_its_middle(tmp_path: Path) -> None:
    body = bytearray(shard([(f"{number}.bin", b"x" * 10) for number in range(5)]))
    body[2 * 1024 + 3] ^= 0xFF
    (tmp_path / "x.tar").write_bytes(body)
    entries = resumes_everywhere(lambda: opened(tmp_path / "x.tar"))
    assert [entry["key"] for entry in entries] == ["0", "1"]
    assert "from '1' on" in errors(opened(tmp_path / "x.tar"))[0]


def test_shards_by_a_range(tmp_path: Path) -> None:
    for number in (8, 9, 10):
        (tmp_path / f"s-{number:03d}.tar").write_bytes(shard([("1.txt", b"%d" % number)]))
    source = opened(tmp_path / "s-{008..010}.tar")
    assert inputs(source) == ["8", "9", "10"]
    assert [e["key"] for e in read_all(source)] == ["s-008.tar:1", "s-009.tar:1", "s-010.tar:1"]
    assert source.count() is None
    with pytest.raises(ConfigError, match=r"s-011\.tar: no such file"):
        opened(tmp_path / "s-{008..011}.tar")
    with pytest.raises(ConfigError, match="--key means nothing"):
        opened(tmp_path / "s-008.tar", key="x")


@pytest.mark.parametrize(
    ("named", "names"),
    [
        ("a", ["a"]),
        ("{a}", ["{a}"]),
        ("{}", ["{}"]),
        ("{1..3}", ["1", "2", "3"]),
        ("{3..1}", ["3", "2", "1"]),
        ("{08..10}", ["08", "09", "10"]),
        ("{0..10}", [str(number) for number in range(11)]),
        ("x{a,b}-{0..1}.tar", ["xa-0.tar", "xa-1.tar", "xb-0.tar", "xb-1.tar"]),
        ("{a}{1..2}", ["{a}1", "{a}2"]),
    ],
)
def test_ranges_and_lists_of_names(named: str, names: list[str]) -> None:
    assert expand_braces(named) == names


@pytest.mark.parametrize("named", ["{0..1000000}", "{0..1000}{0..1000}"])
def test_a_range_that_is_too_long(named: str) -> None:
    with pytest.raises(ConfigError, match="more than 1000000 names"):
        expand_braces(named)
