"""`map` against a real API: every input ends once, in order or not, through kills and losses."""

from __future__ import annotations

import threading
from collections import Counter, UserDict
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typing_extensions import override

from headrace import errors
from headrace.client import Result
from headrace.jobs.message import Message
from tests.harness.clients.clients import SHELLS, client_of
from tests.harness.fakes.worker import Answer, FakeWorker, claim, failure, settle
from tests.harness.servers.api_server import ApiServer
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until

pytestmark = pytest.mark.usefixtures("redis_db")


@pytest.fixture(params=SHELLS)
def client(api: ApiServer, request: pytest.FixtureRequest) -> Iterator[Any]:
    with client_of(request.param, api.url) as made:
        yield made


def squared(message: Message) -> Answer:
    number = msgspec.json.decode(message.input)
    if number % 100 == 13:
        return failure("input-error", f"{number} brings bad luck")
    return Answer(result=b"%d" % (number * number))


@pytest.fixture
def worker(redis_db: RedisServer) -> Iterator[FakeWorker]:
    with FakeWorker(redis_db.url, "echo", squared) as running:
        yield running


class Holding(FakeWorker):
    """Keeps jobs whose input is in `held` until they are let go; squares the rest at once."""

    def __init__(self, url: str, held: Callable[[int], bool]) -> None:
        super().__init__(url, "echo", squared)
        self.let_go = threading.Event()
        self._held = held

    def serve(self) -> None:
        kept: list[tuple[Message, str]] = []
        while not self._stop.is_set():
            claimed = claim(self._client, "echo")
            if self.let_go.is_set():
                claimed, kept = claimed + kept, []
            now = [
                one
                for one in claimed
                if self.let_go.is_set() or not self._held(msgspec.json.decode(one[0].input))
            ]
            kept += [one for one in claimed if one not in now]
            if now:
                settle(self._client, "echo", now, [squared(message) for message, _ in now])
            self._stop.wait(0.001)


class Counted(UserDict[str, Any]):
    """Parameters that count how often they are read."""

    reads = 0

    @override
    def __iter__(self) -> Iterator[str]:
        self.reads += 1
        return super().__iter__()


def test_parameters_are_converted_once(client: Any, worker: FakeWorker) -> None:
    reads = []
    for count in (1, 500):
        given = Counted(top_k=[1, 2])
        results = list(client.map("echo", range(count), parameters=given, return_errors=True))
        assert len(results) == count
        reads.append(given.reads)
    assert reads[0] == reads[1] > 0


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("count", [0, 1, 2, 1500])
def test_every_input_has_its_result(
    client: Any, worker: FakeWorker, count: int, ordered: bool
) -> None:
    results = list(client.map("echo", range(count), ordered=ordered, return_errors=True))
    assert Counter(result.index for result in results) == Counter(range(count))
    if ordered:
        assert [result.index for result in results] == list(range(count))
    for result in results:
        assert result.input == result.index
        if result.input % 100 == 13:
            assert isinstance(result.error, errors.InputError)
            assert result.error.job_id == result.job.id
        else:
            assert (result.value, result.error) == (result.input**2, None)
            assert result.job.succeeded
    assert len(worker.ran(count)) == count


# The error ends the map, and not the jobs that are under way.
@pytest.mark.leaves_keys
def test_an_error_is_raised_in_its_place(client: Any, worker: FakeWorker) -> None:
    results = client.map("echo", range(100))
    assert [next(results).value for _ in range(13)] == [n * n for n in range(13)]
    with pytest.raises(errors.InputError, match="13 brings bad luck"):
        next(results)


@pytest.mark.parametrize("in_flight", [1, 3, 40])
def test_no_more_are_taken_than_may_be_in_flight(
    client: Any, worker: FakeWorker, in_flight: int
) -> None:
    taken = given = most = 0

    def source() -> Iterator[int]:
        nonlocal taken, most
        for number in range(90):
            taken += 1
            most = max(most, taken - given)
            yield number

    for _ in client.map("echo", source(), in_flight=in_flight, return_errors=True):
        given += 1
    assert given == 90
    # The one that is being given is still counted here.
    assert most <= in_flight + 1


def test_inputs_that_cannot_be_sent_fail_in_their_place(
    client: Any, worker: FakeWorker, tmp_path: Path
) -> None:
    inputs = [1, object(), 2, tmp_path / "missing", 3]
    results = list(client.map("echo", inputs, return_errors=True))
    assert [result.value for result in results] == [1, None, 4, None, 9]
    assert [type(result.error) for result in results][1::2] == [errors.InvalidRequest] * 2
    refused = list(client.map("ecko", [1, 2], return_errors=True))
    assert [type(result.error) for result in refused] == [errors.ModelNotFound] * 2
    with pytest.raises(errors.ModelNotFound):
        list(client.map("ecko", [1]))


def test_what_the_source_raises_comes_after_the_results_of_those_before(
    client: Any, worker: FakeWorker
) -> None:
    def source() -> Iterator[int]:
        yield from range(10)
        raise OSError("the disk is gone")

    mapped = client.map("echo", source())
    results = [next(mapped) for _ in range(10)]
    with pytest.raises(OSError, match="the disk is gone"):
        next(mapped)
    assert [result.value for result in results] == [n * n for n in range(10)]


