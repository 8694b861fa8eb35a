from __future__ import annotations

import errno
import io
import json
import os
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from extensions.runs.registry import sink_for, source_for
from extensions.runs.sources import paths as folder_source
from extensions.runs.sources.files import local_files
from extensions.runs.sources.options import SourceOptions
from extensions.runs.sources.paths import PathsSource
from headrace.client.inputs import encode_input
from headrace.errors import ConfigError, Conflict, InvalidRequest
from headrace.runs.interfaces import Source
from tests.extensions.runs.harness.sources import resumes_everywhere


def folder(named: Path | str, *globs: str) -> Source:
    return source_for(str(named), SourceOptions(glob=globs))


def keys(source: Source) -> list[str]:
    return [entry.key for entry in source.entries(None, 0)]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in ("b.png", "a/2.jpg", "a/1.jpg", "a/deep/x.png", "a.jpg", ".hidden/y.jpg", "c/.z"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    (tmp_path / "photos/loop").symlink_to(tmp_path / "photos")
    (tmp_path / "photos/link.jpg").symlink_to(tmp_path / "photos/b.png")
    return tmp_path / "photos"


def test_all_files_below_in_the_order_of_their_paths(photos: Path) -> None:
    source = folder(photos)
    entries = list(source.entries(None, 0))
    assert [(e.n, e.key) for e in entries] == list(
        enumerate(["a/1.jpg", "a/2.jpg", "a/deep/x.png", "a.jpg", "b.png", "link.jpg"])
    )
    assert entries[1].input == photos / "a/2.jpg"
    assert source.count() == 6


@pytest.mark.parametrize(
    ("globs", "found"),
    [
        (["*.jpg"], ["a/1.jpg", "a/2.jpg", "a.jpg", "link.jpg"]),
        (["*.png", "1.*"], ["a/1.jpg", "a/deep/x.png", "b.png"]),
        (["/*.png"], ["b.png"]),
        (["a/**"], ["a/1.jpg", "a/2.jpg", "a/deep/x.png"]),
        (["**/[12].jpg"], ["a/1.jpg", "a/2.jpg"]),
        (["**/[!1].jpg"], ["a/2.jpg", "a.jpg"]),
        (["a/?.jpg"], ["a/1.jpg", "a/2.jpg"]),
    ],
)
def test_globs_pick_by_name_or_by_path(photos: Path, globs: list[str], found: list[str]) -> None:
    assert keys(folder(photos, *globs)) == found


def test_a_pattern_names_folder_and_files(photos: Path) -> None:
    assert keys(folder(photos.parent / "pho*/**/*.jpg")) == [
        "photos/a/1.jpg", "photos/a/2.jpg", "photos/a.jpg", "photos/link.jpg",
    ]  # fmt: skip
    assert keys(folder(f"{photos}/*.jpg", "a.*")) == ["a.jpg"]
    for named, words in (
        (f"{photos}/*.gif", "no file matches"),
        (f"{photos}/no/*", "no such folder"),
    ):
        with pytest.raises(ConfigError, match=words):
            folder(named)


@pytest.mark.parametrize("sorted_names", [3, 100_000])
def test_it_goes_on_behind_any_file_however_many_a_folder_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sorted_names: int
) -> None:
    monkeypatch.setattr(folder_source, "SORTED_NAMES", sorted_names)
    chance = random.Random(7)
    for n in range(40):
        path = tmp_path / chance.choice(["", "a", "a/b", "c", "ünter"]) / f"{chance.random()}\n{n}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    source = folder(tmp_path)
    whole = list(source.entries(None, 0))
    assert len({entry.key for entry in whole}) == 40
    assert [e.key.split("/") for e in whole] == sorted(e.key.split("/") for e in whole)
    for entry in whole:
        after = json.loads(json.dumps(entry.cursor))
        assert [e.key for e in source.entries(after, entry.n + 1)] == [
            e.key for e in whole[entry.n + 1 :]
        ]


def test_a_folder_with_other_names_is_another_source(photos: Path) -> None:
    before = folder(photos).describe()
    assert before == folder(photos / "../photos").describe() != folder(photos, "*.jpg").describe()
    (photos / "a.jpg").rename(photos / "d.jpg")
    assert before["files"] == folder(photos).describe()["files"]
    assert before != folder(photos).describe()


def test_paths_go_on_behind_the_lines_that_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"a/1.jpg\n\nb c.png\r\nd\xff.txt"
    whole = list(PathsSource(io.BytesIO(text)).entries(None, 0))
    assert [(e.n, e.key) for e in whole] == [(0, "a/1.jpg"), (1, "b c.png"), (2, "d\\xff.txt")]
    assert whole[1].input == Path("b c.png")
    for entry in whole:
        rest = list(PathsSource(io.BytesIO(text)).entries(entry.cursor, entry.n + 1))
        assert [(e.n, e.key) for e in rest] == [(e.n, e.key) for e in whole[entry.n + 1 :]]
    for changed in (text.replace(b"a/1", b"a/2"), b"a/1.jpg\n", b""):
        with pytest.raises(Conflict, match="not the list"):
            list(PathsSource(io.BytesIO(changed)).entries(whole[1].cursor, 2))


def test_what_leads_nowhere_or_waits_for_ever_is_no_input(photos: Path) -> None:
    whole = keys(folder(photos))
    (photos / "round").symlink_to("round")
    (photos / "nowhere").symlink_to("nothing")
    os.mkfifo(photos / "pipe")
    assert keys(folder(photos)) == whole
    listed = PathsSource(io.BytesIO(os.fsencode(photos / "pipe") + b"\n/dev/zero\n/no/such\n"))
    first, second, third = [entry.input for entry in listed.entries(None, 0)]
    assert "pipe is not a file" in str(first)
    assert "/dev/zero is not a file" in str(second)
    assert third == Path("/no/such")  # which fails as it is sent


