"""Scenarios: what a text names, and when requests are due."""

from __future__ import annotations

from itertools import islice, pairwise
from pathlib import Path

import pytest

from extensions.tuning.bench.load.scenarios import Scenario, objective_of, scenario_of
from extensions.tuning.bench.measurement import Objective
from headrace.errors import InvalidRequest


def test_poisson_arrivals_have_their_rate_and_repeat_with_their_seed() -> None:
    scenario = scenario_of("server", rate=200)
    due = list(scenario.arrivals(100, 1))
    assert len(due) == pytest.approx(20_000, rel=0.05)
    assert due == sorted(due)
    assert 0 < due[0] < due[-1] < 100
    assert due == list(scenario.arrivals(100, 1))
    assert due != list(scenario.arrivals(100, 2))
    gaps = [after - before for before, after in pairwise(due)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert variance == pytest.approx(mean**2, rel=0.1), "the gaps of Poisson arrivals"


def test_processes_share_a_load_without_a_rest() -> None:
    closed = scenario_of("closed:7", requests=10)
    parts = [closed.share(process, 3) for process in range(3)]
    assert [part.concurrency for part in parts] == [3, 2, 2]
    assert [part.requests for part in parts] == [4, 3, 3]
    assert sum(scenario_of("server", rate=90).share(n, 4).rate for n in range(4)) == 90
    replay = Scenario(kind="replay", due_s=(0.0, 1.0, 2.0, 3.0, 4.0))
    assert [replay.share(n, 2).due_s for n in range(2)] == [(0.0, 2.0, 4.0), (1.0, 3.0)]


def test_an_offline_load_is_due_at_once_and_ends() -> None:
    assert list(scenario_of("offline", requests=3).arrivals(60, 1)) == [0.0, 0.0, 0.0]


def test_a_closed_load_goes_on_until_its_time_is_over() -> None:
    assert list(islice(scenario_of("closed:2").arrivals(60, 1), 3)) == [0.0, 0.0, 0.0]
    assert scenario_of("single").concurrency == 1


def test_recorded_arrivals_are_numbers_or_rows(tmp_path: Path) -> None:
    file = tmp_path / "arrivals"
    file.write_text('10.5\n\n11\n{"load": 0, "due_s": 10.75, "error": null}\n')
    scenario = scenario_of(f"replay:{file}")
    assert scenario.due_s == (0.0, 0.25, 0.5)
    assert list(scenario.arrivals(0.3, 1)) == [0.0, 0.25]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("closed", "closed:8"),
        ("closed:0", "closed:8"),
        ("closed:many", "closed:8"),
        ("server", "--rate 50"),
        ("offline", "--requests 1000"),
        ("replay:", "replay:FILE"),
        ("single:2", "server, closed:N, single"),
        ("flood", "'flood' is no scenario"),
        ("replay:nowhere.txt", "nowhere.txt: cannot be read"),
    ],
)
def test_a_wrong_scenario_says_how_it_is_written(text: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        scenario_of(text)
    assert words in f"{caught.value.message} {caught.value.hint}"


def test_a_rate_goes_with_the_scenario_server_only() -> None:
    with pytest.raises(InvalidRequest, match="closed:4 has no rate"):
        scenario_of("closed:4", rate=10)


@pytest.mark.parametrize("line", ["soon", "[1]", '{"at": 3}'])
def test_a_wrong_line_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "arrivals"
    file.write_text(f"1\n{line}\n")
    with pytest.raises(InvalidRequest, match=f"{file}:2: "):
        scenario_of(f"replay:{file}")
    file.write_text("\n")
    with pytest.raises(InvalidRequest, match="has no arrivals"):
        scenario_of(f"replay:{file}")


@pytest.mark.parametrize(
    ("text", "percentile", "latency_ms"),
    [
        ("p99=100ms", 99, 100),
        ("p95 = 2s", 95, 2000),
        ("p99.9=1.5s", 99.9, 1500),
        ("p999=10ms", 99.9, 10),
        ("p50=0.5ms", 50, 0.5),
    ],
)
def test_an_objective_is_a_percentile_and_a_time(
    text: str, percentile: float, latency_ms: float
) -> None:
    found = objective_of(text)
    assert found == Objective(percentile=percentile, latency_ms=latency_ms)


@pytest.mark.parametrize(
    "text",
    ["", "p99", "p99=", "p99=100", "99=100ms", "p0=1ms", "p100.5=1s", "p99=-1ms", "p99=infs",
     "p99=nanms", "pnan=1s", "p99=100min", "max=3s"],
)  # fmt: skip
def test_a_wrong_objective_says_how_it_is_written(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        objective_of(text)
    assert caught.value.hint == "write it as p99=100ms or p95=2s"


def test_a_confidence_is_between_0_and_1() -> None:
    assert objective_of("p99=1s", confidence=0.9).confidence == 0.9
    with pytest.raises(InvalidRequest, match="between 0 and 1"):
        objective_of("p99=1s", confidence=99)