def test_an_asynchronous_source(api: ApiServer, worker: FakeWorker) -> None:
    async def source() -> AsyncIterator[int]:
        for number in range(10):
            yield number
        raise OSError("the socket is gone")

    with client_of("async", api.url) as client:
        mapped = client.map("echo", source())
        assert [next(mapped).value for _ in range(10)] == [n * n for n in range(10)]
        with pytest.raises(OSError, match="the socket is gone"):
            next(mapped)
    with (
        client_of("sync", api.url) as client,
        pytest.raises(errors.InvalidRequest, match="asynchronous iterator"),
    ):
        next(client.map("echo", source()))


def test_slow_jobs_hold_nobody_up_where_order_does_not_matter(
    client: Any, redis_db: RedisServer
) -> None:
    with Holding(redis_db.url, lambda number: number < 30) as slow:
        results = client.map("echo", range(400), in_flight=60, ordered=False, return_errors=True)
        first = [next(results).index for _ in range(370)]
        assert sorted(first) == list(range(30, 400))
        slow.let_go.set()
        assert sorted(result.index for result in results) == list(range(30))


def test_a_slow_job_holds_back_what_comes_after_it_where_order_does(
    client: Any, redis_db: RedisServer
) -> None:
    with Holding(redis_db.url, lambda number: number == 5) as slow:
        results = client.map("echo", range(12), ordered=True)
        first = [next(results).index for _ in range(5)]
        slow.let_go.set()
        assert first + [result.index for result in results] == list(range(12))


class InTwoSteps(FakeWorker):
    """Serves so many jobs; then it waits to be told to go on.

    Attributes:
        FIRST: how many.
        go_on: set it to tell.
        told: it was told, and did not just lose its patience.
    """

    FIRST = 20

    def __init__(self, url: str, model: str) -> None:
        super().__init__(url, model, squared)
        self.go_on = threading.Event()
        self.told = False

    def serve(self) -> None:
        left = self.FIRST
        while left and not self._stop.is_set():
            # A claim may come when only the first of them are there.
            if claimed := claim(self._client, self.model, left):
                answers = [self._answer(message) for message, _ in claimed]
                settle(self._client, self.model, claimed, answers)
                left -= len(claimed)
            self._stop.wait(0.001)
        self.told = self.go_on.wait(60)
        super().serve()


def test_results_come_while_a_full_queue_holds_the_rest_back(
    client: Any, redis_db: RedisServer
) -> None:
    with InTwoSteps(redis_db.url, "tiny") as worker:
        results = client.map("tiny", range(300), return_errors=True)
        # The queue takes 100 of the first 250, and 20 of those that are served make room for more.
        first = [next(results).index for _ in range(InTwoSteps.FIRST)]
        worker.go_on.set()
        assert first + [result.index for result in results] == list(range(300))
        assert worker.told


def test_a_full_queue_is_waited_for(client: Any, redis_db: RedisServer, api: ApiServer) -> None:
    with client_of("sync", api.url) as other:
        assert len([job.id for job in other.submit_many("tiny", range(100))]) == 100
    done: list[Result[int]] = []

    def run() -> None:
        done.extend(client.map("tiny", range(50), return_errors=True))

    thread = threading.Thread(target=run)
    thread.start()
    with FakeWorker(redis_db.url, "tiny", squared):
        thread.join(60)
    assert [result.index for result in done] == list(range(50))
    assert not [result for result in done if isinstance(result.error, errors.QueueFull)]


def test_the_callers_ids_find_the_results_of_an_earlier_run(
    client: Any, worker: FakeWorker
) -> None:
    def name(number: int) -> str:
        return f"square-{number}"

    first = list(client.map("echo", range(12), ids=name))
    again = list(client.map("echo", range(12), ids=map(name, range(12))))
    assert [result.job.id for result in again] == [name(number) for number in range(12)]
    assert [result.value for result in again] == [result.value for result in first]
    assert len(worker.ran(12)) == 12
    with pytest.raises(errors.Conflict):
        list(client.map("echo", [7], ids=["square-8"]))
    with pytest.raises(errors.InvalidRequest, match="more inputs than ids"):
        list(client.map("echo", range(3), ids=["a", "b"]))


@pytest.mark.parametrize("bad", [{"in_flight": 0}, {"inputs": 7}])
def test_arguments_that_make_no_sense_are_refused(client: Any, bad: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidRequest):
        list(client.map(**{"model": "echo", "inputs": [1], **bad}))


def test_jobs_that_redis_has_lost_are_submitted_again(client: Any, redis_db: RedisServer) -> None:
    worker = FakeWorker(redis_db.url, "echo", squared)

    def lose() -> None:
        with redis_db.client() as redis:
            wait_until(lambda: redis.llen("headrace.echo") == 12, "all are queued")
            redis.flushall()
        worker.__enter__()

    thread = threading.Thread(target=lose)
    thread.start()
    results = list(client.map("echo", range(12), in_flight=20, ordered=False))
    thread.join(60)
    worker.__exit__()
    assert sorted(result.value for result in results) == [number**2 for number in range(12)]
