"""What the arguments of `headrace submit` stand for."""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from headrace.cli.shared import inputs
from headrace.cli.shared.inputs import Input, Sources, StdinAs
from headrace.errors import InvalidRequest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder `in` with files, folders, a hidden file and a link back to itself."""
    for name in ("in/b.png", "in/a.png", "in/deep/er/c.txt", "in/.hidden", "in/.git/config"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "in/deep/loop").symlink_to(tmp_path / "in")
    (tmp_path / "in/link.png").symlink_to("a.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def keys(*arguments: str, **options: Any) -> list[str]:
    return [one.key for one in Sources(arguments, **options)]


def lines(text: bytes, kind: StdinAs = StdinAs.AUTO) -> list[Input]:
    return list(Sources(["-"], stdin=io.BytesIO(text), stdin_as=kind))


def refusal(*arguments: str, **options: Any) -> str:
    with pytest.raises(typer.BadParameter) as caught:
        Sources(arguments, **options)
    return caught.value.message


@pytest.mark.usefixtures("folder")
def test_a_folder_is_its_files_in_order_without_hidden_ones_and_loops() -> None:
    assert keys("in") == ["in/a.png", "in/b.png", "in/deep/er/c.txt", "in/link.png"]
    assert Sources(["in"]).count() == 4


@pytest.mark.usefixtures("folder")
def test_a_file_is_itself_also_when_hidden_and_arguments_keep_their_order() -> None:
    assert keys("in/b.png", "in/.hidden", "in/a.png") == ["in/b.png", "in/.hidden", "in/a.png"]
    assert next(iter(Sources(["in/b.png"]))).value == Path("in/b.png")


@pytest.mark.usefixtures("folder")
def test_a_quoted_pattern_stands_for_files_only() -> None:
    assert keys("in/*.png") == ["in/a.png", "in/b.png", "in/link.png"]
    assert "in/deep/er/c.txt" in keys("in/**")
    assert "in/deep" not in keys("in/**")


def test_a_file_whose_name_is_a_pattern_is_that_file(folder: Path) -> None:
    (folder / "[ab].png").touch()
    (folder / "a.png").touch()
    assert keys("[ab].png") == ["[ab].png"]


@pytest.mark.usefixtures("folder")
def test_of_a_large_folder_no_list_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "SORTED_MAX", 2)
    assert sorted(keys("in")) == ["in/a.png", "in/b.png", "in/deep/er/c.txt", "in/link.png"]


def test_a_folder_that_cannot_be_read_is_one_bad_input(folder: Path) -> None:
    # Deeper than a path may be long: found by its parent, refused when it is opened.
    (folder / "far").mkdir()
    (folder / "far/near.txt").touch()
    at = os.open(folder / "far", os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=at)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    bad, good = sorted(Sources(["far"]), key=lambda one: one.key)
    assert good.key == "far/near.txt"
    assert isinstance(bad.value, InvalidRequest)
    assert "File name too long" in bad.value.message


def test_a_name_that_is_not_utf8_is_a_readable_key(folder: Path) -> None:
    os.close(os.open(os.fsencode(folder) + b"/in/z\xff.png", os.O_CREAT))
    assert keys("in")[-1] == "in/z\\xff.png"
    ((one),) = lines(b"in/z\xff.png\n")
    assert one.value.exists()


@pytest.mark.usefixtures("folder")
def test_lines_of_standard_input_are_paths() -> None:
    good, missing, is_folder = lines(b"in/a.png\n\nno.png\r\nin\n")
    assert good == Input("in/a.png", Path("in/a.png"))
    assert "line 3: no such file" in missing.value.message
    assert "line 4: is a folder" in is_folder.value.message


@pytest.mark.usefixtures("folder")
def test_lines_with_marks_and_names_that_are_none() -> None:
    good, nul, long = lines(b"\xef\xbb\xbfin/a.png\nin\0a\n%b\n" % (b"x" * 300))
    assert good == Input("in/a.png", Path("in/a.png"))
    assert "line 2: has a NUL" in nul.value.message
    assert "line 3: cannot be read: File name too long" in long.value.message
    assert all("has a NUL" in one.value.message for one in lines("a\nb\n".encode("utf-16")))
    assert lines(b'\xef\xbb\xbf{"x": 1}\n')[0].value == {"x": 1}
    assert "x: cannot be read: File name too long" in refusal(f"{'y' * 300}/x")


@pytest.mark.parametrize(
    ("first", "value"), [(b' {"x": 1}', {"x": 1}), (b"[1]", [1]), (b'"text"', "text")]
)
def test_or_json_values_where_the_first_begins_so(first: bytes, value: object) -> None:
    one, two, bad = lines(first + b"\n\n12\n{nope\n")
    assert one == Input("stdin:1", value)
    assert two == Input("stdin:3", 12)
    assert bad.key == "stdin:4"
    assert "line 4: not JSON" in bad.value.message


def test_what_the_lines_are_can_be_said(folder: Path) -> None:
    (folder / "{odd}").touch()
    assert lines(b"{odd}\n", StdinAs.PATHS)[0].value == Path("{odd}")
    assert lines(b"7\n", StdinAs.JSON)[0].value == 7
    text, bad = lines(b"{water}\n\xff\n", StdinAs.TEXT)
    assert text.value == "{water}"
    assert "line 2: not UTF-8" in bad.value.message


def test_no_lines_are_no_inputs() -> None:
    assert lines(b"") == []
    assert lines(b"\n\n") == []


def test_standard_input_is_read_as_it_is_asked_for() -> None:
    def endless() -> Iterator[bytes]:
        for number in itertools.count():
            assert number < 3, "read ahead"
            yield b"[%d]\n" % number

    stdin: Any = endless()
    found = iter(Sources(["-"], stdin=stdin))
    assert [next(found).value for _ in range(3)] == [[0], [1], [2]]


def test_values_and_texts_follow_the_files() -> None:
    sources = Sources([], json_inputs=['{"x": 1}', "null"], texts=["hello"])
    assert [(one.key, one.value) for one in sources] == [
        ("json-input:1", {"x": 1}),
        ("json-input:2", None),
        ("text:1", "hello"),
    ]
    assert sources.count() == 3


@pytest.mark.usefixtures("folder")
def test_what_cannot_be_right_is_said_before_anything_is_sent() -> None:
    os.mkdir("empty")
    assert "no input" in refusal()
    assert refusal("empty") == "empty: the folder has no files"
    assert refusal("in/*.jpg") == "in/*.jpg: no file matches the pattern"
    assert "no such file or folder; for text use --text 'in/c.png'" in refusal("in/c.png")
    assert "--json-input '{\"x\": 1}'" in refusal('{"x": 1}')
    assert "more than once" in refusal("-", "-")
    assert "{x}: not JSON" in refusal(json_inputs=["{x}"])


@pytest.mark.usefixtures("folder")
def test_one_input_is_single_only_where_it_is_named_itself() -> None:
    assert Sources(["in/a.png"]).single
    assert Sources([], texts=["a"]).single
    assert not Sources(["in/a.png"], texts=["a"]).single
    assert not Sources(["in/deep"]).single
    assert not Sources(["in/a*"]).single
    assert not Sources(["-"], stdin=io.BytesIO()).single


def test_lines_of_a_file_are_counted_without_reading_it_away(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("[1]\n[2]\n[3]\n")
    with path.open("rb") as stdin:
        sources = Sources(["-"], stdin=stdin)
        assert sources.count() == 3
        assert len(list(sources)) == 3
    read, write = os.pipe()
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert Sources(["-"], stdin=pipe).count() is None
