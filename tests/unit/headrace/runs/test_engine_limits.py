"""The engine of a run and limits: what waits, for how long, and what goes on meanwhile."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from extensions.runs.sinks.jsonl import JsonlSink
from headrace import errors
from headrace.client.http.retries import MAX_PAUSE_S, Session
from headrace.client.offline import RunProgress
from headrace.client.sansio import HttpResponse, Pause, Plan
from headrace.runs import api_calls
from headrace.runs.engine import Engine
from headrace.runs.interfaces import RunSpec
from tests.harness.runs.stand_in import Counted, Outcome, StandIn, problem, succeeded
from tests.harness.wait import wait_until


def full(accepted: int, lines: int, refusal: dict[str, Any]) -> HttpResponse:
    """A server that has room for the first so many of these lines."""
    reply = [{"accepted": 1}] * accepted + [{"error": refusal}] * (lines - accepted)
    return HttpResponse(200, {}, b"".join(json.dumps(line).encode() + b"\n" for line in reply))


@contextmanager
def opened(server: StandIn, count: int, folder: Path, **changes: Any) -> Iterator[Engine]:
    """A run of so many inputs, whose output is closed at the end of the block."""
    engine = Engine(
        server, RunSpec(model="m", run_id="r", **changes),
        Counted(count, lambda n: msgspec.Raw(b"%d" % n)), JsonlSink(folder / "out.jsonl"),
    )  # fmt: skip
    engine.open()
    try:
        yield engine
    finally:
        engine.close()


STORE_FULL = problem("payload-storage-full", 507)


def turn(plan: Plan[Any], accepted: int, refusal: dict[str, Any] = STORE_FULL) -> Pause:
    """One request of a plan, and its pause then."""
    request: Any = plan.send(None)
    pause = plan.send(full(accepted, len(request.body.splitlines()), refusal))
    assert isinstance(pause, Pause)
    return pause


def test_a_request_waits_for_room_as_long_as_another_one_finds_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which of them gets a free place is chance; the other does not give up."""
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    session, accepts = Session("http://server", 10, reached=True), api_calls.AcceptCount()
    lucky, unlucky = (api_calls.submit(session, [b"{}"] * 100, True, accepts) for _ in range(2))
    since = now
    while now < 1000 + 5 * session.retry_s:
        since = now
        now += max(turn(lucky, 1).seconds, turn(unlucky, 0).seconds)

    def go_on_alone() -> None:
        nonlocal now
        while True:
            now += turn(unlucky, 0).seconds

    with pytest.raises(errors.StoreFull):
        go_on_alone()
    assert session.retry_s - MAX_PAUSE_S <= now - since <= session.retry_s


