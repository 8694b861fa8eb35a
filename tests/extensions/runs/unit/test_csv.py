"""CSV files as a source of a run."""

from __future__ import annotations

import csv
import gzip
import io
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extensions.runs.sources import csv as csv_table
from headrace.errors import ConfigError, Conflict
from tests.extensions.runs.harness.sources import (
    errors,
    inputs,
    opened,
    read_all,
    resumes_everywhere,
)

_CELL = st.text(st.sampled_from('ab,;"\n\r\té€ 1'), max_size=6)


@given(
    rows=st.lists(st.tuples(_CELL, _CELL, _CELL), max_size=8),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    end=st.sampled_from(["\n", "\r\n"]),
    packed=st.booleans(),
    mark=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read_from_every_cursor(
    rows: list[tuple[str, str, str]], quoting: Any, end: str, packed: bool, mark: bool
) -> None:
    out = io.StringIO()
    writer = csv.writer(out, quoting=quoting, lineterminator=end)
    writer.writerows([("a", "text", "b"), *rows])
    body = (b"\xef\xbb\xbf" if mark else b"") + out.getvalue().encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.csv.gz" if packed else "x.csv")
        path.write_bytes(gzip.compress(body) if packed else body)
        entries = resumes_everywhere(lambda: opened(path, input="text"))
    assert [(e["carried"]["a"], e["input"], e["carried"]["b"]) for e in entries] == rows


@given(st.binary(max_size=60).map(lambda tail: b"text,n\nx,1\n" + tail))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_rows_or_errors_from_every_cursor(body: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.csv")
        path.write_bytes(body)
        assert resumes_everywhere(lambda: opened(path, input="text"))[0]["input"] == "x"


def _file(tmp_path: Path, body: str | bytes, name: str = "x.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(body if isinstance(body, bytes) else body.encode())
    return path


def test_keys_are_lines_and_the_rest_is_carried(tmp_path: Path) -> None:
    path = _file(tmp_path, 'text,label,n\n"two\nlines",a,1\nx,b,2\n')
    first, second = read_all(opened(path, input="text"))
    assert (first["key"], first["input"]) == ("2", "two\nlines")
    assert first["carried"] == {"label": "a", "input.n": "1"}
    assert second["key"] == "4"
    assert opened(path, input="text").count() == 2


def test_a_column_names_the_inputs(tmp_path: Path) -> None:
    path = _file(tmp_path, "id,text\nfirst,x\n,y\n")
    assert [e["key"] for e in read_all(opened(path, input="text", key="id"))] == ["first", "3"]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("a", "line 2: the row has 1 cells, and the first row names 2 columns"),
        ("a,b,c", "line 2: the row has 3 cells"),
        ('"a"b,c', "line 2: the row cannot be read"),
        (b"a,\xff", "line 2: byte 3 of line 2 is not UTF-8"),
        ("a\rb,c", "line 2: the row cannot be read: it contains a carriage return alone"),
    ],
)
def test_a_broken_row_fails_alone(tmp_path: Path, row: str | bytes, why: str) -> None:
    row = row if isinstance(row, bytes) else row.encode()
    path = _file(tmp_path, b"text,b\n" + row + b"\nx,1\ny,2\n")
    entries = resumes_everywhere(lambda: opened(path, input="text"))
    assert [e["input"] for e in entries[1:]] == ["x", "y"]
    (message,) = errors(opened(path, input="text"))
    assert str(path) in message
    assert why in message


def test_a_quote_in_the_wrong_place_costs_the_lines_of_its_row(tmp_path: Path) -> None:
    path = _file(tmp_path, 'text,b\n1,"6 inches\n2,x\n3,"y"\n4,z\n')
    entries = resumes_everywhere(lambda: opened(path, input="text"))
    assert [entry["input"] for entry in entries[1:]] == ["4"]
    (message,) = errors(opened(path, input="text"))
    assert "line 2: the row cannot be read" in message
    assert message.endswith("(up to line 4)")


@pytest.mark.parametrize(
    ("row_max", "why"),
    [(1 << 20, "a quote is opened in it and never closed"), (64, "it has more than 64 bytes")],
)
def test_a_quote_that_is_never_closed_ends_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row_max: int, why: str
) -> None:
    monkeypatch.setattr(csv_table, "ROW_MAX_BYTES", row_max)
    rows = "".join(f"{number},x\n" for number in range(50))
    path = _file(tmp_path, 'text,b\n0,x\n1,"6 inches\n' + rows)
    entries = resumes_everywhere(lambda: opened(path, input="text"))
    assert len(entries) == 2
    (message,) = errors(opened(path, input="text"))
    assert message.startswith(f"{path}, line 3: ")
    assert why in message


