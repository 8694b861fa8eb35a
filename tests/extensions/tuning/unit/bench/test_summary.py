"""From rows to figures, on a simulated server: its clock is a number, so nothing waits."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from extensions.tuning.bench.load.plan import Sent
from extensions.tuning.bench.load.rows import NEVER, NOT_SENT, Row
from extensions.tuning.bench.load.scenarios import Scenario, objective_of, scenario_of
from extensions.tuning.bench.measurement import Load
from extensions.tuning.bench.summary import summarise

SERVICE_S = 0.010


def served(start_s: float, stall: tuple[float, float] = (0.0, 0.0)) -> float:
    """When a server that stands still during `stall` has answered a request that it begins."""
    end_s = start_s + SERVICE_S
    if start_s < stall[1] and end_s > stall[0]:
        return max(start_s, stall[1]) + SERVICE_S
    return end_s


def open_load(
    rate: float,
    duration_s: float,
    stall: tuple[float, float] = (0.0, 0.0),
    delay: Callable[[float], float] = lambda _: 0.0,
) -> Sent:
    """A server that runs one request after the other, under Poisson arrivals."""
    rows, free_s = [], 0.0
    for due_s in scenario_of("server", rate=rate).arrivals(duration_s, 7):
        sent_s = due_s + delay(due_s)
        free_s = served(max(free_s, sent_s), stall)
        rows.append(Row(0, due_s, sent_s, free_s))
    return Sent(rows, [], duration_s, 0.1)


def closed_load(duration_s: float, stall: tuple[float, float] = (0.0, 0.0)) -> Sent:
    rows, now_s = [], 0.0
    while now_s < duration_s:
        end_s = served(now_s, stall)
        rows.append(Row(0, now_s, now_s, end_s))
        now_s = end_s
    return Sent(rows, [0.0] * 100, duration_s, 0.1)


def server_load(sent: Sent, rate: float, **options: object) -> Load:
    scenario = scenario_of("server", rate=rate)
    return summarise(scenario, sent, warm_up_s=0, **options)  # type: ignore[arg-type]


def test_a_stall_shows_in_an_open_load_and_hides_in_a_closed_one() -> None:
    stall = (10.0, 11.0)
    found = server_load(open_load(50, 30, stall), 50)
    assert found.latency.p99 > 800
    assert found.latency.p50 < 3 * SERVICE_S * 1000
    # A closed load sends nothing during the stall: of 2,900 requests only one is slow.
    hidden = summarise(scenario_of("single"), closed_load(30, stall), warm_up_s=0)
    assert hidden.latency.p99 < 2 * SERVICE_S * 1000
    assert hidden.latency.max > 900


def test_a_load_that_was_not_sent_in_full_does_not_count() -> None:
    """Although the server has met the objective for what was sent."""
    sent = open_load(50, 30)
    cut_off = msgspec.structs.replace(sent, overrun=True)
    rows = [*sent.rows, Row(0, 29.0, 29.0, NEVER, NOT_SENT)]
    for part in (cut_off, msgspec.structs.replace(sent, rows=rows)):
        found = server_load(part, 50, objective=objective_of("p90=10s"))
        words = f"the generator sent only {len(sent.rows):,} of the requests that were due"
        assert words in found.refused
        assert found.verdict is not None
        assert not found.verdict.met
        assert not found.verdict.fair
        assert "not all requests were sent" in found.verdict.text


def test_the_figures_of_a_load_without_a_stall() -> None:
    found = server_load(open_load(50, 30), 50)
    assert found.rate == pytest.approx(50, rel=0.1)
    assert found.rate_low < found.rate < found.rate_high
    assert found.offered_rate == 50
    assert found.steady
    assert found.requests == found.succeeded == len(open_load(50, 30).rows)
    assert not found.errors
    assert found.refused == ""
    assert found.verdict is None
    assert len(found.windows) == 30
    assert all(window.steady for window in found.windows)
    assert found.latency_cdf[-1][0] == found.latency.max


def test_more_than_the_server_can_do_is_no_steady_load() -> None:
    # It answers 100 a second.
    found = server_load(open_load(120, 30), 120, objective=objective_of("p99=10s"))
    assert not found.steady
    assert found.rate == pytest.approx(100, rel=0.05)
    assert found.windows[-1].waiting > found.windows[5].waiting


def test_a_slow_start_is_left_out() -> None:
    sent = closed_load(30)
    for row in sent.rows:
        if row.due_s < 3:
            row.answered_s += 0.5
    found = summarise(scenario_of("single"), sent)
    assert 3 <= found.warm_up_s <= 4
    assert found.duration_s == pytest.approx(30 - found.warm_up_s)
    assert found.latency.max < 2 * SERVICE_S * 1000
    assert [window.steady for window in found.windows[:4]].count(False) >= 3


def test_windows_without_a_result_at_the_start_are_left_out_too() -> None:
    sent = closed_load(30)
    # The first results come after three seconds, and are slow for three more.
    sent.rows[:] = [row for row in sent.rows if row.due_s >= 3]
    for row in sent.rows:
        if row.due_s < 6:
            row.answered_s += 0.5
    found = summarise(scenario_of("single"), sent)
    assert 6 <= found.warm_up_s <= 7
    assert found.latency.max < 2 * SERVICE_S * 1000


def test_results_after_the_end_are_no_rate_and_do_not_count() -> None:
    sent = Sent([Row(0, 0.1, 0.1, 3.0), Row(0, 0.2, 0.2, 3.1)], [], 1.0, 0.1)
    found = summarise(scenario_of("closed:2"), sent, warm_up_s=0)
    assert (found.requests, found.succeeded, found.rate) == (2, 2, 0)
    assert found.refused == "no result came before the load's end; make the duration longer"
    judged = summarise(
        scenario_of("closed:2"), sent, warm_up_s=0, objective=objective_of("p50=1s", confidence=0.5)
    )
    assert judged.refused == ""
    assert judged.verdict is not None
    assert not judged.verdict.met


def test_an_objective_counts_late_and_failed_requests() -> None:
    sent = open_load(20, 60)
    for row in sent.rows[:3]:
        row.error, row.answered_s = "timeout", NEVER
    found = server_load(sent, 20, objective=objective_of("p99=500ms"))
    assert found.verdict is not None
    assert found.verdict.late == 3
    assert found.errors == {"timeout": 3}
    assert found.succeeded == found.requests - 3
    assert found.verdict.met
    for row in sent.rows[:40]:
        row.error = "429 queue-full"
    missed = server_load(sent, 20, objective=objective_of("p99=500ms"))
    assert missed.verdict is not None
    assert not missed.verdict.met


def test_a_load_that_its_generator_spoilt_is_refused() -> None:
    late = open_load(50, 30, delay=lambda due_s: 0.2 if int(due_s * 10) % 7 == 0 else 0.0)
    found = server_load(late, 50, objective=objective_of("p99=150ms"))
    assert "generator" in found.refused
    assert "--processes" in found.refused
    assert found.lag.p99 == pytest.approx(200, rel=0.01)
    a_little = open_load(50, 30, delay=lambda _: 0.0002)
    assert server_load(a_little, 50).refused == ""


def test_a_miss_that_only_the_generator_caused_is_not_fair() -> None:
    due = [(number / 10, 0.3 if number % 20 == 0 else 0.0) for number in range(1000)]
    rows = [Row(0, due_s, due_s + late_s, due_s + late_s + 0.01) for due_s, late_s in due]
    late = Sent(rows, [], 100.0, 0.1)
    found = server_load(late, 10, objective=objective_of("p99=150ms"))
    assert found.verdict is not None
    assert (found.verdict.met, found.verdict.fair) == (False, False)
    slow = server_load(late, 10, objective=objective_of("p99=1ms"))
    assert slow.verdict is not None
    assert (slow.verdict.met, slow.verdict.fair) == (False, True)


def test_a_generator_that_is_busy_all_the_time_is_the_limit_of_a_closed_load() -> None:
    sent = closed_load(30)
    sent.cpu_s = 29.5
    assert "98% of a core" in summarise(scenario_of("single"), sent).refused
    sent.cpu_s = 10.0
    assert summarise(scenario_of("single"), sent).refused == ""
    sent.ticks_s = [0.006] * 100
    assert "late by 6.0 ms on average" in summarise(scenario_of("single"), sent).refused


def test_a_load_without_results_does_not_count() -> None:
    rows = [Row(0, number / 10, number / 10, NEVER, "connection refused") for number in range(50)]
    found = server_load(Sent(rows, [], 5.0, 0.1), 10, objective=objective_of("p99=1s"))
    assert found.refused == "no request had a result"
    assert found.rate == 0
    assert found.verdict is not None
    assert found.verdict.late == 50
    nothing = server_load(Sent([], [], 5.0, 0.1), 10)
    assert "make the duration longer" in nothing.refused


def test_an_offline_load_is_as_long_as_its_answers() -> None:
    rows = [Row(0, 0.0, 0.0, (number + 1) * SERVICE_S) for number in range(500)]
    scenario = scenario_of("offline", requests=500)
    found = summarise(scenario, Sent(rows, [0.0], 0.01, 0.1))
    assert found.duration_s == pytest.approx(5)
    assert found.rate == pytest.approx(100, rel=0.01)
    assert found.warm_up_s == 0


def test_stages_and_batches_are_those_of_the_results() -> None:
    stages = (1.0, 0.5, 0.25, 2.0, 8.0, 0.25, 12.5)
    rows = [Row(0, n / 10, n / 10, n / 10 + 0.014, "", stages, 4) for n in range(100)]
    rows.append(Row(0, 9.95, 9.95, 9.96, "422 invalid-input"))
    found = server_load(Sent(rows, [], 10.0, 0.1), 10)
    assert found.batch_sizes == {4: 100}
    assert list(found.stages) == [
        "queued", "hold", "device_wait", "preprocess", "inference", "postprocess", "other",
    ]  # fmt: skip
    assert found.stages["inference"].p99 == 8
    # 14 ms for the client, 12 in the stages.
    assert found.stages["other"].p50 == pytest.approx(2.0)


def test_recorded_arrivals_have_the_rate_of_their_time() -> None:
    sent = open_load(30, 20)
    due_s = tuple(row.due_s for row in sent.rows)
    found = summarise(Scenario(kind="replay", due_s=due_s), sent)
    assert found.offered_rate == pytest.approx(len(due_s) / 20)