@pytest.mark.parametrize(
    ("code", "known_s"), [("queue-full", None), ("rate-limited", 40), ("too-many-in-flight", None)]
)
def test_a_limit_is_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch, code: str, known_s: int | None
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    plan = api_calls.submit(Session("http://server", retry_s=0, reached=True), [b"{}"] * 9)
    refusal = problem(code, 429) | ({"retry_after": known_s} if known_s else {})
    for _ in range(30):
        pause = turn(plan, 0, refusal)
        assert pause.limit == code
        assert pause.seconds >= (known_s or 0)
        now += pause.seconds
    # One line is tried alone; then two, four, and the two that are left.
    for lines in (1, 2, 4):
        request: Any = plan.send(None if lines == 1 else full(lines // 2, lines // 2, refusal))
        assert len(request.body.splitlines()) == lines
    request = plan.send(full(4, 4, refusal))
    with pytest.raises(StopIteration) as ended:
        plan.send(full(2, len(request.body.splitlines()), refusal))
    assert ended.value.value == [None] * 9


def test_a_run_that_waits_for_a_limit_says_so_and_goes_on_when_a_job_has_ended(
    tmp_path: Path,
) -> None:
    """The server asks to wait for an hour; the job that ends meanwhile makes room."""
    seen = threading.Event()
    refused: list[str] = []

    def refuse(job_id: str) -> Outcome | None:
        if job_id.endswith(".0") or refused:
            return None
        refused.append(job_id)
        return problem("rate-limited", 429) | {"retry_after": 3600}

    def outcome(job_id: str, value: Any) -> Outcome:
        if job_id.endswith(".0") and not seen.is_set():
            return {"status": "running"}
        return succeeded(value)

    def watch(progress: RunProgress) -> None:
        if progress.limit == "rate-limited":
            seen.set()

    with opened(StandIn(outcome, refuse), 2, tmp_path) as engine:
        assert engine.run(watch) == "ended"
    assert (seen.is_set(), len(refused), engine.progress.succeeded) == (True, 1, 2)


class Losing(StandIn):
    """Loses the job r.0 of three once all are submitted, and refuses it while `gate` is not set.

    The other jobs run until then.
    """

    def __init__(self, refusal: Outcome) -> None:
        super().__init__(self.outcome, self.refusal)
        self.gate = threading.Event()
        self._refusal = refusal
        self._lost = False

    def outcome(self, job_id: str, value: Any) -> Outcome | None:
        # They are submitted in several requests if the source stands still meanwhile.
        if job_id == "r.0" and not self._lost and len(set(self.submits)) == 3:
            self._lost = True
            return None
        return succeeded(value) if self.gate.is_set() else {"status": "running"}

    def refusal(self, job_id: str) -> Outcome | None:
        return self._refusal if self._lost and job_id == "r.0" and not self.gate.is_set() else None


FOR_AN_HOUR = problem("rate-limited", 429) | {"retry_after": 3600}


def test_rows_are_written_while_a_lost_job_waits_for_a_limit(tmp_path: Path) -> None:
    server = Losing(FOR_AN_HOUR)

    def watch(progress: RunProgress) -> None:
        if progress.limit == "rate-limited":
            server.gate.set()

    with opened(server, 3, tmp_path) as engine:
        assert engine.run(watch) == "ended"
    assert engine.progress.succeeded == 3
    keys = [json.loads(row)["key"] for row in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert keys[0] != "k0"
    assert sorted(keys) == ["k0", "k1", "k2"]


def test_a_run_that_stops_while_a_lost_job_waits_for_a_limit_goes_on_later(tmp_path: Path) -> None:
    server = Losing(FOR_AN_HOUR)

    def watch(progress: RunProgress) -> None:
        if progress.limit:
            engine.stop(cancel=True)

    with opened(server, 3, tmp_path) as engine:
        assert engine.run(watch) == "cancelled"
    assert sorted(server.cancelled) == ["r.1", "r.2"]
    server.gate.set()
    with opened(server, 3, tmp_path) as engine:
        assert engine.run() == "ended"
    assert engine.progress.succeeded == 3


def test_a_lost_job_for_which_there_is_no_room_ends_the_run(tmp_path: Path) -> None:
    server = Losing(STORE_FULL)
    server.session.retry_s = 0
    with opened(server, 3, tmp_path) as engine, pytest.raises(errors.StoreFull):
        engine.run()


def test_a_run_that_stops_while_it_waits_for_a_limit_counts_only_the_jobs_that_exist(
    tmp_path: Path,
) -> None:
    def refuse(job_id: str) -> Outcome | None:
        if job_id.endswith(".0"):
            return None
        return problem("rate-limited", 429) | {"retry_after": 3600}

    def watch(progress: RunProgress) -> None:
        if progress.limit:
            engine.stop()

    server = StandIn(lambda _, __: {"status": "running"}, refuse)
    with opened(server, 9, tmp_path) as engine:
        assert engine.run(watch) == "stopped"
    assert engine.progress.in_flight == 1


def test_a_request_that_outlasts_a_cancel_is_not_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_calls, "HOLD_S", 0.01)
    inside, stopped, answer = threading.Event(), threading.Event(), threading.Event()

    def refuse(job_id: str) -> Outcome | None:
        if job_id.endswith(".0"):
            return None
        inside.set()
        assert answer.wait(60)
        return problem("rate-limited", 429) | {"retry_after": 2}

    def outcome(job_id: str, value: Any) -> Outcome:
        if not stopped.is_set():
            return {"status": "running"}
        # The job is cancelled. Only now the request of the other one is refused.
        answer.set()
        wait_until(submitters_ended, "no thread submits any more")
        return {"status": "cancelled", "attempts": 0}

    def submitters_ended() -> bool:
        return all(thread.name != "headrace-submitter" for thread in threading.enumerate())

    def watch(progress: RunProgress) -> None:
        if inside.is_set():
            engine.stop(cancel=True)
            stopped.set()

    server = StandIn(outcome, refuse)
    with opened(server, 2, tmp_path, in_flight=4) as engine:
        assert engine.run(watch) == "cancelled"
    assert server.submits.count("r.1") == 1
