"""Parquet files as a source of a run."""

from __future__ import annotations

import datetime
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extensions.runs.registry import sink_for
from extensions.runs.sources import parquet
from headrace.errors import ConfigError
from headrace.runs.arrow import from_values, to_json, to_values
from tests.extensions.runs.harness.sources import (
    errors,
    inputs,
    opened,
    read_all,
    resumes_everywhere,
)


@given(
    rows=st.integers(0, 40),
    group=st.integers(1, 15),
    batch=st.integers(1, 7),
    nulls=st.sets(st.integers(0, 40)),
)
@settings(max_examples=40, deadline=None)
def test_rows_are_read_from_every_cursor(
    rows: int, group: int, batch: int, nulls: set[int]
) -> None:
    texts = [None if row in nulls else f"text {row}" for row in range(rows)]
    table = pa.table({"text": pa.array(texts, pa.string()), "row": list(range(rows))})
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(parquet, "BATCH_ROWS_MAX", batch)
        path = Path(folder, "x.parquet")
        pq.write_table(table, path, row_group_size=group)
        source = opened(path, input="text")
        entries = resumes_everywhere(lambda: opened(path, input="text"))
        assert source.count() == rows
    assert [entry["carried"]["row"] for entry in entries] == list(range(rows))
    assert [entry["key"] for entry in entries] == [str(row) for row in range(rows)]
    for entry, text in zip(entries, texts, strict=True):
        assert entry["input"] == text if text else "it is null" in entry["input"][2]


_UTC = datetime.UTC
_TYPED: list[tuple[pa.DataType, Any, Any]] = [
    (pa.string(), "x", "x"),
    (pa.large_string(), "x", "x"),
    (pa.int64(), -(2**63), -(2**63)),
    (pa.uint64(), 2**64 - 1, 2**64 - 1),
    (pa.float32(), 0.5, 0.5),
    (pa.float16(), 0.5, 0.5),
    (pa.bool_(), True, True),
    (pa.binary(), b"\x00\xff", {"content_type": "application/octet-stream", "base64": "AP8="}),
    (pa.date32(), datetime.date(2026, 2, 3), "2026-02-03"),
    (pa.timestamp("us"), 10**6, "1970-01-01T00:00:01.000000"),
    (pa.timestamp("ns"), 1, "1970-01-01T00:00:00.000000001"),
    (
        pa.timestamp("ms", "UTC"),
        datetime.datetime(2026, 2, 3, tzinfo=_UTC),
        "2026-02-03T00:00:00.000Z",
    ),
    (pa.timestamp("ns", "Europe/Berlin"), 1, "1970-01-01T01:00:00.000000001+01:00"),
    (pa.time64("ns"), 1, "00:00:00.000000001"),
    (pa.time32("s"), datetime.time(23, 59, 1), "23:59:01.000"),
    (pa.duration("ns"), 5, 5),
    (pa.decimal128(20, 2), Decimal("12345678901234567.25"), "12345678901234567.25"),
    (pa.list_(pa.int8()), [1, None], [1, None]),
    (pa.list_(pa.float32(), 2), [1, 2], [1.0, 2.0]),
    (pa.list_(pa.timestamp("ns")), [1], ["1970-01-01T00:00:00.000000001"]),
    (pa.struct({"a": pa.int8(), "b": pa.date32()}), {"a": 1, "b": None}, {"a": 1, "b": None}),
    (pa.map_(pa.string(), pa.int8()), [("k", 1)], [["k", 1]]),
    (pa.dictionary(pa.int32(), pa.string()), "x", "x"),
]


@pytest.mark.parametrize(
    ("kind", "value", "json_value"), _TYPED, ids=[str(one[0]) for one in _TYPED]
)
def test_a_carried_value_is_json_and_comes_back_as_it_was(
    tmp_path: Path, kind: pa.DataType, value: Any, json_value: Any
) -> None:
    array = pa.array([value, None], kind)
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": ["a", "b"], "carried": array}), path)
    entries = read_all(opened(path, input="text"))
    assert [entry["carried"]["carried"] for entry in entries] == [json_value, None]
    assert from_values([json_value, None], kind).equals(array)


