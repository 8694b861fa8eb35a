"""`map` without I/O, against a server that is played: when it submits, looks, and gives out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from typing_extensions import override

from headrace import errors
from headrace.client import Client, Result
from headrace.client.http.retries import PROBLEM_TYPE
from headrace.client.sansio import HttpRequest, HttpResponse, NextInput, TakenInput
from headrace.jobs.job import State
from headrace.schema.serialization import fresh_object

OK = {"content-type": "application/json"}


class Played:
    """A server with one queue. Jobs end when they are looked at, so many at a time.

    Attributes:
        bulks: of every bulk request, how many lines it had and what it was asked to hold.
        most_lines: the most that a client had to keep for one request, in bytes.
        failure: the problem that a request for a result is answered with; results are long then.
        refusal: the problem of a line for which there is no room.
    """

    failure: tuple[int, str] | None = None
    refusal = b'{"error":{"type":"/problems/queue-full","status":429}}'

    def __init__(self, *, room: int, pace: int) -> None:
        self.bulks: list[tuple[int, str | None]] = []
        self.most_lines = 0
        self._room = room
        self._pace = pace
        self._queued: dict[str, Any] = {}
        self._ended: dict[str, Any] = {}

    def answer(self, request: HttpRequest) -> HttpResponse:
        body = request.body or b""
        if request.path.endswith("/bulk"):
            lines = [msgspec.json.decode(line) for line in body.splitlines()]
            self.bulks.append((len(lines), request.query.get("hold")))
            self.most_lines = max(self.most_lines, len(body))
            return HttpResponse(200, OK, b"\n".join(map(self._submitted, lines)))
        if self.failure is not None and request.path.endswith("/result"):
            status, code = self.failure
            problem = {"type": f"/problems/{code}", "status": status}
            return HttpResponse(
                status, {"content-type": PROBLEM_TYPE}, msgspec.json.encode(problem)
            )
        for job_id in list(self._queued)[: self._pace]:
            self._ended[job_id] = self._queued.pop(job_id)
        if request.path.endswith("/status"):
            jobs = [self._job(job_id) for job_id in msgspec.json.decode(body)["ids"]]
            return HttpResponse(200, OK, msgspec.json.encode({"jobs": jobs}))
        return HttpResponse(
            200, OK, msgspec.json.encode(self._job(request.path.rpartition("/")[2]))
        )

    def _submitted(self, line: Any) -> bytes:
        if len(self._queued) >= self._room:
            return self.refusal
        self._queued[line["id"]] = line["input"]
        return msgspec.json.encode(self._job(line["id"]))

    def _job(self, job_id: str) -> dict[str, Any]:
        made: dict[str, Any] = msgspec.json.decode(
            fresh_object("m", "1", State.QUEUED, 0, None)(job_id)
        )
        if job_id in self._ended and self.failure is not None:
            return {**made, "status": "succeeded", "result_size": 100_000}
        if job_id in self._ended:
            return {**made, "status": "succeeded", "result": len(self._ended[job_id])}
        return made


class PlayedClient(Client):
    """A client of a played server, whose sources give no more than `at_a_time` at a time."""

    def __init__(self, server: Played, at_a_time: int) -> None:
        super().__init__("http://played", retry_s=0)
        self._server = server
        self._at_a_time = at_a_time

    @override
    async def _send(self, request: HttpRequest) -> HttpResponse:
        return self._server.answer(request)

    @override
    async def _take_inputs(self, step: NextInput) -> TakenInput:
        return await super()._take_inputs(replace(step, count=min(step.count, self._at_a_time)))


def mapped(
    server: Played, inputs: Iterator[str], *, at_a_time: int = 1000, **options: Any
) -> Iterator[Result[str]]:
    """The results of `map` on a played server."""
    with PlayedClient(server, at_a_time) as client:
        yield from client.map("m", inputs, **options)


class Source:
    """Inputs that are counted as they are taken."""

    def __init__(self, count: int, size: int = 1) -> None:
        self.taken = 0
        self._count = count
        self._size = size

    def __iter__(self) -> Iterator[str]:
        while self.taken < self._count:
            self.taken += 1
            yield "x" * self._size


def test_a_slow_source_holds_no_result_back() -> None:
    source = Source(2000)
    results = mapped(Played(room=10_000, pace=5), iter(source), at_a_time=5)
    assert next(results).value == 1
    assert source.taken == 5
    assert sum(1 for _ in results) == 1999


def test_a_full_queue_is_asked_for_what_it_has_room_for() -> None:
    source, server = Source(5000), Played(room=20, pace=10)
    given = 0
    for result in mapped(server, iter(source), in_flight=400):
        given += 1
        assert result.index == given - 1
        assert source.taken - given <= 400
    assert given == 5000
    # After the first, which cannot know, a line is said about twice and not 250 times.
    said = sum(lines for lines, _ in server.bulks)
    assert said < 3 * 5000
    assert {hold for _, hold in server.bulks} <= {"0.5", None}


# With a pace of 20, all jobs have ended when `map` looks for the first time after a refusal.
@pytest.mark.parametrize("pace", [10, 20])
def test_a_limit_is_waited_for_until_a_job_ends_which_makes_room(pace: int) -> None:
    server = Played(room=20, pace=pace)
    server.refusal = b'{"error":{"type":"/problems/rate-limited","status":429,"retry_after":3600}}'
    found = [result.value for result in mapped(server, iter(Source(300)), in_flight=100)]
    assert found == [1] * 300


def test_a_limit_is_waited_for_no_longer_than_it_asks_beside_a_slow_job() -> None:
    waits: list[float] = []

    class Slow(Played):
        def answer(self, request: HttpRequest) -> HttpResponse:
            # The long poll returns because the job ends, not at its time limit.
            self._pace = 1 if request.method == "GET" else 0
            if request.method == "GET" and len(self.bulks) == 2:
                waits.append(float(request.query["wait"]))
            return super().answer(request)

    server = Slow(room=1, pace=0)
    server.refusal = b'{"error":{"type":"/problems/rate-limited","status":429,"retry_after":20}}'
    assert [one.value for one in mapped(server, iter(Source(2)), in_flight=2)] == [1, 1]
    assert waits
    assert max(waits) <= 20


def test_long_inputs_that_wait_are_not_all_kept_as_lines() -> None:
    mib = 1024 * 1024
    server = Played(room=3, pace=3)
    results = list(mapped(server, iter(Source(60, mib)), in_flight=60))
    assert [result.value for result in results] == [mib] * 60
    assert server.most_lines < 4 * mib


@pytest.mark.parametrize("code", ["broker-unavailable", "store-unavailable"])
def test_a_result_that_cannot_be_fetched_now_is_not_given_out_as_failed(code: str) -> None:
    server = Played(room=10, pace=10)
    server.failure = (503, code)
    with pytest.raises(errors.HeadraceError) as raised:
        list(mapped(server, iter(Source(3)), return_errors=True))
    assert raised.value.code == code


def test_a_result_that_is_gone_is_the_error_of_its_input() -> None:
    server = Played(room=10, pace=10)
    server.failure = (404, "job-not-found")
    results = list(mapped(server, iter(Source(3)), return_errors=True))
    assert [type(result.error) for result in results] == [errors.JobNotFound] * 3
    assert all(result.job.succeeded for result in results if result.job is not None)
