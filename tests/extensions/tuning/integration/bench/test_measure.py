"""Loads and searches against a server whose time for a request is known."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest

from extensions.tuning.bench.load import generator
from extensions.tuning.bench.load.generator import generate
from extensions.tuning.bench.load.plan import Cut, Plan
from extensions.tuning.bench.load.rows import NEVER, NOT_SENT, Row
from extensions.tuning.bench.load.scenarios import Scenario, objective_of, scenario_of
from extensions.tuning.bench.load.targets import Input, Target, target_for
from extensions.tuning.bench.measure import LoadOptions, find_peak, measure
from extensions.tuning.bench.measurement import Load
from headrace.errors import HeadraceError, InvalidRequest, ServerUnreachable
from tests.harness.servers.model_server import ModelServer, model_server, stop_model_server
from tests.harness.wait import wait_until

#: All requests count, so that the machine's speed does not decide how many.
SHORT = LoadOptions(duration_s=1.0, warm_up_s=0, timeout_s=60)
#: For a load that ends by its number of requests.
LONG = LoadOptions(duration_s=3600, warm_up_s=0, timeout_s=60)
LENIENT = objective_of("p90=20s", confidence=0.9)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server(0.005) as server:
        yield server


def target_of(server: ModelServer, model: str = "m") -> Target:
    inputs = [Input(b'{"x": 1}', "application/json"), Input(b"\x89PNG", "image/png")]
    return target_for("torchserve", server.url, model, inputs, version="1.0")


def sent(target: Target, scenario: Scenario, **plan: object) -> list[Row]:
    """What a generator in this process has seen."""
    given = {"duration_s": 3600.0, "timeout_s": 60.0, **plan}
    return generate(Plan(target=target, scenario=scenario, **given)).rows  # type: ignore[arg-type]


def test_an_open_load_sends_what_is_due(server: ModelServer) -> None:
    found = measure([scenario_of("server", rate=100)], target_of(server), SHORT).loads[0]
    assert found.scenario == "server"
    assert found.requests == found.succeeded > 80
    assert found.latency.p50 >= 5
    assert found.offered_rate == 100
    assert found.batch_sizes == {}
    request = server.requests[-1]
    assert request.startswith(b"POST /predictions/m/1.0 HTTP/1.1\r\n")


def test_a_closed_load_has_so_many_under_way(server: ModelServer) -> None:
    load = measure([scenario_of("closed:4", requests=60)], target_of(server), LONG).loads[0]
    assert load.concurrency == 4
    assert load.succeeded == load.requests == 60
    # Each waits for the three others.
    assert load.latency.p50 >= 15


def test_no_request_is_due_before_the_start(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep = asyncio.sleep

    async def early(delay: float) -> None:
        await sleep(max(0.0, delay - 0.02))

    monkeypatch.setattr(asyncio, "sleep", early)
    plan = Plan(
        target=target_of(server), scenario=Scenario(kind="closed", concurrency=10, requests=20),
        duration_s=3600.0, timeout_s=60.0,
    )  # fmt: skip
    rows = generate(plan, time.monotonic() + 0.1).rows
    assert len(rows) == 20
    assert all(row.due_s >= 0 for row in rows)


def test_several_processes_share_a_load(server: ModelServer) -> None:
    options = msgspec.structs.replace(LONG, processes=2)
    scenario = Scenario(kind="closed", concurrency=3, requests=20)
    rows: list[Row] = []
    measure([scenario], target_of(server), _with_rows(options, rows))
    assert len(rows) == 20
    assert {row.input for row in rows} == {0, 1}


def test_an_offline_load_sends_all(server: ModelServer) -> None:
    rows: list[Row] = []
    scenario = scenario_of("offline", requests=60)
    load = measure([scenario], target_of(server), _with_rows(SHORT, rows)).loads[0]
    assert len(rows) == 60
    assert {row.due_s for row in rows} == {0.0}
    assert load.duration_s >= 60 * 0.005


def test_recorded_arrivals_are_sent_again(server: ModelServer) -> None:
    rows: list[Row] = []
    scenario = Scenario(kind="replay", due_s=(0.0, 0.1, 0.3))
    measure([scenario], target_of(server), _with_rows(SHORT, rows))
    assert sorted(row.due_s for row in rows) == [0.0, 0.1, 0.3]
    assert all(row.sent_s >= row.due_s for row in rows)


def test_a_stall_is_in_the_latency_of_all_that_were_due_meanwhile(server: ModelServer) -> None:
    server.hold()

    def go() -> None:
        wait_until(lambda: len(server.requests) == 50, "all requests have come", 60)
        server.go()

    going = threading.Thread(target=go)
    going.start()
    due_s = tuple(number / 100 for number in range(50))
    rows = sent(target_of(server), Scenario(kind="replay", due_s=due_s))
    going.join()
    assert sorted(row.due_s for row in rows) == list(due_s)
    # The stall ended after the last request was due, so no answer came before.
    assert all(row.latency_ms >= (due_s[-1] - row.due_s) * 1000 for row in rows)
    assert max(row.latency_ms for row in rows) >= 490


def test_refusals_are_counted_by_their_status(server: ModelServer) -> None:
    server.answers = [200, 429, 503, 429]
    rows = sent(target_of(server), Scenario(kind="single", concurrency=1, requests=5))
    assert [row.error for row in rows] == ["429", "503", "429", "", ""]


def test_a_server_that_closes_each_connection_is_measured(server: ModelServer) -> None:
    server.closes = True
    rows = sent(target_of(server), Scenario(kind="closed", concurrency=2, requests=20))
    assert [row.error for row in rows] == [""] * 20
    assert server.connections >= 20


def test_what_is_not_answered_in_time_is_a_timeout(server: ModelServer) -> None:
    server.hold()
    rows = sent(target_of(server), Scenario(kind="replay", due_s=(0.0, 0.0)), timeout_s=0.3)
    assert [row.answered_s for row in rows] == [NEVER] * 2
    # A machine that stands still before it has connected sends nothing in time.
    assert {row.error for row in rows} <= {"timeout", NOT_SENT}
    server.go()


def test_a_request_that_gets_no_connection_in_time_is_never_sent(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generator, "CONNECTIONS_MAX", 2)
    server.hold()
    rows = sent(target_of(server), Scenario(kind="replay", due_s=(0.0,) * 10), timeout_s=0.3)
    found = Counter(row.error for row in rows)
    assert found[NOT_SENT] >= 8
    assert found[NOT_SENT] + found["timeout"] == 10
    assert server.connections <= 2
    server.go()


def test_a_load_with_too_many_requests_under_way_is_not_sent_on(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generator, "UNDER_WAY_MAX", 50)
    server.hold()
    plan = Plan(
        target=target_of(server), scenario=scenario_of("server", rate=1e6), duration_s=3600,
        timeout_s=0.5,
    )  # fmt: skip
    found = generate(plan)
    assert found.overrun
    assert len(found.rows) >= 50
    assert {row.error for row in found.rows} <= {"timeout", NOT_SENT}
    server.go()


def test_nothing_is_sent_when_no_answer_can_come_in_time(server: ModelServer) -> None:
    plan = Plan(
        target=target_of(server), scenario=scenario_of("server", rate=1e6), duration_s=2,
        timeout_s=3,
    )  # fmt: skip
    found = generate(plan, time.monotonic() - 5)
    assert (found.overrun, found.rows) == (True, [])
    assert server.requests == []


def test_a_server_that_dies_leaves_errors_and_no_hang(server: ModelServer) -> None:
    target = target_of(server)
    # So that not all requests are answered before it ends.
    server.holds_at = 20

    def stop() -> None:
        wait_until(lambda: len(server.requests) >= 20, "the load runs")
        stop_model_server(server)

    stopping = threading.Thread(target=stop)
    stopping.start()
    rows = sent(target, Scenario(kind="closed", concurrency=2, requests=60))
    stopping.join()
    errors = {row.error for row in rows}
    assert "" in errors
    assert errors & {"connection refused", "connection lost"}
    with pytest.raises(ServerUnreachable, match="does not answer"):
        measure([scenario_of("single")], target, SHORT)


def test_a_lost_load_is_stopped_early(server: ModelServer) -> None:
    server.hold()
    plan = Plan(
        target=target_of(server), scenario=scenario_of("server", rate=50), duration_s=600,
        timeout_s=600, cut=Cut(0.0, 50.0, 5),
    )  # fmt: skip
    found = generate(plan)
    assert found.cut
    assert found.length_s < 600
    assert {row.error for row in found.rows} == {"unanswered"}
    server.go()


def test_a_refusal_of_the_first_request_is_an_error(server: ModelServer) -> None:
    server.answers = [404]
    with pytest.raises(HeadraceError, match="answered 404: ok"):
        measure([scenario_of("single")], target_of(server), SHORT)


@pytest.mark.parametrize("warm_up_s", [1.0, 5.0, -1.0, float("nan")])
def test_a_warm_up_that_leaves_nothing_is_refused_before_anything_is_sent(
    server: ModelServer, warm_up_s: float
) -> None:
    options = LoadOptions(duration_s=1.0, warm_up_s=warm_up_s)
    with pytest.raises(InvalidRequest, match="leaves nothing of a load of 1 s to measure"):
        measure([scenario_of("single")], target_of(server), options)
    with pytest.raises(InvalidRequest, match="leaves nothing of a load of 1 s to measure"):
        find_peak(target_of(server), LENIENT, options)
    assert server.connections == 0
    measure([scenario_of("offline", requests=4)], target_of(server), options)


def test_a_server_that_is_away_is_named() -> None:
    target = target_for("torchserve", "http://127.0.0.1:9", "m", [Input(b"1", "text/plain")])
    with pytest.raises(ServerUnreachable, match=r"http://127\.0\.0\.1:9 does not answer"):
        find_peak(target, LENIENT, SHORT)


def test_the_peak_is_between_a_rate_that_met_and_one_that_missed(server: ModelServer) -> None:
    # The server can do 50 requests a second. With a longer latency in the objective a queue would
    # grow, and each load waits until the queue of the one before it is gone.
    server.service_s = 0.02
    objective = objective_of("p50=200ms", confidence=0.9)
    loads: list[Load] = []
    options = LoadOptions(duration_s=0.5, on_load=loads.append)
    found = find_peak(target_of(server), objective, options, start=25, precision=8)
    assert found.peak is not None
    assert found.objective == objective
    assert found.loads == loads
    assert all(load.verdict is not None for load in loads)
    assert found.peak.rate == found.peak.low
    if found.peak.high is not None:
        assert found.peak.low < found.peak.high


def test_a_rate_that_is_a_condition_ends_the_search(server: ModelServer) -> None:
    server.service_s = 0.05
    objective = objective_of("p50=1ms", confidence=0.9)
    found = find_peak(target_of(server), objective, SHORT, at_least=5)
    assert found.peak is not None
    assert found.peak.rate == 0
    assert found.peak.high == 5
    assert {load.offered_rate for load in found.loads} == {5}


def _with_rows(options: LoadOptions, rows: list[Row]) -> LoadOptions:
    return msgspec.structs.replace(options, on_rows=lambda _, found: rows.extend(found))
