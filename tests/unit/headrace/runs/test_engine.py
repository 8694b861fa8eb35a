"""The engine against a server without sockets: every input has one row, whatever happens."""

from __future__ import annotations

import gc
import json
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typing_extensions import override

from extensions.runs.sinks.jsonl import JsonlSink
from extensions.runs.sources.options import LimitedSource
from headrace import errors
from headrace.client.http.retries import Session
from headrace.client.sansio import HttpResponse, Plan
from headrace.runs import api_calls
from headrace.runs import engine as engines
from headrace.runs import in_flight as in_flight_module
from headrace.runs import submitter as submitter_module
from headrace.runs.engine import Engine
from headrace.runs.interfaces import Entry, Row, RunSpec, Source
from tests.harness.runs.stand_in import Counted, Outcome, StandIn, problem, succeeded


def raw(number: int) -> msgspec.Raw:
    return msgspec.Raw(b'{"n":%d}' % number)


def spec(**changes: Any) -> RunSpec:
    return RunSpec(**{"model": "m", "run_id": "r", "in_flight": 40, **changes})


def run(
    path: Path, server: StandIn, source: Source, sink: JsonlSink | None = None, **changes: Any
) -> Engine:
    """Run to the end, or what ends it; the output is let go in any case."""
    engine = Engine(server, spec(**changes), source, sink or JsonlSink(path))
    try:
        engine.open()
        engine.run()
    finally:
        engine.close()
    return engine


