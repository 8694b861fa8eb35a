"""The client's core without I/O: what is sent again, what is given up, what answers mean."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from headrace import errors
from headrace.client import calls
from headrace.client.http.retries import (
    FIRST_CONTACT_S,
    LIVE_S,
    MAX_PAUSE_S,
    PROBLEM_TYPE,
    RetryDeadline,
    Session,
    error_of,
    exchange,
    job_error,
    outlasting_limits,
    problem_of,
)
from headrace.client.models import Job, decode_result
from headrace.client.sansio import ConnectionFailed, HttpRequest, HttpResponse, Pause, Plan
from headrace.jobs.job import State
from headrace.schema.serialization import fresh_object

REQUEST = HttpRequest("POST", "/api/v1/jobs", body=b"{}")
OK = HttpResponse(200, {"content-type": "application/json"}, b"{}")
GONE = ConnectionFailed("Connection refused", refused=True)
RESET = ConnectionFailed("reset by peer", refused=False)
SILENT = ConnectionFailed("timed out (ReadTimeout)", refused=False)
ALIVE = HttpResponse(200, {"content-type": "application/json"}, b'{"status":"live"}')


def answer(status: int, code: str = "", **members: Any) -> HttpResponse:
    if not code:
        return HttpResponse(status, {"content-type": "text/html"}, b"<h1>Bad gateway</h1>")
    body = {"type": f"/problems/{code}", "title": "T", "status": status, "detail": "D", **members}
    return HttpResponse(status, {"content-type": PROBLEM_TYPE}, msgspec.json.encode(body))


def session(*, reached: bool = True, retry_s: float = 60) -> Session:
    return Session("http://server", retry_s, reached=reached)


def result(plan: Plan[Any], *outcomes: HttpResponse | ConnectionFailed) -> tuple[Any, list[float]]:
    """What a plan gives where these come of its requests, and the pauses that it made."""
    pauses: list[float] = []
    left = list(outcomes)
    came: object = None
    while True:
        try:
            step = plan.send(came)
        except StopIteration as ended:
            assert not left, "it did not ask for all"
            return ended.value, pauses
        if isinstance(step, Pause):
            pauses.append(step.seconds)
            came = None
        else:
            assert left, f"one request too many: {step}"
            came = left.pop(0)


@pytest.mark.parametrize(
    "bad",
    [
        answer(502),
        answer(503),
        answer(504),
        answer(429),
        answer(429, "queue-full"),
        answer(503, "broker-unavailable"),
        answer(503, "broker-full"),
    ],
)
def test_what_passes_is_sent_again(bad: HttpResponse | ConnectionFailed) -> None:
    got, pauses = result(exchange(session(), REQUEST), bad, bad, OK)
    assert got is OK
    assert len(pauses) == 2
    assert all(0 < pause < 1 for pause in pauses)


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (answer(400, "invalid-request"), errors.InvalidRequest),
        (answer(404, "job-not-found"), errors.JobNotFound),
        (answer(409, "conflict"), errors.Conflict),
        (answer(500, "internal-error"), errors.InternalError),
        (answer(503, "transient-error", retryable=True), errors.TransientError),
        (answer(503, "models-not-ready"), errors.ModelsNotReady),
        (answer(507, "of-a-newer-server"), errors.RequestError),
        (answer(500), errors.UnexpectedAnswer),
        (answer(404), errors.UnexpectedAnswer),
    ],
)
def test_what_does_not_pass_is_raised_at_once(
    bad: HttpResponse, error: type[errors.HeadraceError]
) -> None:
    with pytest.raises(error) as raised:
        result(exchange(session(), REQUEST), bad)
    assert type(raised.value) is error


def test_retry_after_is_the_least_pause() -> None:
    bad = answer(429, "queue-full")
    patient = HttpResponse(429, {**bad.headers, "retry-after": "7"}, bad.body)
    _, pauses = result(exchange(session(), REQUEST), patient, OK)
    assert pauses == [7]
    with pytest.raises(errors.QueueFull) as full:
        result(exchange(session(retry_s=5), REQUEST), patient)
    assert full.value.retry_after_s == 7


def test_a_server_that_never_answered_is_given_up_soon() -> None:
    paused: list[float] = []

    def keep_on() -> None:
        plan = exchange(session(reached=False, retry_s=3600), REQUEST)
        step: object = next(plan)
        while True:
            step = plan.send(GONE if isinstance(step, HttpRequest) else None)
            paused.extend([step.seconds] if isinstance(step, Pause) else [])

    with pytest.raises(errors.ServerUnreachable, match="http://server: Connection refused"):
        keep_on()
    # Nobody sleeps here, so that no pause but one that is longer than the limit ends it.
    assert all(pause <= FIRST_CONTACT_S for pause in paused)


class Clock:
    """A time that passes when a plan pauses, or waits in vain for an answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def run(
        self,
        plan: Plan[Any],
        respond: Callable[[HttpRequest], HttpResponse | ConnectionFailed],
        limit_s: float = 90,
    ) -> tuple[Any, list[str]]:
        """What a plan gives, and what it asked for; `SILENT` takes all the time there is."""
        asked: list[str] = []
        came: object = None
        while True:
            try:
                step = plan.send(came)
            except StopIteration as ended:
                return ended.value, asked
            if isinstance(step, Pause):
                self.now += step.seconds
                came = None
                continue
            assert isinstance(step, HttpRequest)
            asked.append(step.path)
            came = respond(step)
            if came is SILENT:
                self.now += limit_s if step.within_s is None else step.within_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.mark.parametrize("broken", [GONE, RESET, SILENT])
