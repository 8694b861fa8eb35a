from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from extensions.openai.batches.output import answer_line
from extensions.runs.checkpoint_file import LocalCheckpoints
from extensions.runs.registry import sink_for, source_for
from extensions.runs.sinks.jsonl import JsonlSink, row_line
from extensions.runs.sources import jsonl
from extensions.runs.sources.options import SourceOptions
from headrace.errors import ConfigError, Conflict, InvalidRequest
from headrace.jobs.job import JobFailure
from headrace.runs import checkpoint as checkpoints
from headrace.runs.interfaces import Entry, Row, Source


def source_of(path: Path, **options: Any) -> Source:
    return source_for(str(path), SourceOptions(**options))


def seen(entries: list[Entry]) -> list[tuple[int, str, Any, dict[str, Any]]]:
    return [
        (e.n, e.key, e.input if isinstance(e.input, Exception) else json.loads(bytes(e.input)),
         {name: json.loads(bytes(raw)) for name, raw in e.carried.items()})
        for e in entries
    ]  # fmt: skip


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text(
        '{"id": "a", "x": {"v": [1, 2]}, "label": 3}\n\n{"id": 7, "x": "two", "key": "k"}\n'
        '  \n{"id": "c", "label": null}\nno json\n{"id": "e", "x": 5}'
    )
    return path


def test_a_column_is_the_input_and_the_others_are_carried(lines: Path) -> None:
    found = seen(list(source_of(lines, input="x", key="id").entries(None, 0)))
    assert found[0] == (0, "a", {"v": [1, 2]}, {"id": "a", "label": 3})
    # A row has a key of its own.
    assert found[1] == (1, "7", "two", {"id": 7, "input.key": "k"})
    assert found[2][:2] == (2, "c")
    assert isinstance(found[2][2], InvalidRequest)
    assert "line 5: has no column 'x'" in str(found[2][2])
    assert found[2][3] == {"id": "c", "label": None}
    assert "line 6: not the expected JSON" in str(found[3][2])
    assert found[4] == (4, "e", 5, {"id": "e"})
    assert len(found) == 5


def test_without_a_column_the_line_is_the_input(lines: Path) -> None:
    found = seen(list(source_of(lines).entries(None, 0)))
    assert found[0] == (0, "1", {"id": "a", "x": {"v": [1, 2]}, "label": 3}, {})
    assert found[4][:3] == (4, "7", {"id": "e", "x": 5})


def test_it_goes_on_behind_any_entry_without_reading_what_lies_before(lines: Path) -> None:
    source = source_of(lines, input="x")
    whole = list(source.entries(None, 0))
    for entry in whole:
        cursor = json.loads(msgspec.json.encode(entry.cursor))
        rest = list(source.entries(cursor, entry.n + 1))
        assert [(e.n, e.key, e.cursor) for e in rest] == [
            (e.n, e.key, e.cursor) for e in whole[entry.n + 1 :]
        ]


def test_some_columns_are_an_object(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"a": 1, "b": [2], "c": 3}\n{"a": 1}\n{"a,b": 5}\n')
    source = source_of(path, input="b, a")
    source.describe()
    found = seen(list(source.entries(None, 0)))
    assert found[0] == (0, "1", {"b": [2], "a": 1}, {"c": 3})
    assert "line 2: has no column 'b'" in str(found[1][2])
    assert seen(list(source_of(path, input="a,b").entries(None, 0)))[2][2] == 5
    with pytest.raises(ConfigError, match="the column 'd' of --input"):
        source_of(path, input="a,d").describe()