def rows(path: Path) -> dict[int, dict[str, Any]]:
    """Return the rows by number; each exists once."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [n for n, count in Counter(line["n"] for line in lines).items() if count > 1] == []
    return {line["n"]: line for line in lines}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def test_each_input_has_one_row_and_its_job_is_forgotten_once_it_is_safe(out: Path) -> None:
    server = StandIn()
    engine = run(out, server, Counted(1000, raw))
    found = rows(out)
    assert {n: row["result"] for n, row in found.items()} == {n: {"n": n} for n in range(1000)}
    assert found[7] == {
        "n": 7, "key": "k7", "status": "succeeded", "result": {"n": 7}, "attempts": 1,
        "timings": {"total": 1.5},
    }  # fmt: skip
    assert sorted(server.submits) == sorted(f"r.{n}" for n in range(1000))
    assert sorted(server.forgotten) == sorted(server.submits)
    assert engine.checkpoint.ended
    assert (engine.progress.succeeded, engine.progress.failed) == (1000, 0)
    # The same command again finds all done, and asks nothing.
    again = run(out, server, Counted(1000, raw))
    assert (again.progress.succeeded, len(server.submits)) == (1000, 1000)


def test_a_new_run_with_the_same_output_does_not_use_old_jobs(out: Path) -> None:
    server = StandIn(lambda job_id, value: {"status": "failed"})
    first = run(out, server, Counted(3, raw), run_id=None)
    assert run(out, server, Counted(3, raw), run_id=None).checkpoint.run == first.checkpoint.run
    for path in (out, Path(f"{out}.run")):
        path.unlink()
    # The server still has the jobs that failed, and would answer with their ends.
    run(out, server, Counted(3, raw), run_id=None)
    assert len(rows(out)) == 3
    assert len(server.submits) == len(set(server.submits)) == 6


def test_what_fails_is_its_own_row_with_a_typed_error(out: Path) -> None:
    failure = {"type": "input-error", "message": "bad", "retryable": False, "where": "words.py:7"}

    def outcome(job_id: str, value: Any) -> Outcome:
        if value == {"n": 3}:
            return {"status": "failed", "attempts": 2, "timings": None, "error": failure}
        return succeeded(value)

    def value(number: int) -> Any:
        return errors.InvalidRequest("no such column") if number == 5 else raw(number)

    server = StandIn(outcome, lambda i: problem("payload-too-large", 413) if i == "r.6" else None)
    engine = run(out, server, Counted(10, value))
    found = rows(out)
    assert (found[3]["status"], found[3]["attempts"]) == ("failed", 2)
    assert found[3]["error"] == {**failure, "job": "r.3"}
    assert "job" not in found[5]["error"]
    assert (found[5]["status"], found[5]["error"]["message"]) == ("rejected", "no such column")
    assert (found[6]["status"], found[6]["error"]["type"]) == ("rejected", "payload-too-large")
    assert len(found) == 10
    assert (engine.progress.succeeded, engine.progress.failed) == (7, 3)
    assert "r.3" not in server.forgotten


def test_a_file_that_may_not_be_named_fails_alone_once_another_may(out: Path) -> None:
    def refused(job_id: str) -> Outcome | None:
        if job_id not in forbidden:
            return None
        return {**problem("input-forbidden", 403), "remedy": "Copy it there."}

    files = Counted(40, lambda n: Path(f"/data/{n}"))
    # The last page has one input.
    forbidden = {"r.39"}
    run(out, StandIn(refuse=refused), files, by_ref=True, in_flight=4)
    statuses = Counter(row["status"] for row in rows(out).values())
    assert statuses == {"succeeded": 39, "rejected": 1}
    assert rows(out)[39]["error"]["message"] == "it is input-forbidden. Copy it there."
    run(out, StandIn(refuse=refused), files, by_ref=True, in_flight=4, only_failed=True)
    assert sorted(rows(out)) == list(range(40))
    forbidden = {f"r.{n}" for n in range(40)}
    nothing = out.with_name("none.jsonl")
    with pytest.raises(errors.InputForbidden):
        run(nothing, StandIn(refuse=refused), files, by_ref=True, in_flight=4)
    assert rows(nothing) == {}


def test_only_what_failed_runs_again_under_ids_of_its_own(out: Path) -> None:
    cured = False

    def outcome(job_id: str, value: Any) -> Outcome:
        if value["n"] % 7 or cured:
            return succeeded(job_id)
        return {"status": "expired", "attempts": 0}

    with pytest.raises(errors.Conflict, match="no run exists whose failed inputs could run again"):
        run(out, StandIn(outcome), Counted(100, raw), only_failed=True)
    assert run(out, StandIn(outcome), Counted(100, raw)).progress.failed == 15
    cured = True
    server = StandIn(outcome)
    engine = run(out, server, Counted(100, raw), only_failed=True)
    assert sorted(server.submits) == sorted(f"r.{n}.1" for n in range(0, 100, 7))
    assert (engine.progress.succeeded, engine.progress.failed) == (100, 0)
    found = rows(out)
    assert {n: row["result"] for n, row in found.items()} == {
        n: f"r.{n}" if n % 7 else f"r.{n}.1" for n in range(100)
    }
    # There is nothing left that failed.
    run(out, server, Counted(100, raw), only_failed=True)
    assert len(server.submits) == 15


@pytest.mark.parametrize("only_failed", [False, True])
def test_an_output_that_was_moved_or_cut_is_refused(out: Path, only_failed: bool) -> None:
    server = StandIn(lambda _, value: succeeded(1) if value["n"] else {"status": "failed"})
    run(out, server, Counted(10, raw))
    whole, before = out.read_bytes(), len(server.submits)
    out.rename(out.with_suffix(".moved"))
    with pytest.raises(errors.Conflict, match="is gone"):
        run(out, server, Counted(10, raw), only_failed=only_failed)
    assert not out.exists()
    out.write_bytes(b"".join(whole.splitlines(keepends=True)[:5]))
    with pytest.raises(errors.Conflict, match="and its run had"):
        run(out, server, Counted(10, raw), only_failed=only_failed)
    assert len(server.submits) == before
    out.write_bytes(whole)
    run(out, server, Counted(10, raw), only_failed=True)
    assert server.submits[before:] == ["r.0.1"]
    assert set(rows(out)) == set(range(10))


class Breaking(JsonlSink):
    """Fails once after so many rows, having written half of the next."""

    left = 0

    @override
    def append(self, rows: Sequence[Row]) -> None:
        room = max(0, self.left)
        self.left -= len(rows)
        super().append(rows[:room] if self.left < 0 else rows)
        if self.left < 0:
            self._opened().write(b'{"n":99999,"key":"torn')
            raise OSError(28, "No space left on device")


@pytest.mark.parametrize("crash_after", [0, 1, 150, 377])
def test_a_crash_in_the_middle_of_a_row_loses_and_doubles_nothing(
    out: Path, crash_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "CHECKPOINT_S", 0.0)
    server = StandIn()
    sink = Breaking(out)
    sink.left = crash_after
    with pytest.raises(OSError, match="No space"):
        run(out, server, Counted(400, raw), sink=sink)
    assert b"torn" in out.read_bytes()
    written = {int(json.loads(line)["n"]) for line in out.read_text().splitlines()[:-1]}
    before = len(server.submits)
    source = Counted(400, raw)
    engine = run(out, server, source)
    assert set(rows(out)) == set(range(400))
    assert engine.progress.before == len(written) == crash_after
    # An input with a row is not submitted again.
    assert not {f"r.{n}" for n in written} & set(server.submits[before:])
    # With a checkpoint each round, the source is not read from its beginning again.
    assert source.began[0] >= crash_after - 80


def test_jobs_that_the_server_lost_are_submitted_again_under_the_same_id(out: Path) -> None:
    seen = Counter[str]()

    def outcome(job_id: str, value: Any) -> Outcome | None:
        seen[job_id] += 1
        if job_id == "r.9":
            return None
        return None if value["n"] % 5 == 0 and seen[job_id] < 3 else succeeded(value)

    server = StandIn(outcome)
    run(out, server, Counted(50, raw))
    found = rows(out)
    assert Counter(server.submits)["r.5"] == 3
    assert Counter(server.submits)["r.9"] == engines.RESUBMITS + 1
    assert (found[9]["status"], found[9]["error"]["type"]) == ("failed", "job-not-found")
    assert all(row["status"] == "succeeded" for n, row in found.items() if n != 9)


def test_a_lost_job_whose_file_is_gone_has_failed(out: Path) -> None:
    files = [out.with_name(f"{n}.txt") for n in range(3)]
    for file in files:
        file.write_text("text")

    def outcome(job_id: str, value: Any) -> Outcome | None:
        if job_id == "r.1" and files[1].exists():
            files[1].unlink()
            return None
        return succeeded(value)

    server = StandIn(outcome)
    run(out, server, Counted(3, files.__getitem__))
    found = rows(out)
    assert server.submits.count("r.1") == 1
    assert [found[n]["status"] for n in range(3)] == ["succeeded", "failed", "succeeded"]
    assert "1.txt" in found[1]["error"]["message"]


def test_a_slow_input_holds_nothing_up(out: Path) -> None:
    rounds = Counter[str]()

    def outcome(job_id: str, value: Any) -> Outcome:
        rounds[job_id] += 1
        if value["n"] == 2 and len(rounds) < 500:
            return {"status": "running"}
        return succeeded(value)

    run(out, StandIn(outcome), Counted(500, raw))
    order_of_ends = [json.loads(line)["n"] for line in out.read_text().splitlines()]
    assert order_of_ends[-1] == 2
    assert set(rows(out)) == set(range(500))


def test_broken_connections_are_borne(out: Path) -> None:
    server = StandIn()
    server.broken = 3
    assert run(out, server, Counted(100, raw)).progress.succeeded == 100


def test_what_would_meet_every_input_ends_the_run_which_goes_on_later(out: Path) -> None:
    refused = StandIn(refuse=lambda _: problem("model-not-found", 404))
    with pytest.raises(errors.ModelNotFound):
        run(out, refused, Counted(100, raw))
    assert out.read_bytes() == b""
    assert run(out, StandIn(), Counted(100, raw)).progress.succeeded == 100


def test_jobs_of_another_key_are_a_conflict(out: Path) -> None:
    server = StandIn(refuse=lambda job_id: problem("job-not-found", 404))
    with pytest.raises(errors.Conflict, match="another API key has submitted"):
        run(out, server, Counted(3, raw))


def test_a_source_that_breaks_ends_the_run_once_what_it_gave_has_its_row(out: Path) -> None:
    class Broken(Counted):
        broken = True

        @override
        def entries(self, after: Any, n: int) -> Iterator[Entry]:
            for entry in super().entries(after, n):
                if entry.n == 60 and self.broken:
                    raise errors.ConfigError("the disk is gone")
                yield entry

    source = Broken(100, raw)
    with pytest.raises(errors.ConfigError, match="the disk is gone"):
        run(out, StandIn(), source)
    assert set(rows(out)) == set(range(60))
    source.broken = False
    run(out, StandIn(), source)
    assert set(rows(out)) == set(range(100))
    assert source.began[-1] == 60


def test_a_server_that_refuses_what_a_broken_source_gave_last_ends_the_run(out: Path) -> None:
    class Broken(Counted):
        @override
        def entries(self, after: Any, n: int) -> Iterator[Entry]:
            yield from super().entries(after, n)
            raise OSError(5, "Input/output error")

    refused = StandIn(refuse=lambda _: problem("model-not-found", 404))
    with pytest.raises(errors.ModelNotFound):
        run(out, refused, Broken(9, raw))
    with pytest.raises(
        errors.ConfigError, match="source cannot be read further: Input/output error"
    ):
        run(out, StandIn(), Broken(9, raw))
    assert set(rows(out)) == set(range(9))


def test_what_rows_carry_counts_as_bytes_that_are_under_way(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Carrying(Counted):
        @override
        def entries(self, after: Any, n: int) -> Iterator[Entry]:
            for entry in super().entries(after, n):
                carried = {"text": msgspec.Raw(b'"' + b"x" * 998 + b'"')}
                yield msgspec.structs.replace(entry, carried=carried)

    monkeypatch.setattr(in_flight_module, "MOST_BYTES", 20_000)
    monkeypatch.setattr(submitter_module, "PAGE_BYTES", 5_000)
    server, most = StandIn(), []
    engine = Engine(server, spec(in_flight=1000), Carrying(300, raw), JsonlSink(out))
    monkeypatch.setattr(engines, "WATCH_S", 0.0)
    engine.open()
    assert engine.run(lambda progress: most.append(progress.in_flight)) == "ended"
    engine.close()
    assert 0 < max(most) <= 20
    assert len(rows(out)) == 300


def test_a_forbidden_long_result_ends_the_run_and_a_missing_one_its_input() -> None:
    entry = Entry(0, "k", None, {}, None)
    outcome = api_calls.Outcome("succeeded", result_size=70_000)

    def perform(error: Exception) -> Callable[..., Any]:
        def raising(*_: Any) -> Any:
            raise error

        return raising

    with pytest.raises(errors.Unauthorized):
        engines.row_of(entry, "r.0", outcome, perform(errors.Unauthorized("revoked")))
    row = engines.row_of(entry, "r.0", outcome, perform(errors.JobNotFound("gone")))
    assert (row.status, row.result, row.error and row.error.type) == (
        "failed", None, "job-not-found",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"a":\n [NaN]}', {"a": [None]}),
        (b"oops", {"content_type": "application/json", "base64": "b29wcw=="}),
    ],
)
def test_a_long_result_that_is_not_the_json_of_its_type_is_a_row(body: bytes, value: Any) -> None:
    plan = api_calls.long_result(Session("http://x", 0), "r.0")
    next(plan)
    with pytest.raises(StopIteration) as ended:
        plan.send(HttpResponse(200, {"content-type": "application/json"}, body))
    text = bytes(ended.value.value)
    assert msgspec.json.decode(text) == value
    assert b"\n" not in text


def test_a_stop_leaves_what_is_under_way_and_a_cancel_ends_it(out: Path) -> None:
    ends: Outcome = {"status": "running"}
    server = StandIn(lambda _, value: succeeded(value) if value["n"] < 30 else ends)
    engine = Engine(server, spec(in_flight=80), Counted(1000, raw), JsonlSink(out))
    engine.open()
    assert engine.run(lambda p: engine.stop() if p.succeeded == 30 else None) == "stopped"
    engine.close()
    assert set(rows(out)) == set(range(30))
    assert (engine.checkpoint.n, server.cancelled) == (30, [])
    assert 10 <= engine.progress.in_flight <= 80
    engine = Engine(server, spec(in_flight=80), Counted(1000, raw), JsonlSink(out))
    engine.open()

    def cancel(progress: Any) -> None:
        nonlocal ends
        if progress.in_flight == 80:
            ends = {"status": "cancelled", "attempts": 0}
            engine.stop(cancel=True)

    assert engine.run(cancel) == "cancelled"
    engine.close()
    found = rows(out)
    assert sorted(server.cancelled) == sorted(f"r.{n}" for n in range(30, 110))
    assert {n for n, row in found.items() if row["status"] == "cancelled"} == set(range(30, 110))
    assert engine.checkpoint.n == len(found) == 110


def test_another_run_does_not_take_the_output(out: Path) -> None:
    run(out, StandIn(), Counted(10, raw))
    for words, source, changes in (
        ("whose model is m, not other", Counted(10, raw), {"model": "other"}),
        ("count 10 is now 11", Counted(11, raw), {}),
        (r"limit \(not given\) is now 4", LimitedSource(Counted(10, raw), 4), {}),
        (r"option version is \(not given\), not 2", Counted(10, raw), {"version": "2"}),
        ("run id is r, not s", Counted(10, raw), {"run_id": "s"}),
    ):
        with pytest.raises(errors.Conflict, match=words):
            run(out, StandIn(), source, None, **changes)
    assert len(rows(out)) == 10


class Nowhere(JsonlSink):
    """Keeps no rows."""

    @override
    def append(self, rows: Sequence[Row]) -> None:
        self.rows = getattr(self, "rows", 0) + len(rows)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_inputs(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 5,000 inputs to 20,000 nothing is added that would be some bytes for each."""
    monkeypatch.setattr(engines, "CHECKPOINT_S", 0.0)
    monkeypatch.setattr(engines, "WATCH_S", 0.0)
    server = StandIn()
    server.keep_names = False
    engine = Engine(server, spec(in_flight=400), Counted(25_000, raw), Nowhere(out))
    engine.open()
    held: list[int] = []
    moments = [5_000, 20_000]

    def watch(progress: Any) -> None:
        if moments and progress.succeeded > moments[0]:
            moments.pop(0)
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])

    tracemalloc.start()
    try:
        assert engine.run(watch) == "ended"
    finally:
        tracemalloc.stop()
        engine.close()
    assert engine.progress.succeeded == 25_000
    early, late = held
    # An id alone takes 60 bytes; what is under way may differ between two moments.
    assert late - early < 600_000, held
    assert engine.checkpoint.done == []


