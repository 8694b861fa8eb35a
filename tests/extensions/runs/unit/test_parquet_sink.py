"""Parquet files as the output of a run: one row an input, whatever is killed when."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
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

from extensions.runs import arrow, registry
from extensions.runs.arrow import is_json, read_parquet, write_parquet
from extensions.runs.registry import sink_for
from extensions.runs.sinks import parquet
from headrace.errors import ConfigError, Conflict
from headrace.runs.interfaces import Row, Sink
from tests.extensions.runs.harness.sinks import begun, ended, recovered, row
from tests.extensions.runs.harness.sources import opened


def sink_of(folder: Path) -> Sink:
    return sink_for(str(folder / "out.parquet"))


def table(folder: Path) -> list[dict[str, Any]]:
    return sorted(pq.read_table(folder / "out.parquet").to_pylist(), key=lambda one: one["n"])


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_rows_become_a_typed_table(tmp_path: Path) -> None:
    sink = begun(lambda: sink_of(tmp_path))
    sink.append([row(1, label=3), row(0, well=False, label=None)])
    ended(sink)
    assert left(tmp_path) == ["out.parquet", "out.parquet.run"]
    failed, well = table(tmp_path)
    assert well == {
        "n": 1, "key": "k1", "status": "succeeded", "result": {"label": "l1", "score": 0.5},
        "error": None, "attempts": 1, "timings": {"total": 1.5}, "label": 3,
    }  # fmt: skip
    assert failed["error"] == {
        "type": "input-error", "message": "bad 0", "retryable": False, "job": None, "where": None,
    }  # fmt: skip
    assert (failed["result"], failed["timings"], failed["attempts"]) == (None, None, 2)


def test_what_is_json_and_no_value_here_is_text_in_its_column_alone(tmp_path: Path) -> None:
    sink = begun(lambda: sink_of(tmp_path))
    for n, text in enumerate((b"[1]", b"[1e999]")):
        carried = {"big": msgspec.Raw(text)}
        sink.append([msgspec.structs.replace(row(n, label=n), carried=carried)])
    ended(sink)
    found = pq.read_table(tmp_path / "out.parquet")
    assert [field.name for field in found.schema if is_json(field)] == ["big"]
    assert found.column("big").to_pylist() == ["[1]", "[1e999]"]
    assert [one["score"] for one in found.column("result").to_pylist()] == [0.0, 0.5]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["a", "b", "content_type", "base64"]), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def without_nulls(value: Any) -> Any:
    """A value as a table has it: in a struct, what is missing is null."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


@given(results=st.lists(_JSON, max_size=8), batch=st.integers(1, 4))
@settings(max_examples=80, deadline=None)
def test_results_of_any_form_are_kept(results: list[Any], batch: int) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patched:
        patched.setattr(arrow, "BATCH_ROWS", batch)
        patched.setattr(arrow, "GROUP_ROWS", 3)
        sink = begun(lambda: sink_of(Path(name)))
        sink.append([row(n, result=result) for n, result in enumerate(results)])
        spooled = sink.sync()["bytes"]
        lines = Path(name, "out.parquet.rows").read_bytes()
        assert len(lines) == spooled
        ended(sink)
        back = Path(name, "back")
        with back.open("wb") as out:
            read_parquet(Path(name, "out.parquet"), out)
        found = [json.loads(line) for line in back.read_bytes().splitlines()]
        again = Path(name, "again.parquet")
        write_parquet(back, again, None)
        assert pq.read_table(again).equals(pq.read_table(Path(name, "out.parquet")))
    lines_json = [json.loads(line) for line in lines.splitlines()]
    assert [without_nulls(one) for one in found] == [without_nulls(one) for one in lines_json]


