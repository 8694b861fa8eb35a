"""Archives of each hostile kind: each is refused in words, and nothing of it stays on the disk."""

from __future__ import annotations

import contextlib
import gc
import gzip
import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.models.archive import MIB, Limits, is_archive, read_archive, unpack
from headrace.models.store import UnpackedModels
from tests.harness.archives import (
    MODEL,
    good_members,
    linked,
    packed_zeros,
    write_tar,
    write_zip,
)

LIMITS = Limits(entries=100, total_bytes=64 * MIB, free_bytes=MIB)

BAD_NAMES = {
    "../evil.py": "leads out of the folder",
    "a/../../evil.py": "leads out of the folder",
    "a/..": "leads out of the folder",
    "/etc/evil.py": "is an absolute path",
    "C:evil.py": "is an absolute path",
    "..\\evil.py": "has a backslash",
    "a\0.py": "has a NUL",
    "a\n.py": "has a control character",
    "a" * 256: "is too long",
    "/".join(["a" * 200] * 6): "is too long",
}


def refusal(path: Path, folder: Path, limits: Limits = LIMITS) -> str:
    """What is said of an archive that is not unpacked; nothing of it is left."""
    models = UnpackedModels(folder / "models")
    with pytest.raises(ConfigError) as caught:
        models.add("key", lambda into: unpack(path, into, limits))
    assert list((folder / "models").iterdir()) == []
    assert not (folder / "evil.py").exists()
    assert str(path) in caught.value.message
    return caught.value.message


def unpacked(path: Path, folder: Path) -> dict[str, str]:
    unpack(path, folder, LIMITS)
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {file.relative_to(folder).as_posix(): file.read_text() for file in files}


@pytest.mark.parametrize("name", ["a.zip", "a.mar", "a.tar.gz", "a.TGZ"])
def test_a_good_archive_is_unpacked(name: str, tmp_path: Path) -> None:
    assert is_archive(name)
    path = tmp_path / name
    if name.endswith(("zip", "mar")):
        write_zip(path, good_members())
    else:
        write_tar(path, [("./", b""), *good_members()])
    into = tmp_path / "into"
    into.mkdir()
    if name.endswith(("zip", "mar")):
        assert unpacked(path, into) == MODEL
    else:
        with pytest.raises(ConfigError):  # "./" as a plain file is no name
            unpack(path, into, LIMITS)
        write_tar(path, good_members())
        assert unpacked(path, into) == MODEL


@pytest.mark.parametrize(("name", "problem"), BAD_NAMES.items(), ids=map(ascii, BAD_NAMES))
def test_a_name_that_leads_elsewhere_is_refused(name: str, problem: str, tmp_path: Path) -> None:
    members = [*good_members(), (name, b"import os")]
    if "\0" in name:
        # As a name that another program writes: zipfile and tarfile write none such.
        zipped = write_zip(tmp_path / "a.zip", [*good_members(), ("aQ.py", b"")])
        zipped.write_bytes(zipped.read_bytes().replace(b"aQ.py", b"a\0.py"))
        info = tarfile.TarInfo("b")
        info.pax_headers = {"path": name}
        paxed = write_tar(tmp_path / "a.tar.gz", [*good_members(), (info, b"")])
    else:
        zipped = write_zip(tmp_path / "a.zip", members)
        paxed = write_tar(tmp_path / "a.tar.gz", members)
    for path in (zipped, paxed):
        assert problem in refusal(path, tmp_path)


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (tarfile.SYMTYPE, "a symbolic link"),
        (tarfile.LNKTYPE, "a hard link"),
        (tarfile.CHRTYPE, "a device"),
        (tarfile.BLKTYPE, "a device"),
        (tarfile.FIFOTYPE, "a pipe"),
        (b"Z", "not a plain file"),
    ],
)
def test_a_member_of_a_tar_that_is_no_plain_file_is_refused(
    kind: bytes, problem: str, tmp_path: Path
) -> None:
    path = write_tar(tmp_path / "a.tgz", [*good_members(), (linked("link", kind), b"")])
    assert problem in refusal(path, tmp_path)