def test_all_requests_of_a_run_share_their_accept_count(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[Any] = []
    submit = api_calls.submit

    def seen(
        session: Session, lines: Sequence[bytes], quiet: bool, accepts: Any, *more: Any
    ) -> Plan[Any]:
        counts.append(accepts)
        return submit(session, lines, quiet, accepts, *more)

    monkeypatch.setattr(api_calls, "submit", seen)
    run(out, StandIn(), Counted(100, raw))
    assert len(counts) > 1
    assert isinstance(counts[0], api_calls.AcceptCount)
    assert all(count is counts[0] for count in counts)


@pytest.mark.parametrize("unborn", [2, 3])
def test_where_a_thread_cannot_be_started_none_is_left(
    out: Path, monkeypatch: pytest.MonkeyPatch, unborn: int
) -> None:
    start, started = threading.Thread.start, list[threading.Thread]()

    def exhausted(thread: threading.Thread) -> None:
        if not thread.name.startswith("headrace-"):
            return start(thread)
        if len(started) + 1 == unborn:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        return start(thread)

    monkeypatch.setattr(threading.Thread, "start", exhausted)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        run(out, StandIn(), Counted(1000, raw))
    assert len(started) == unborn - 1
    for thread in started:
        thread.join(30)
    assert not [thread.name for thread in started if thread.is_alive()]
