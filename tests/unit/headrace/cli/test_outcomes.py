"""The file of `headrace submit -o`, and what a later run reads from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

from headrace import errors
from headrace.cli.jobs.outcomes import SUBMITTED, ResumeFile, WrittenOutcome, record
from headrace.client import Job
from headrace.jobs import job as jobs
from headrace.schema.serialization import job_object


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def write(path: Path, *records: tuple[str, str, str | None], resume: bool = False) -> None:
    with ResumeFile(path, resume=resume) as file:
        for key, status, job_id in records:
            file.write({"key": key, "id": job_id, "status": status})


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_is_there_as_soon_as_it_is_written(path: Path) -> None:
    with ResumeFile(path, resume=False) as file:
        file.write({"key": "a", "id": "1", "status": "succeeded", "result": {"x": 1}})
        assert read(path) == [{"key": "a", "id": "1", "status": "succeeded", "result": {"x": 1}}]


def test_results_of_an_earlier_run_are_never_overwritten(path: Path) -> None:
    write(path, ("a", "succeeded", "1"))
    with pytest.raises(typer.BadParameter, match="--resume"):
        ResumeFile(path, resume=False)
    assert len(read(path)) == 1


def test_a_later_run_knows_what_is_done_and_what_is_under_way(path: Path) -> None:
    write(path, ("a", "succeeded", "1"), ("b", "failed", "2"), ("c", SUBMITTED, "3"))
    with ResumeFile(path, resume=True) as file:
        earlier = file.earlier
        assert [earlier.is_done(key) for key in "abcd"] == [True, False, False, False]
        assert [earlier.id_of(key) for key in "abcd"] == [None, None, "3", None]
        file.write({"key": "c", "id": "3", "status": "succeeded"})
    assert [line["key"] for line in read(path)] == ["a", "b", "c", "c"]
    with ResumeFile(path, resume=True) as file:
        assert file.earlier.is_done("c")
        assert file.earlier.id_of("c") is None


def test_a_line_that_was_cut_off_is_dropped_and_its_input_is_not_done(path: Path) -> None:
    write(path, ("a", "succeeded", "1"))
    with path.open("ab") as file:
        file.write(b'{"key":"b","id":"2","status":"succ')
    write(path, ("c", "succeeded", "3"), resume=True)
    assert [line["key"] for line in read(path)] == ["a", "c"]


@pytest.mark.parametrize("text", ["notes without a newline", "notes\n", "{}\n", '{"key":1}\n'])
def test_a_file_of_something_else_is_refused_and_left_alone(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(typer.BadParameter, match="line 1: not a line of this command"):
        ResumeFile(path, resume=True)
    assert path.read_text() == text


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="cannot be written: Is a directory"):
        ResumeFile(tmp_path, resume=False)
    with pytest.raises(typer.BadParameter, match="No such file or directory"):
        ResumeFile(tmp_path / "no" / "out", resume=False)


def test_a_full_disk_is_an_error_and_not_a_line_less() -> None:
    with (
        pytest.raises(OSError, match="No space left"),
        ResumeFile(Path("/dev/full"), resume=False) as file,
    ):
        file.write({"key": "a"})


def test_a_job_whose_result_could_not_be_read_is_not_done(path: Path) -> None:
    written = job_object(jobs.Job("1", "m", "1", jobs.State.SUCCEEDED, 0))
    job = msgspec.json.decode(written, type=Job)
    line = record(WrittenOutcome("a", "1", job, error=errors.JobNotFound("its record is gone")))
    assert (line["status"], line["error"]["type"]) == ("unknown", "job-not-found")
    with ResumeFile(path, resume=False) as file:
        file.write(line)
    with ResumeFile(path, resume=True) as file:
        assert not file.earlier.is_done("a")