@pytest.mark.parametrize(
    ("results", "kind"),
    [
        ([1, 2.5], pa.float64()),
        ([{"a": 1}, {"b": "x"}], pa.struct({"a": pa.int64(), "b": pa.string()})),
        ([[0.5], []], pa.list_(pa.float64())),
        ([1, "x"], None),
        ([2**60 + 1, 0.5], None),
        # Arrow stores true behind a float as 1.0.
        ([0.5, True], None),
        ([{"a": [[0.5]]}, {"a": [[], [False]]}], None),
        ([{str(number): 1 for number in range(300)}], None),
        ([{}], None),
        ([[None]], pa.list_(pa.string())),
    ],
)
def test_the_type_of_results(tmp_path: Path, results: list[Any], kind: pa.DataType | None) -> None:
    sink = begun(lambda: sink_of(tmp_path))
    sink.append([row(n, result=result) for n, result in enumerate(results)])
    ended(sink)
    field = pq.read_schema(tmp_path / "out.parquet").field("result")
    assert is_json(field) == (kind is None)
    assert field.type == (kind or pa.string())
    if kind is None:
        # As text, since true is equal to 1.0.
        assert str([json.loads(one["result"]) for one in table(tmp_path)]) == str(results)


def test_results_that_are_bytes(tmp_path: Path) -> None:
    sink = begun(lambda: sink_of(tmp_path))
    sink.append(
        [row(0, result={"content_type": "image/png", "base64": "AP8="}), row(1, well=False)]
    )
    ended(sink)
    assert table(tmp_path)[0]["result"] == {"content_type": "image/png", "bytes": b"\x00\xff"}
    again = sink_of(tmp_path)
    assert set(again.retract()) == {0}
    again.append([row(1, result={"content_type": "image/png", "base64": "AA=="})])
    ended(again)
    assert [one["result"]["bytes"] for one in table(tmp_path)] == [b"\x00\xff", b"\x00"]