def test_compressed_data_that_is_cut_off_fails_at_its_end(tmp_path: Path) -> None:
    body = gzip.compress(b"text\n" + os.urandom(30_000).hex("\n").encode())
    path = _file(tmp_path, body[:-4000], "x.csv.gz")
    source = opened(path)
    given = inputs(source)
    assert len(given) > 10_000
    assert "the gzip data is cut off" in errors(source)[0]
    last = read_all(source)[-1]
    assert list(source.entries(last["cursor"], len(given))) == []


@pytest.mark.parametrize(
    ("delimiter", "character"),
    [
        (None, ","), ("comma", ","), ("semicolon", ";"), (";", ";"), ("tab", "\t"),
        ("\t", "\t"), ("pipe", "|"), ("·", "·"),
    ],
)  # fmt: skip
def test_the_delimiter(tmp_path: Path, delimiter: str | None, character: str) -> None:
    path = _file(tmp_path, f"id{character}text\n1{character}x\n")
    assert inputs(opened(path, input="text", delimiter=delimiter)) == ["x"]


@pytest.mark.parametrize("delimiter", ["", "tabs", ";;", '"', "\n"])
def test_a_delimiter_that_cannot_be_one(tmp_path: Path, delimiter: str) -> None:
    path = _file(tmp_path, "id,text\n")
    with pytest.raises(ConfigError, match="must be one character, or one of comma, tab"):
        opened(path, delimiter=delimiter)


def test_the_delimiter_of_a_tsv_is_a_tab(tmp_path: Path) -> None:
    path = _file(tmp_path, "text,x\tb\n1,2\t3\n", "x.tsv")
    assert inputs(opened(path, input="text,x")) == ["1,2"]
    assert inputs(opened(path, input="text", delimiter="comma")) == ["1"]


@pytest.mark.parametrize("name", ["semicolon", "tab", "pipe"])
def test_a_first_row_with_another_delimiter(tmp_path: Path, name: str) -> None:
    path = _file(tmp_path, csv_table.DELIMITERS[name].join(["id", "text"]) + "\n")
    with pytest.raises(ConfigError, match="which contains another delimiter") as raised:
        read_all(opened(path, input="text"))
    assert f"Add --delimiter {name};" in str(raised.value.hint)


def test_a_column_whose_name_contains_a_delimiter(tmp_path: Path) -> None:
    path = _file(tmp_path, '"text;b"\nx\n')
    assert inputs(opened(path, input="text;b")) == ["x"]


def test_the_delimiter_is_not_part_of_the_source(tmp_path: Path) -> None:
    path = _file(tmp_path, "id;text\n1;x\n")
    described = opened(path, input="text", delimiter=";").describe()
    assert "delimiter" not in described
    assert opened(path, input="text", delimiter="semicolon").describe() == described


@pytest.mark.parametrize(
    ("body", "wanted", "why"),
    [
        ("", "text", "is empty: its first row must name the columns"),
        ("text,b\n", "txet", "no column 'txet'; did you mean text"),
        ("text,b\n", "text,c", "no column 'c'"),
        ("text,b\n", "text,", "no column ''"),
        ('"text;b"\n', None, "line 1: the only column is 'text;b', which contains another"),
        ("a,a\n", "a", "two columns are called 'a'"),
        ("a,b\n".encode("utf-16"), "a", "is UTF-16, not UTF-8"),
        (b"a,\xe9\n", "a", "line 1: byte 3 of line 1 is not UTF-8"),
        ('"a,b\n', "a", "line 1: the row cannot be read: a quote is opened"),
    ],
)
def test_a_first_row_that_does_not_fit(
    tmp_path: Path, body: str | bytes, wanted: str | None, why: str
) -> None:
    path = _file(tmp_path, body)
    with pytest.raises(ConfigError) as raised:
        read_all(opened(path, input=wanted))
    assert why in str(raised.value)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.csv.gz"])