def test_marks_of_joined_files_and_other_encodings(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n\xef\xbb\xbf{"a": 2}\n\xef\xbb\xbf\n')
    assert [one[2] for one in seen(list(source_of(path).entries(None, 0)))] == [{"a": 1}, {"a": 2}]
    path.write_text('{"a": 1}\n', encoding="utf-16")
    with pytest.raises(ConfigError, match="is UTF-16, not UTF-8"):
        source_of(path).describe()


@pytest.mark.parametrize(
    "text", ['[\n{"a": 1},\n{"a": 2}\n]\n', '[{"a": 1},\n {"a": 2}]', '{\n  "a": 1\n}\n']
)
def test_a_json_document_is_no_file_of_lines(tmp_path: Path, text: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match="looks like one JSON document"):
        source_of(path).describe()
    path.write_text('[{"a": 1}, {"a": 2}]\n{"a"\n')
    source_of(path).describe()  # a list is an input, too


def test_a_file_that_has_changed_is_another_source(lines: Path) -> None:
    before = source_of(lines).describe()
    assert before == source_of(lines.parent / "." / lines.name).describe()
    assert before != source_of(lines, input="x").describe()
    with lines.open("a") as file:
        file.write("\n1")
    assert before != source_of(lines).describe()
    assert source_of(lines).count() == 8


def test_a_file_that_grows_while_it_is_read_ends_the_run_and_half_a_line_is_no_input(
    tmp_path: Path,
) -> None:
    growing = tmp_path / "in.jsonl"
    growing.write_text("1\n2\n")
    entries = source_of(growing).entries(None, 0)
    assert bytes(next(entries).input) == b"1"
    with growing.open("a") as file:
        file.write("34")  # of 345
    assert bytes(next(entries).input) == b"2"
    with pytest.raises(Conflict, match="has changed since the run began"):
        next(entries)


def test_errors_of_sources_and_outputs(lines: Path) -> None:
    for named, words in (
        (lines.parent / "none.jsonl", "no such file"),
        (lines.parent / "none", "no such file"),
        ("ftp://host/x.jsonl", "Known kinds: "),
    ):
        with pytest.raises(ConfigError) as raised:
            source_of(Path(named)) if isinstance(named, Path) else source_for(
                named, SourceOptions()
            )
        assert words in f"{raised.value.message} {raised.value.hint}"
    with pytest.raises(ConfigError, match="--glob means nothing"):
        source_of(lines, glob=("*.png",))
    with pytest.raises(ConfigError, match="unknown kind of output"):
        sink_for("out.xml")


def row(n: int, status: str = "succeeded") -> Row:
    if status != "succeeded":
        return Row(n, f"k{n}", status, 2, error=JobFailure(type="input-error", message="bad"))
    timings = msgspec.Raw(b'{"total":1.5}')
    return Row(
        n, f"k{n}", status, 1, timings, msgspec.Raw(b"[1,2]"), None, {"y": msgspec.Raw(b"null")}
    )


def rows_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_are_lines(tmp_path: Path) -> None:
    sink = sink_for(str(tmp_path / "out.jsonl"))
    assert list(sink.recover(None)) == []
    sink.append([row(0), row(2, "failed"), Row(3, "k3", "succeeded")])
    mark = sink.sync()
    sink.close()
    assert mark == {"bytes": (tmp_path / "out.jsonl").stat().st_size}
    error = {"type": "input-error", "message": "bad", "retryable": False}
    assert rows_in(tmp_path / "out.jsonl") == [
        {"n": 0, "key": "k0", "status": "succeeded", "result": [1, 2], "attempts": 1,
         "timings": {"total": 1.5}, "y": None},
        {"n": 2, "key": "k2", "status": "failed", "error": error, "attempts": 2, "timings": None},
        {"n": 3, "key": "k3", "status": "succeeded", "result": None, "attempts": 0,
         "timings": None},
    ]  # fmt: skip


def test_rows_are_lines_for_every_reader() -> None:
    text = "a\u2028b\u2029c\x85d"
    raw = msgspec.Raw(msgspec.json.encode(text))
    error = JobFailure(type="handler-error", message=text, retryable=False)
    succeeded = Row(0, text, "succeeded", result=raw, carried={text: raw})
    for line in (
        row_line(succeeded),
        row_line(Row(1, text, "failed", error=error)),
        answer_line("batch_1", "batch_1.0", succeeded),
        answer_line("batch_1", "batch_1.1", Row(1, text, "failed", error=error)),
    ):
        assert len(line.decode().splitlines()) == 1
    found = json.loads(row_line(succeeded))
    assert (found["key"], found["result"], found[text]) == (text, text, text)


@pytest.mark.parametrize("torn", [b"", b"{", b'{"n":9,"key":"k9","status":"succe'])
def test_rows_behind_the_mark_are_found_and_a_torn_one_is_cut(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "out.jsonl"
    sink = JsonlSink(path)
    sink.recover(None)
    sink.append([row(1)])
    mark = sink.sync()
    sink.append([row(4), row(0, "failed")])
    sink.sync()
    sink.close()
    with path.open("ab") as file:
        file.write(torn)
    again = JsonlSink(path)
    assert list(again.recover(mark)) == [(4, True), (0, False)]
    again.append([row(5)])
    again.sync()
    again.close()
    assert [line["n"] for line in rows_in(path)] == [1, 4, 0, 5]


def test_a_file_that_is_not_the_runs_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("precious\n")
    for mark, words in (
        (None, "already has lines"),
        ({"bytes": 50}, "its run had written 50"),
        ({"parts": 1}, "does not belong to a file"),
        ({"bytes": 0}, "is not a row"),
    ):
        sink = JsonlSink(path)
        with pytest.raises(Conflict, match=words):
            sink.recover(mark)
        sink.close()
    assert path.read_text() == "precious\n"
    with pytest.raises(ConfigError, match="cannot be written"):
        JsonlSink(tmp_path / "none/out.jsonl").recover(None)


def test_rows_are_not_written_to_a_removed_file(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "out.jsonl")
    sink.recover(None)
    sink.append([Row(0, "a", "succeeded")])
    (tmp_path / "out.jsonl").unlink()
    with closing(sink), pytest.raises(Conflict, match="removed or replaced while"):
        sink.sync()


def test_rows_that_failed_are_removed_to_be_run_again(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    sink = JsonlSink(path)
    sink.recover(None)
    sink.append([row(n, "failed" if n % 3 == 0 else "succeeded") for n in (2, 0, 1, 4, 3)])
    sink.sync()
    sink.close()
    assert sink.retract().ranges() == [(1, 2), (4, 4)]
    sink.append([row(0), row(3)])
    sink.sync()
    sink.close()
    assert [line["n"] for line in rows_in(path)] == [2, 1, 4, 0, 3]


def test_a_disk_without_locks_is_not_taken_for_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(ConfigError, match="cannot be locked: No locks available"):
        LocalCheckpoints(tmp_path / "out.jsonl").acquire()


def test_a_checkpoint_is_found_again_and_another_process_is_kept_away(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    store = LocalCheckpoints(output)
    assert store.load() is None
    store.acquire()
    kept = checkpoints.Checkpoint(
        run="r", model="m", source={"kind": "x"}, output="o", options={}, cursor=[3, 1], n=2,
        done=[(3, 4), (6, 6)],
    )  # fmt: skip
    store.save(b"first")
    store.save(kept.encode())
    code = (
        "import sys; from pathlib import Path; from extensions.runs.checkpoint_file import *\n"
        "LocalCheckpoints(Path(sys.argv[1])).acquire()"
    )
    other = subprocess.run(
        [sys.executable, "-c", code, str(output)], capture_output=True, text=True, check=False
    )
    assert f"another run writes {output}: process {os.getpid()}" in other.stderr
    found = checkpoints.decode(store.load() or b"", "o")
    assert found == kept
    assert list(found.done_set) == [3, 4, 6]
    store.release()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl.run"]
    # A process that was killed leaves its lock file, and holds no lock.
    killed = subprocess.run([sys.executable, "-c", code, str(output)], check=False)
    assert killed.returncode == 0
    store.acquire()
    store.release()


def test_a_broken_checkpoint_is_an_error() -> None:
    for data, words in ((b"{", "cannot be read"), (b'{"version": 1}', "cannot be read")):
        with pytest.raises(Conflict, match=words):
            checkpoints.decode(data, "out")
    later = checkpoints.Checkpoint(version=9, run="r", model="m", source={}, output="o", options={})
    with pytest.raises(Conflict, match="version 9"):
        checkpoints.decode(later.encode(), "out")


def test_a_run_has_one_id_and_the_same_input_the_same_job() -> None:
    one = checkpoints.run_id("m", {"kind": "x", "path": "p"}, "o", {"priority": 9}, 1.5)
    assert one == checkpoints.run_id("m", {"path": "p", "kind": "x"}, "o", {"priority": 9}, 1.5)
    assert one != checkpoints.run_id("m", {"path": "p", "kind": "x"}, "o", {"priority": 0}, 1.5)
    kept = checkpoints.Checkpoint(run=one, model="m", source={}, output="o", options={})
    assert kept.job_id(3) == f"{one}.3"
    kept.attempt = 2
    assert kept.job_id(3) == f"{one}.3.2"


def test_lines_that_are_no_json_that_others_can_read_fail_alone(tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    deep = b"[" * 5000 + b"]" * 5000
    path.write_bytes(
        b'\xef\xbb\xbf{"k": "first", "x": 1}\r\n{"k": "b", "x": 1, "c": "a\xff"}\n'
        b'{"k": "a\xff", "x": 1}\n{"k": "b", "x": ' + deep + b"}\n"
        b'{"k": "\xc3\xa4", "x": "\xc3\xb6"}\n{"k": 123456789012345678901234567890, "x": 2}\n'
    )
    found = list(source_of(path, input="x", key="k").entries(None, 0))
    assert [e.key for e in found] == [
        "first", "2", "3", "4", "\u00e4", "123456789012345678901234567890",
    ]  # fmt: skip
    bad = [str(e.input) for e in found if isinstance(e.input, InvalidRequest)]
    assert [text.partition(": not the expected JSON")[0][-6:] for text in bad] == [
        "line 2", "line 3", "line 4",
    ]  # fmt: skip
    whole = list(source_of(path).entries(None, 0))
    assert [isinstance(e.input, InvalidRequest) for e in whole] == [
        False, True, True, True, False, False,
    ]  # fmt: skip


def test_a_misspelt_column_is_an_error_before_anything_is_written(lines: Path) -> None:
    with pytest.raises(ConfigError, match="column 'labell' of --input; did you mean la"):
        source_of(lines, input="labell").describe()
    with pytest.raises(ConfigError, match=r"no.* column 'idd' of --key; did you mean id"):
        source_of(lines, input="x", key="idd").describe()
    lines.write_text("no json\n[1]\n")
    source_of(lines, input="x").describe()  # its lines are what is wrong


def test_a_line_that_never_ends_is_read_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "LINE_MAX_BYTES", 20)
    monkeypatch.setattr(jsonl, "READ_BYTES", 7)
    path = tmp_path / "long.jsonl"
    path.write_bytes(b"1\n" + b'"' + b"x" * 17 + b'"\n' + b"y" * 20 + b"\n3\n" + b"z" * 50)
    source = source_of(path)
    found = list(source.entries(None, 0))
    assert [e.key for e in found] == ["1", "2", "3", "4", "5"]
    assert [isinstance(e.input, InvalidRequest) for e in found] == [
        False, False, True, False, True,
    ]  # fmt: skip
    assert "line 3: has more than 20 bytes" in str(found[2].input)
    for entry in found:
        rest = [e.key for e in source.entries(entry.cursor, entry.n + 1)]
        assert rest == [e.key for e in found[entry.n + 1 :]]