def test_after_a_broken_request_a_living_server_is_looked_for_first(
    clock: Clock, broken: ConnectionFailed
) -> None:
    comes: Iterator[HttpResponse | ConnectionFailed] = iter(
        [broken, GONE, RESET, SILENT, answer(502), ALIVE, OK]
    )
    found, asked = clock.run(exchange(session(), REQUEST), lambda _: next(comes))
    assert found is OK
    assert asked == [REQUEST.path, *["/live"] * 5, REQUEST.path]


@pytest.mark.parametrize("away", [GONE, RESET, SILENT])
@pytest.mark.parametrize("retry_s", [0.5, 60])
def test_retries_end_in_time_whether_a_server_refuses_or_says_nothing(
    clock: Clock, away: ConnectionFailed, retry_s: float
) -> None:
    clock_at_failure: list[float] = []

    def respond(request: HttpRequest) -> ConnectionFailed:
        if request.path == REQUEST.path:
            clock.now += 30  # such as a long poll, which had been under way for so long
            clock_at_failure.append(clock.now)
            return RESET
        assert request.within_s is not None
        assert request.within_s <= min(LIVE_S, retry_s)
        return away

    with pytest.raises(errors.ServerUnreachable):
        clock.run(exchange(session(retry_s=retry_s), REQUEST), respond)
    (failed,) = clock_at_failure
    assert retry_s - MAX_PAUSE_S < clock.now - failed <= retry_s + 0.001


def test_a_server_that_lives_is_given_the_whole_time_again(clock: Clock) -> None:
    slow: Iterator[HttpResponse | ConnectionFailed] = iter([SILENT, OK])
    asked: list[HttpRequest] = []

    def respond(request: HttpRequest) -> HttpResponse | ConnectionFailed:
        asked.append(request)
        return ALIVE if request.path == "/live" else next(slow)

    assert clock.run(exchange(session(retry_s=0.5), REQUEST), respond)[0] is OK
    assert asked[0] == asked[-1] == REQUEST
    assert asked[-1].within_s is None


def test_who_was_connected_has_met_a_server() -> None:
    new = session(reached=False)
    found, pauses = result(exchange(new, REQUEST), RESET, GONE, ALIVE, OK)
    assert (found, len(pauses), new.reached) == (OK, 2, True)


def test_what_takes_connections_and_is_silent_is_no_server_that_was_met() -> None:
    new = session(reached=False, retry_s=3600)
    plan = exchange(new, REQUEST)
    next(plan)
    assert isinstance(plan.send(GONE), Pause)
    assert isinstance(plan.send(None), HttpRequest)
    assert isinstance(plan.send(SILENT), Pause)
    assert not new.reached


@pytest.mark.parametrize("code", ["payload-storage-full", "store-unavailable"])
def test_a_store_that_has_no_room_or_is_away_passes(code: str) -> None:
    assert len(result(exchange(session(), REQUEST), answer(507, code), OK)[1]) == 1