def test_a_row_is_an_object(tmp_path: Path, name: str) -> None:
    tab = "\t" if "tsv" in name else ","
    body = tab.join(["id", "x", "a b"]) + "\n" + tab.join(["w1", "0.5", "y"]) + "\n"
    path = _file(tmp_path, gzip.compress(body.encode()) if name.endswith("gz") else body, name)
    (entry,) = resumes_everywhere(lambda: opened(path, key="id"))
    assert entry["input"] == ("json", {"id": "w1", "x": "0.5", "a b": "y"})
    assert (entry["key"], entry["carried"]) == ("w1", {})
    (entry,) = read_all(opened(path, input="x, a b"))
    assert entry["input"] == ("json", {"x": "0.5", "a b": "y"})
    assert entry["carried"] == {"id": "w1"}
    (entry,) = read_all(opened(path, input="id"))
    assert (entry["input"], entry["carried"]) == ("w1", {"x": "0.5", "a b": "y"})


def test_a_row_of_one_column_and_a_column_with_a_comma(tmp_path: Path) -> None:
    assert inputs(opened(_file(tmp_path, "input\nx\n"))) == [("json", {"input": "x"})]
    path = _file(tmp_path, '"a,b",a,b\n1,2,3\n')
    assert inputs(opened(path, input="a,b")) == ["1"]
    assert inputs(opened(path, input="b,a")) == [("json", {"b": "3", "a": "2"})]


def test_a_row_of_json(tmp_path: Path) -> None:
    path = _file(tmp_path, "a,b\n1,true\n2,x\n3,\n")
    given = inputs(opened(path, content_type="application/json"))
    assert given[0] == ("json", {"a": 1, "b": True})
    assert "line 3, column 'b': not JSON" in given[1][2]
    assert "line 4, column 'b': not JSON: the cell is empty" in given[2][2]
    with pytest.raises(ConfigError, match="--content-type text/plain means nothing"):
        opened(path, content_type="text/plain").describe()


def test_a_row_with_many_columns_takes_no_time(tmp_path: Path) -> None:
    names = [f"column {number}" for number in range(100_000)]
    path = _file(tmp_path, ",".join(names) + "\n" + ",".join(["1"] * len(names)) + "\n")
    ((_, value),) = inputs(opened(path))
    assert value == dict.fromkeys(names, "1")


def test_cells_that_are_json(tmp_path: Path) -> None:
    path = _file(tmp_path, 'x,b\n"[1, 2]",\nnope,\n')
    given = inputs(opened(path, input="x", content_type="application/json"))
    assert given[0] == ("json", [1, 2])
    assert "line 3, column 'x': not JSON" in given[1][2]


def test_several_files_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b-1", "a-2", "a-1"):
        _file(tmp_path, f"text\n{name}\n", f"{name}.csv")
    entries = resumes_everywhere(lambda: opened(tmp_path / "*.csv", input="text"))
    assert [e["input"] for e in entries] == ["a-1", "a-2", "b-1"]
    assert [e["key"] for e in entries] == ["a-1.csv:2", "a-2.csv:2", "b-1.csv:2"]
    ranged = opened(tmp_path / "{b-1,a-1}.csv", input="text")
    assert inputs(ranged) == ["b-1", "a-1"]
    assert ranged.count() == 2


def test_a_file_of_a_range_that_is_missing(tmp_path: Path) -> None:
    _file(tmp_path, "text\nx\n", "a-1.csv")
    with pytest.raises(ConfigError, match=r"a-2\.csv: no such file \(of .*\{1\.\.2\}\.csv\)"):
        opened(tmp_path / "a-{1..2}.csv")
    with pytest.raises(ConfigError, match="no file matches"):
        opened(tmp_path / "c*.csv")


def test_a_file_that_changes_is_another_source(tmp_path: Path) -> None:
    path = _file(tmp_path, "text\nx\ny\n")
    source = opened(path)
    before = source.describe()
    entries = source.entries(None, 0)
    next(entries)
    entries.close()  # type: ignore[attr-defined]
    path.write_text("text\nz\nyy\n")
    assert opened(path).describe() != before
    with pytest.raises(Conflict, match="has changed since the run began"):
        list(source.entries(None, 0))