def test_a_folder_that_cannot_be_read_fails_alone(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir

    def scandir(path: bytes) -> Any:
        if path == os.fsencode(photos) + b"/a/":
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path)

    # The tests may run as root, who may read all folders.
    monkeypatch.setattr(os, "scandir", scandir)
    entries = resumes_everywhere(lambda: folder(photos))
    assert [entry["key"] for entry in entries] == ["a", "a.jpg", "b.png", "link.jpg"]
    assert f"the folder {photos}/a/ cannot be read: Permission denied" in entries[0]["input"][2]
    assert keys(folder(photos, "a/*.jpg")) == ["a"]
    assert keys(folder(photos, "b/*.jpg", "*/[z]/*", "b.*")) == ["a", "b.png"]
    assert keys(folder(photos / "?.png")) == ["b.png"]
    with pytest.raises(ConfigError, match="photos/a/ cannot be read: Permission"):
        folder(photos / "a/")


@pytest.mark.parametrize("name", ["x.csv", "x", "*.csv", "*.png"])
def test_a_source_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    # The tests may run as root, who may read all folders; a long name fails in the same place.
    with pytest.raises(ConfigError, match="cannot be read: File name too long"):
        folder(tmp_path / ("x" * 300) / name)


def test_names_of_a_list_that_are_none_fail_alone(photos: Path) -> None:
    body = b"\xef\xbb\xbf%b\na\0b\n%b\n" % (os.fsencode(photos / "b.png"), b"x" * 5000)
    entries = list(PathsSource(io.BytesIO(body)).entries(None, 0))
    assert entries[0].input == photos / "b.png"
    assert "it has a NUL" in str(entries[1].input)
    with pytest.raises(InvalidRequest, match="cannot be read: File name too long"):
        encode_input(entries[2].input)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        encode_input(Path("a\0b"))
    for mark in ("utf-16", "utf-16-be"):
        body = "\ufeffa.png\n".encode(mark) if mark != "utf-16" else "a.png\n".encode(mark)
        with pytest.raises(ConfigError, match="standard input is UTF-16"):
            list(PathsSource(io.BytesIO(body)).entries(None, 0))


def test_an_existing_name_is_no_pattern(tmp_path: Path) -> None:
    for name in ("[1]/x.png", "1/y.png", "[1].csv", "1.csv", "[1]/z.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x\n1\n")
    assert keys(folder(tmp_path / "[1]/*.png")) == ["x.png"]
    assert keys(folder(tmp_path / "[1]")) == ["x.png", "z.csv"]
    for name in ("[1].csv", "[1]/*.csv"):
        (file,) = local_files(str(tmp_path / name))
        assert file.name == str(tmp_path / name.replace("*", "z"))


def test_a_packed_file_has_no_type_and_a_mark_is_no_json(tmp_path: Path) -> None:
    for name, kind in (
        ("x.json.gz", "application/octet-stream"), ("x.tgz", "application/octet-stream"),
        ("x.svgz", "application/octet-stream"), ("a:b.jpg", "image/jpeg"),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(b"\x1f\x8b")
        assert kind in encode_input(tmp_path / name).decode()
    (tmp_path / "x.json").write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert encode_input(tmp_path / "x.json") == b'{"a": 1}'


def test_a_name_that_is_not_utf_8_can_be_gone_on_behind(tmp_path: Path) -> None:
    for name in (b"a\xff/1", b"b", b"c\xfe"):
        path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/x\xfd/" + name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    source = folder(os.fsdecode(os.fsencode(tmp_path) + b"/x\xfd"))
    json.dumps(source.describe()).encode()
    whole = list(source.entries(None, 0))
    assert [entry.key for entry in whole] == ["a\\xff/1", "b", "c\\xfe"]
    for entry in whole:
        after = msgspec.json.decode(msgspec.json.encode(entry.cursor))
        assert [e.key for e in source.entries(after, 0)] == [e.key for e in whole[entry.n + 1 :]]
    sink = sink_for(os.fsdecode(os.fsencode(tmp_path) + b"/x\xfd/out.jsonl"))
    assert msgspec.json.encode(sink.describe()).endswith(b'/x\\\\xfd/out.jsonl"')


def test_a_pattern_that_is_none_is_an_error_and_a_class_is_letters_only(photos: Path) -> None:
    with pytest.raises(ConfigError, match=r"'\[z-a\]\.jpg' cannot be read"):
        folder(photos, "[z-a].jpg")
    (photos / "[1.jpg").touch()
    assert keys(folder(photos, "[[]1.jpg")) == ["[1.jpg"]
    with pytest.raises(ConfigError, match="no file matches"):
        folder(photos, r"a/[\d].jpg")


@pytest.mark.parametrize("output", ["out.jsonl", "a/out.parquet"])
def test_what_a_run_writes_into_its_own_source_is_no_input_of_it(
    photos: Path, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos)
    options = SourceOptions(output=output)
    before = source_for(".", options)
    for end in ("", ".run", ".run.lock", ".run.new", ".rows", ".rows.new", ".new"):
        (photos / f"{output}{end}").touch()
    (photos / f"{output}.png").touch()
    assert {*keys(source_for(".", options))} == {*keys(before), f"{output}.png"}
    (photos / f"{output}.png").unlink()
    assert source_for(".", options).describe() == before.describe()
    # And so with files that a pattern names.
    Path("one.jsonl").write_text("1\n")
    assert keys(source_for("*.jsonl", SourceOptions(output="out.jsonl"))) == ["1"]