def test_it_is_cut_off_at_every_byte_and_each_input_has_one_row(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    sink = begun(lambda: sink_of(whole))
    sink.append([row(0), row(2, well=False)])
    mark = sink.sync()
    sink.append([Row(3, "", "succeeded"), Row(1, "", "cancelled")])
    sink.sync()
    sink.close()
    lines = (whole / "out.parquet.rows").read_bytes()
    third = lines.index(b"\n", mark["bytes"]) + 1
    for cut in range(mark["bytes"], len(lines) + 1):
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / "out.parquet.rows").write_bytes(lines[:cut])
        again = sink_of(folder)
        found = recovered(again, mark)
        assert found == {n for n, end in ((3, third), (1, len(lines))) if cut >= end}
        again.append([row(n) for n in (1, 3) if n not in found])
        ended(again)
        assert [one["n"] for one in table(folder)] == [0, 1, 2, 3]
        assert left(folder) == ["out.parquet", "out.parquet.run"]


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("step", ["write", "rename", "renamed", "unlink"])
def test_a_kill_at_each_step_of_the_end(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = begun(lambda: sink_of(tmp_path))
    sink.append([row(0), row(1)])
    mark = sink.sync()

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    def half(lines: Path, out: Path, carried: Any) -> None:
        out.write_bytes(b"PAR1 half of it")
        raise Killed

    with monkeypatch.context() as patched:
        if step == "write":
            patched.setattr(parquet, "write_parquet", half)
        elif step == "rename":
            patched.setattr(os, "replace", killed)
        elif step == "renamed":
            patched.setattr(parquet, "sync_folder", killed)
        else:
            patched.setattr(Path, "unlink", killed)
        with pytest.raises(Killed):
            ended(sink)
    sink.close()
    saved = (tmp_path / "out.parquet.run").read_bytes()
    if step == "unlink":
        mark = msgspec.json.decode(saved)
    else:
        assert saved == b"begun"
    again = sink_of(tmp_path)
    assert recovered(again, mark) == set()
    if step != "unlink":
        ended(again)
    again.close()
    assert [one["n"] for one in table(tmp_path)] == [0, 1]
    assert left(tmp_path) == ["out.parquet", "out.parquet.run"]


def test_only_what_failed_runs_again(tmp_path: Path) -> None:
    sink = begun(lambda: sink_of(tmp_path))
    sink.append([row(0, label="a"), row(1, well=False, label=None), row(2, label="c")])
    ended(sink)
    for _ in range(2):  # killed in the first
        again = sink_of(tmp_path)
        assert set(again.retract()) == {0, 2}
        mark = again.sync()
        again.close()
    # Until the end the output is what it was.
    assert [one["status"] for one in table(tmp_path)] == ["succeeded", "failed", "succeeded"]
    last = sink_of(tmp_path)
    assert recovered(last, mark) == set()
    last.append([row(1, label="b")])
    ended(last)
    assert [one["label"] for one in table(tmp_path)] == ["a", "b", "c"]
    assert [one["error"] for one in table(tmp_path)] == [None] * 3


def test_an_output_that_is_another_ones_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out.parquet").write_bytes(b"x")
    with pytest.raises(Conflict, match="already exists"):
        sink_of(tmp_path).recover(None)
    with pytest.raises(ConfigError, match="cannot be written"):
        sink_of(tmp_path / "none").recover(None)


def test_an_output_that_was_changed_or_removed_behind_the_end(tmp_path: Path) -> None:
    sink = begun(lambda: sink_of(tmp_path))
    sink.append([row(0)])
    mark = ended(sink)
    assert recovered(sink_of(tmp_path), mark) == set()
    (tmp_path / "out.parquet").write_bytes(b"x")
    with pytest.raises(Conflict, match="is not what its run has written"):
        sink_of(tmp_path).recover(mark)
    with pytest.raises(Conflict, match="cannot be read"):
        sink_of(tmp_path).retract()
    (tmp_path / "out.parquet").unlink()
    with pytest.raises(Conflict, match="is gone"):
        sink_of(tmp_path).retract()


def test_what_is_carried_from_parquet_keeps_its_type(tmp_path: Path) -> None:
    carried = pa.table(
        {
            "at": pa.array([1, None], pa.timestamp("ns", "UTC")),
            "price": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
            "raw": pa.array([b"\xff", None], pa.binary()),
            "day": pa.array([datetime.date(2026, 1, 2), None], pa.date32()),
            "deep": pa.array([[{"x": 1}], None], pa.list_(pa.struct({"x": pa.int8()}))),
            "key": pa.array([7, None], pa.uint16()),
        }
    )
    path = tmp_path / "in.parquet"
    pq.write_table(carried.append_column("text", pa.array(["a", "b"])), path)
    source = opened(path, input="text")
    sink = sink_for(str(tmp_path / "out.parquet"), source)
    sink.recover(None)
    for entry in source.entries(None, 0):
        sink.append([Row(entry.n, entry.key, "succeeded", carried=entry.carried)])
    ended(sink)
    found = pq.read_table(tmp_path / "out.parquet")
    for name in carried.column_names:
        column = found.column("input.key" if name == "key" else name)
        assert column.type == carried.schema.field(name).type
        assert column.combine_chunks().equals(carried.column(name).combine_chunks())


def test_files_whose_columns_are_of_other_types_lose_nothing(tmp_path: Path) -> None:
    for name, column in (("a", {"x": 1}), ("b", {"x": 1, "y": "more"}), ("c", "text")):
        pq.write_table(pa.table({"text": [name], "meta": [column]}), tmp_path / f"{name}.parquet")
    source = opened(tmp_path / "[abc].parquet", input="text")
    sink = sink_for(str(tmp_path / "out.parquet"), source)
    sink.recover(None)
    for entry in source.entries(None, 0):
        sink.append([Row(entry.n, entry.key, "succeeded", carried=entry.carried)])
    ended(sink)
    lines_json = [json.loads(one["meta"]) for one in table(tmp_path)]
    assert lines_json == [{"x": 1}, {"x": 1, "y": "more"}, "text"]


def test_columns_that_only_some_rows_have(tmp_path: Path) -> None:
    sink = begun(lambda: sink_of(tmp_path))
    sink.append([row(0, a=1), row(1, b="x"), row(2)])
    ended(sink)
    assert [(one["a"], one["b"]) for one in table(tmp_path)] == [
        (1, None),
        (None, "x"),
        (None, None),
    ]


def test_without_pyarrow_the_error_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.parquet").touch()
    monkeypatch.setattr(registry, "find_spec", lambda _: None)
    for open_it in (lambda: sink_of(tmp_path), lambda: opened(tmp_path / "in.parquet")):
        with pytest.raises(ConfigError, match="needs pyarrow, which is not installed") as raised:
            open_it()
        assert raised.value.hint == "pip install 'headrace[tables]'"


def test_pyarrow_and_boto3_are_imported_by_those_alone_who_need_them(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("x\n1\n")
    code = (
        "import sys; from extensions.runs.registry import *\n"
        "from headrace.runs.interfaces import *\n"
        "list(source_for('in.csv', SourceOptions()).entries(None, 0)); sink_for('out.jsonl')\n"
        "print({'pyarrow', 'boto3'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
