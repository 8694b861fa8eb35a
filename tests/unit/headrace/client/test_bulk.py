"""`submit_many` without I/O: how long it waits for a limit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace import errors
from headrace.client import bulk
from headrace.client.http.retries import Session
from headrace.client.sansio import HttpRequest, HttpResponse, NextInput, Pause, Yield, take_inputs
from headrace.jobs.job import State
from headrace.schema.serialization import fresh_object


def refused(code: str, **members: Any) -> HttpResponse:
    problem = {"type": f"/problems/{code}", "status": 429, **members}
    return HttpResponse(200, {}, msgspec.json.encode({"error": problem}))


def sent(stream: Any, answer: HttpResponse | None = None) -> Any:
    """Return what a stream does after its next request, which is the first without an answer."""
    step = stream.send(answer)
    while isinstance(step, NextInput):
        step = stream.send(take_inputs(step.source, step))  # type: ignore[arg-type]
    return step


def test_a_limit_is_waited_for_as_it_asks_and_does_not_count() -> None:
    stream = bulk.submit_many(Session("http://server", retry_s=1, reached=True), "m", iter("a"))
    assert isinstance(sent(stream), HttpRequest)
    for _ in range(9):
        pause = stream.send(refused("rate-limited", retry_after=40))
        assert pause == Pause(40, "rate-limited")
        assert isinstance(stream.send(None), HttpRequest)
    made = fresh_object("m", "1", State.QUEUED, 0, None)("a")
    assert isinstance(stream.send(HttpResponse(202, {}, made)), Yield)


@pytest.mark.parametrize(
    ("code", "members"),
    [("queue-full", {}), ("too-many-in-flight", {}), ("rate-limited", {"retry_after": 40})],
)
def test_without_retries_a_limit_is_an_outcome_at_once(code: str, members: dict[str, int]) -> None:
    stream = bulk.submit_many(Session("http://server", retry_s=0, reached=True), "m", iter("a"))
    assert isinstance(sent(stream), HttpRequest)
    (error,) = stream.send(refused(code, **members)).items  # type: ignore[union-attr]
    assert isinstance(error, errors.Throttled)
    assert error.retry_after_s == members.get("retry_after", 1)