@pytest.mark.parametrize(
    ("mode", "problem"),
    [(0o120777, "a symbolic link"), (0o020666, "a device"), (0o010666, "a pipe")],
)
def test_a_member_of_a_zip_that_is_no_plain_file_is_refused(
    mode: int, problem: str, tmp_path: Path
) -> None:
    path = write_zip(tmp_path / "a.mar", [("link", b"/etc/passwd")], mode)
    assert problem in refusal(path, tmp_path)


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["a.py", "a.py"], "is in it twice"),
        (["a.py", "./a.py"], "is in it twice"),
        (["a.py", "A.py"], "only in case or accents"),
        (["d/a.py", "D/b.py"], "only in case or accents"),
        (["caf\u00e9.py", "cafe\u0301.py"], "only in case or accents"),
        (["a", "a/b.py"], "both a file and a folder"),
        (["a/b.py", "a"], "both a file and a folder"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_that_collide_are_refused(names: list[str], problem: str, tmp_path: Path) -> None:
    members = [(name, b"") for name in names]
    for path in (write_zip(tmp_path / "a.zip", members), write_tar(tmp_path / "a.tgz", members)):
        assert problem in refusal(path, tmp_path)


def test_a_sparse_member_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("sparse")
    info.pax_headers = {
        "GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "sparse",
        "GNU.sparse.realsize": "1000000000000",
    }  # fmt: skip
    body = b"1\n0\n4\n".ljust(512, b"\0") + b"data"
    assert "sparse" in refusal(write_tar(tmp_path / "a.tgz", [(info, body)]), tmp_path)


def test_more_members_than_allowed_are_refused(tmp_path: Path) -> None:
    members = [(f"f{n}", b"") for n in range(LIMITS.entries + 1)]
    for path in (write_zip(tmp_path / "a.zip", members), write_tar(tmp_path / "a.tgz", members)):
        assert "more than 100 members" in refusal(path, tmp_path)


def test_a_zip_with_a_huge_directory_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_zip(tmp_path / "a.zip", [(f"{n:0250}", b"") for n in range(2000)])
    monkeypatch.setattr(zipfile.ZipFile, "infolist", None)
    assert "more than 100 members" in refusal(path, tmp_path)


def test_a_bomb_is_refused_while_it_unpacks(tmp_path: Path) -> None:
    body = bytes(8 * MIB)
    for path in (
        write_zip(tmp_path / "a.zip", [("zeros", body)]),
        write_tar(tmp_path / "a.tgz", [("zeros", body)]),
    ):
        assert "200 times its size" in refusal(path, tmp_path)


def test_an_archive_above_the_total_is_refused(tmp_path: Path) -> None:
    limits = Limits(total_bytes=1000, free_bytes=MIB)
    for path in (
        write_zip(tmp_path / "a.zip", [("a", bytes(600)), ("b", bytes(600))]),
        write_tar(tmp_path / "a.tgz", [("a", bytes(600)), ("b", bytes(600))]),
    ):
        assert "more than 1,000 bytes" in refusal(path, tmp_path, limits)


def test_a_tar_whose_headers_or_gaps_are_the_bomb_is_refused(tmp_path: Path) -> None:
    """A header of a gigabyte is not read, and a jump over one is counted."""
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, 1 << 30
    path = tmp_path / "a.tgz"
    path.write_bytes(gzip.compress(info.tobuf(tarfile.USTAR_FORMAT)) + packed_zeros(4 * MIB))
    assert "a header is too long" in refusal(path, tmp_path)
    path.write_bytes(gzip.compress(_entry("a", b"")) + packed_zeros(300 * MIB))
    assert "times its size" in refusal(path, tmp_path)


@pytest.mark.parametrize("kind", [tarfile.XGLTYPE, tarfile.XHDTYPE])
@pytest.mark.parametrize("keys", [4_000, 20_000])
def test_a_header_of_many_keys_is_refused(kind: bytes, keys: int, tmp_path: Path) -> None:
    """tarfile copies the keys of a global header for each member."""
    records = b"".join(b"12 k%05d=v\n" % key for key in range(keys))
    header = tarfile.TarInfo("h")
    header.type, header.size = kind, len(records)
    path = tmp_path / "a.tgz"
    members = b"".join(_entry(f"{n}", b"") for n in range(50))
    body = header.tobuf(tarfile.USTAR_FORMAT) + records + bytes(-len(records) % 512) + members
    path.write_bytes(gzip.compress(body + bytes(1024)))
    told = refusal(path, tmp_path)
    assert "a header has more than 100 keys" in told or "a header is too long" in told


def test_headers_that_are_long_together_are_refused(tmp_path: Path) -> None:
    """Their reader takes seconds for each 100 MB of them, and they pack well."""
    limits = LIMITS._replace(entries=100)
    for keys, expected in ((1, None), (50, "its headers are too long")):
        members = []
        for n in range(99):
            info = tarfile.TarInfo(f"m{n}")
            info.pax_headers = {f"k{key}": "v" * 500 for key in range(keys)}
            members.append((info, b""))
        path = write_tar(tmp_path / f"{keys}.tgz", members)
        if expected is None:
            assert len(list(read_archive(path, limits, pytest.fail))) == 99
        else:
            assert expected in refusal(path, tmp_path, limits)


def test_a_header_after_the_other_is_refused(tmp_path: Path) -> None:
    header = tarfile.TarInfo("h")
    header.type = tarfile.XGLTYPE
    one = header.tobuf(tarfile.USTAR_FORMAT)
    path = tmp_path / "a.tgz"
    path.write_bytes(gzip.compress(one * 5000 + _entry("a", b"") + bytes(1024)))
    assert "a header is too long" in refusal(path, tmp_path)


def test_names_take_no_more_memory_than_members_do(tmp_path: Path) -> None:
    """Each folder of a path is remembered, also one that has no member of its own."""
    limits = LIMITS._replace(entries=100)
    deep = [(f"{n}/" + "/".join("abcdefgh" * 5) + "/x", b"") for n in range(99)]
    deeper = [("a/" * 60 + "x", b"")]
    for write, suffix in ((write_zip, "zip"), (write_tar, "tgz")):
        path = write(tmp_path / f"a.{suffix}", deep)
        assert "more than 100 members and folders" in refusal(path, tmp_path, limits)
        path = write(tmp_path / f"b.{suffix}", deeper)
        assert "more than 50 folders deep" in refusal(path, tmp_path, limits)


def test_the_members_of_a_tar_are_not_kept(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tgz", [(f"{n}", b"x") for n in range(90)])
    gc.collect()
    before = sum(isinstance(one, tarfile.TarInfo) for one in gc.get_objects())
    for number, (_, chunks) in enumerate(read_archive(path, LIMITS, pytest.fail), 1):
        assert b"".join(chunks) == b"x"
        # To look through all objects takes long.
        if number % 30 == 0:
            seen = sum(isinstance(one, tarfile.TarInfo) for one in gc.get_objects())
            assert seen - before < 10
    assert number == 90


def test_a_zip_that_lies_about_sizes_is_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", [("a", bytes(5000))])
    raw = bytearray(path.read_bytes())
    for mark, at in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):
        place = raw.find(mark) + at
        raw[place : place + 4] = struct.pack("<I", 10)
    path.write_bytes(raw)
    assert "is broken" in refusal(path, tmp_path)


def test_an_encrypted_or_oddly_compressed_member_is_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", [("a", b"text")])
    raw = bytearray(path.read_bytes())
    raw[raw.find(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(raw)
    assert "is encrypted" in refusal(path, tmp_path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a", "text")
    assert "a compression other than deflate" in refusal(path, tmp_path)


def _entry(name: str, body: bytes) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = len(body)
    return info.tobuf() + body.ljust(-(-len(body) // 512) * 512, b"\0")


END = bytes(1024)


ENTRY = _entry("a", b"body")
BROKEN = {
    "empty": b"",
    "begin of a zip": b"PK\x03\x04",
    "text": b"not an archive at all",
    "gzip of nothing": gzip.compress(b""),
    "gzip of text": gzip.compress(b"x" * 2000),
    "tar without an end": gzip.compress(ENTRY),
    "tar with half a member": gzip.compress(ENTRY[:600]),
    "tar with a broken header": gzip.compress(ENTRY + b"\xff" * 512 + _entry("b", b"") + END),
    "cut gzip": gzip.compress(ENTRY + END)[:-12],
    "gzip with more behind it": gzip.compress(ENTRY + END) + b"rest",
    "zlib": zlib.compress(ENTRY + END),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_archive_is_refused(content: bytes, tmp_path: Path) -> None:
    for name in ("a.zip", "a.tar.gz"):
        path = tmp_path / name
        path.write_bytes(content)
        message = refusal(path, tmp_path)
        assert "is broken" in message or "is not a" in message


def _zip_bytes() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in good_members():
            archive.writestr(name, body)
    return file.getvalue()


def _tar_bytes() -> bytes:
    return gzip.compress(b"".join(_entry(*member) for member in good_members()) + END)


@pytest.mark.parametrize(("name", "whole"), [("a.zip", _zip_bytes), ("a.tgz", _tar_bytes)])
def test_no_change_of_bytes_does_more_than_an_error(
    name: str, whole: Callable[[], bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    raw = whole()

    @settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(st.tuples(st.integers(0, len(raw) - 1), st.integers(0, 255)), max_size=6))
    def changed(changes: list[tuple[int, int]]) -> None:
        folder = tmp_path_factory.mktemp("changed")
        body = bytearray(raw)
        for place, value in changes:
            body[place] = value
        path = folder / name
        path.write_bytes(body)
        into = folder / "into"
        into.mkdir()
        with contextlib.suppress(ConfigError):
            unpack(path, into, LIMITS)
        assert {entry.name for entry in folder.iterdir()} == {name, "into"}

    changed()
