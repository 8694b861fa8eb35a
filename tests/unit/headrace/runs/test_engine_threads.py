"""What a run asks for while the server or its own output is busy with the last."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typing_extensions import override

from extensions.runs.sinks.jsonl import JsonlSink
from headrace import errors
from headrace.client.sansio import ConnectionFailed, HttpRequest, HttpResponse
from headrace.runs.api_calls import Outcome
from headrace.runs.engine import Engine, prefetched
from headrace.runs.in_flight import InFlight, PendingInput
from headrace.runs.interfaces import Cursor, Entry, Row, RunSpec
from headrace.runs.range_set import RangeSet
from headrace.runs.submitter import Lines, Submitter
from tests.harness.runs.stand_in import Counted, StandIn
from tests.harness.wait import wait_until

WAIT_S = 60


def page(first: int, count: int = 3) -> list[PendingInput]:
    numbers = range(first, first + count)
    return [PendingInput(Entry(n, f"k{n}", None, {}, n), f"r.{n}", None) for n in numbers]


class Reads:
    """Notes each read; all jobs have ended but those of `open_`."""

    def __init__(self, *open_: str) -> None:
        self.open = open_
        self.firsts: list[str] = []

    def __call__(self, items: Sequence[PendingInput]) -> list[Outcome]:
        self.firsts.append(items[0].job_id)
        if items[0].job_id == "r.90":
            raise ValueError("it cannot be read")
        return [Outcome("queued" if item.job_id in self.open else "succeeded") for item in items]


@pytest.fixture
def pages() -> list[list[PendingInput]]:
    return [page(0), page(10), page(20)]


def test_the_next_part_is_asked_for_before_the_last_is_worked_on(
    pages: list[list[PendingInput]],
) -> None:
    reads = Reads()
    given: Iterator[object] = prefetched(reads, pages, whole=False)
    next(given)
    wait_until(lambda: reads.firsts == ["r.0", "r.10"], "the second is read", timeout_s=WAIT_S)
    assert len(list(given)) == 2
    assert reads.firsts == ["r.0", "r.10", "r.20"]


def test_behind_what_has_not_ended_only_a_whole_look_goes_on(
    pages: list[list[PendingInput]],
) -> None:
    reads = Reads("r.11")
    assert [items[0].job_id for items, _ in prefetched(reads, pages, whole=False)] == [
        "r.0",
        "r.10",
    ]
    assert len(list(prefetched(reads, pages, whole=True))) == 3
    assert reads.firsts == ["r.0", "r.10", "r.0", "r.10", "r.20"]
    assert list(prefetched(reads, [], whole=True)) == []


def test_an_error_in_asking_ahead_is_raised_where_its_part_is_wanted() -> None:
    given = prefetched(Reads(), [page(0), page(90)], whole=False)
    next(given)
    with pytest.raises(ValueError, match="cannot be read"):
        next(given)


class Slow(StandIn):
    """Answers the first two pages only once both have arrived."""

    def __init__(self) -> None:
        super().__init__()
        self.both = threading.Barrier(2)
        self.late = False

    @override
    async def _send(self, request: HttpRequest) -> HttpResponse | ConnectionFailed:
        if request.path.endswith("/bulk") and not self.late:
            self.both.wait(WAIT_S)
            self.late = True
        return await super()._send(request)


def test_two_pages_are_in_flight_at_once_and_no_input_is_sent_twice(tmp_path: Path) -> None:
    server, path = Slow(), tmp_path / "out.jsonl"
    source = Counted(200, lambda number: msgspec.Raw(b"%d" % number))
    engine = Engine(server, RunSpec(model="m", run_id="r", in_flight=40), source, JsonlSink(path))
    engine.open()
    try:
        assert engine.run() == "ended"
    finally:
        engine.close()
    assert sorted(server.submits) == sorted(f"r.{n}" for n in range(200))
    assert len(path.read_text().splitlines()) == 200


def test_a_source_that_fails_hides_nothing_that_could_not_be_sent() -> None:
    """The page of the other thread is never sent: a wait for its end would never return."""
    reading, message = threading.Event(), threading.Event()

    class Torn(Counted):
        @override
        def entries(self, after: Cursor | None, n: int) -> Iterator[Entry]:
            yield from super().entries(after, n)
            reading.set()
            assert message.wait(WAIT_S)
            raise OSError(5, "disk")

    def submit(*_: object) -> Any:
        assert reading.wait(WAIT_S)
        raise errors.Forbidden("no more")

    in_flight = InFlight(4, None, 0, RangeSet())
    spec = RunSpec(model="m", run_id="r", in_flight=4)
    torn, start = Torn(1, lambda number: number), (None, 0, RangeSet())
    refused: list[tuple[PendingInput, Row]] = []
    submitter = Submitter(torn, in_flight, start, Lines(spec), str, submit, refused.extend)
    submitter.start()
    wait_until(lambda: submitter.error is not None, "the error is known")
    message.set()
    submitter.join(WAIT_S)
    assert in_flight.all_added
    assert isinstance(submitter.error, errors.Forbidden)
    assert not submitter.from_source