def test_pauses_grow_and_are_spread() -> None:
    def pause_s(deadline: RetryDeadline, least_s: float = 0) -> float:
        pause = deadline.pause(least_s)
        assert pause is not None
        return pause.seconds

    patient = Session("http://server", retry_s=1000, reached=True)
    drawn = [[pause_s(one) for _ in range(10)] for one in map(RetryDeadline, [patient, patient])]
    assert drawn[0] != drawn[1]
    for row in drawn:
        assert row[0] <= 0.1
        assert 2.5 <= row[9] <= 5
    assert pause_s(RetryDeadline(patient), 3) == 3


def test_the_repeat_of_a_submit_names_the_same_job() -> None:
    plan = calls.submit(session(), "echo", 1)
    bodies = []
    step: object = next(plan)
    for _ in range(3):
        assert isinstance(step, HttpRequest)
        bodies.append(msgspec.json.decode(step.body or b""))
        assert isinstance(plan.send(RESET), Pause)
        assert plan.send(None) == HttpRequest("GET", "/live", within_s=LIVE_S)
        step = plan.send(ALIVE)
    assert bodies[0]["id"]
    assert bodies[0] == bodies[1] == bodies[2]
    other = next(calls.submit(session(), "echo", 1))
    assert isinstance(other, HttpRequest)
    assert msgspec.json.decode(other.body or b"")["id"] != bodies[0]["id"]
    keyed = next(calls.submit(session(), "echo", 1, idempotency_key="k"))
    assert isinstance(keyed, HttpRequest)
    assert keyed.headers["idempotency-key"] == "k"
    assert "id" not in msgspec.json.decode(keyed.body or b"")
    # A header could not even say it.
    for bad in ("clé", "two words", ""):
        with pytest.raises(errors.InvalidId, match="Idempotency-Key"):
            next(calls.submit(session(), "echo", 1, idempotency_key=bad))


def test_a_problem_of_a_newer_server_keeps_its_code() -> None:
    bad = answer(507, "of-a-newer-server", remedy="R", retryable=True)
    error = error_of(bad, problem_of(bad))
    assert (error.code, error.status, error.retryable) == ("of-a-newer-server", 507, True)
    assert (error.message, error.hint) == ("D", "R")
    # The classes themselves are not changed by it.
    assert (errors.RequestError.code, errors.RequestError.retryable) == ("error", False)


def test_a_job_that_ended_without_a_word_has_its_error() -> None:
    made = msgspec.json.decode(fresh_object("m", "1", State.QUEUED, 0, None)("j"))
    job = msgspec.convert({**made, "status": "expired", "of_a_newer_server": 1}, Job)
    error = job_error(job)
    assert isinstance(error, errors.JobExpired)
    assert error.job_id == "j"


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"id": 7}', b"<html>", b'{"id": "a", "status": "queued"}']
)
def test_an_answer_that_is_no_job_is_an_error(body: bytes) -> None:
    strange = HttpResponse(200, {"content-type": "application/json"}, body)
    with pytest.raises(errors.UnexpectedAnswer, match="cannot be read"):
        result(calls.status(session(), "j"), strange)


def test_results_that_are_not_what_they_say() -> None:
    assert decode_result({"content_type": "text/plain", "base64": "w6Q="}) == "ä"
    assert decode_result({"content_type": "application/json", "base64": "WzFd"}) == [1]
    assert decode_result({"content_type": 1, "base64": "x"}) == {"content_type": 1, "base64": "x"}
    for kind, text in [("text/plain", "/w=="), ("application/json", "Ww=="), ("a/b", "?")]:
        with pytest.raises(errors.UnexpectedAnswer):
            decode_result({"content_type": kind, "base64": text})


def test_a_plan_that_outlasts_limits_repeats_what_a_limit_refuses() -> None:
    refused = answer(429, "rate-limited")
    refused.headers["retry-after"] = "30"  # type: ignore[index]
    hasty = session(retry_s=0)
    plan = outlasting_limits(hasty, exchange(hasty, REQUEST))
    steps = [plan.send(None)]
    for _ in range(20):
        pause = plan.send(refused)
        assert isinstance(pause, Pause)
        assert (pause.limit, pause.seconds) == ("rate-limited", 30)
        steps.append(plan.send(None))
    assert steps == [REQUEST] * 21
    # What is no limit is the plan's own affair.
    with pytest.raises(errors.ServerUnreachable):
        plan.send(GONE)