def test_inputs_of_every_kind(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    table = pa.table({"a": [b"\x89PNG"], "b": [[1, 2]], "c": [{"x": b"1"}], "d": ["text"]})
    pq.write_table(table, path)
    assert inputs(opened(path, input="a")) == [b"\x89PNG"]
    assert inputs(opened(path, input="b")) == [("json", [1, 2])]
    assert inputs(opened(path, input="d")) == ["text"]
    (nested,) = inputs(opened(path, input="c"))
    assert nested[1]["x"]["base64"] == "MQ=="


def test_a_field_of_a_struct_is_the_input_and_the_rest_of_it_is_carried(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    image = [{"bytes": b"1", "path": "p"}, None]
    pq.write_table(pa.table({"image": image, "label": [1, 2]}), path)
    first, second = resumes_everywhere(lambda: opened(path, input="image.bytes"))
    assert first["input"] == b"1"
    assert first["carried"] == {"image": {"path": "p"}, "label": 1}
    assert "row 1, column 'image.bytes': it is null" in second["input"][2]
    with pytest.raises(ConfigError, match=r"no column 'image\.byte'; did you mean image\.bytes"):
        read_all(opened(path, input="image.byte"))


_YEAR_10000_S = 253_402_300_800


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        (
            pa.timestamp("us", "UTC"),
            {
                0: "1970-01-01T00:00:00.000000Z",
                1: "1970-01-01T00:00:00.000001Z",
                _YEAR_10000_S * 10**6: "+10000-01-01T00:00:00.000000Z",
            },
        ),
        (
            pa.timestamp("ns"),
            {0: "1970-01-01T00:00:00.000000000", 1: "1970-01-01T00:00:00.000000001"},
        ),
        (
            pa.timestamp("ms", "+05:30"),
            {0: "1970-01-01T05:30:00.000+05:30", -1: "1970-01-01T05:29:59.999+05:30"},
        ),
        (pa.date32(), {0: "1970-01-01", _YEAR_10000_S // 86_400: "+10000-01-01"}),
        (pa.date64(), {0: "1970-01-01", _YEAR_10000_S * 1000: "+10000-01-01"}),
        (pa.time64("ns"), {0: "00:00:00.000000000", 1: "00:00:00.000000001"}),
        (pa.time64("us"), {0: "00:00:00.000000", 1: "00:00:00.000001"}),
    ],
    ids=str,
)
def test_the_text_of_a_time_does_not_depend_on_its_neighbours(
    kind: pa.DataType, texts: dict[int, str]
) -> None:
    for wrap, inner in ((kind, None), (pa.list_(kind), list), (pa.struct({"x": kind}), dict)):
        values = [
            tick if inner is None else [tick] if inner is list else {"x": tick} for tick in texts
        ]
        array = pa.array(values, wrap)
        alone = [to_values(array.slice(place, 1))[0] for place in range(len(array))]
        assert to_values(array) == alone
        assert from_values(alone, wrap).equals(array)
    assert to_values(pa.array(list(texts), kind)) == list(texts.values())


def test_a_row_is_an_object(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    table = pa.table({
        "id": [7, 8], "n": [0.5, None], "raw": [b"1", b"2"],
        "image": [{"bytes": b"1", "path": "p"}] * 2,
    })  # fmt: skip
    pq.write_table(table, path)
    first, second = resumes_everywhere(lambda: opened(path, key="id"))
    raw = {"content_type": "application/octet-stream", "base64": "MQ=="}
    image = {"bytes": raw, "path": "p"}
    assert first["input"] == ("json", {"id": 7, "n": 0.5, "raw": raw, "image": image})
    assert (first["key"], first["carried"]) == ("7", {})
    assert second["input"][1]["n"] is None
    first, second = resumes_everywhere(lambda: opened(path, input="n, image.bytes"))
    assert first["input"] == ("json", {"n": 0.5, "image.bytes": raw})
    assert first["carried"] == {"id": 7, "raw": raw, "image": {"path": "p"}}
    sink = sink_for(str(tmp_path / "out.parquet"), opened(path, input="n,image.bytes"))
    assert sink.describe().endswith("out.parquet")
    with pytest.raises(ConfigError, match="--content-type image/png means nothing"):
        opened(path, content_type="image/png").describe()


def test_a_column_names_the_inputs(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"id": [7, None], "text": ["a", "b"]}), path)
    assert [e["key"] for e in read_all(opened(path, input="text", key="id"))] == ["7", "1"]


def test_a_column_that_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": ["a"], "b": [1]}), path)
    with pytest.raises(ConfigError, match="no column 'txt'; did you mean text"):
        read_all(opened(path, input="txt"))
    with pytest.raises(ConfigError, match="no column 'c'"):
        read_all(opened(path, input="text,c"))


@pytest.mark.parametrize("cut", [0, 3, 100, -1, -9])
def test_a_file_that_is_cut_off(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": [str(row) for row in range(100)]}), path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ConfigError) as raised:
        read_all(opened(path))
    assert f"{path} is not a Parquet file, or is cut off" in str(raised.value)


def test_a_broken_row_group_fails_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    texts = [f"{row:08d}" * 20 for row in range(30)]
    pq.write_table(pa.table({"text": texts}), path, row_group_size=10, compression="zstd")
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    body = bytearray(path.read_bytes())
    begin = column.dictionary_page_offset or column.data_page_offset
    for at in range(begin, begin + column.total_compressed_size):
        body[at] ^= 0x5A
    path.write_bytes(bytes(body))
    entries = resumes_everywhere(lambda: opened(path, input="text"))
    assert [e["input"] for e in entries[:10] + entries[20:]] == texts[:10] + texts[20:]
    messages = errors(opened(path))
    assert len(messages) == 10
    assert "row 10: row group 1 is broken" in messages[0]


def test_text_that_is_not_utf8_fails_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    raw = pa.array([b"a", b"\xff", b"c"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    pq.write_table(pa.table({"text": text}), path)
    entries = resumes_everywhere(lambda: opened(path, input="text"))
    assert [entries[0]["input"], entries[2]["input"]] == ["a", "c"]
    assert f"{path}, row 1: cannot be read" in errors(opened(path))[0]


def test_memory_is_bounded_by_batches_and_not_by_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    table = pa.table({"image": [bytes(1 << 20)] * 64})
    pq.write_table(table, path, compression="none", use_dictionary=False, write_batch_size=1)
    before, most = pa.total_allocated_bytes(), 0
    for entry in opened(path, input="image").entries(None, 0):
        most = max(most, pa.total_allocated_bytes() - before)
        assert len(entry.input) == 1 << 20
    assert most < 32 << 20


def test_json_of_a_column_is_one_line_a_value() -> None:
    assert to_json(pa.array(["a\nb"])) == [msgspec.Raw(b'"a\\nb"')]
