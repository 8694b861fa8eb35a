"""The benchmarks behind the tables of numbers still run; what they measure is asserted nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import drains, isolation, kills, policy
from benchmarks.scripts_bench import Bench, per_batch_size, per_depth
from benchmarks.tables import Table, write_tables
from headrace.config.model_catalog import ModelConfig
from tests.harness.servers.redis_servers import redis_server


def test_a_table_takes_its_place_in_a_document_and_nothing_else(tmp_path: Path) -> None:
    doc = tmp_path / "doc.md"
    doc.write_text("before <!-- one:begin -->\nold\n<!-- one:end --> after")
    table = Table("name", "ms")
    table.add("first", "1.0")
    write_tables("one", "in a test.", table, doc=doc)
    text = doc.read_text()
    assert text.startswith("before <!-- one:begin -->\nMeasured ")
    assert text.endswith("| name | ms |\n|---|---|\n| first | 1.0 |\n<!-- one:end --> after")
    assert "old" not in text
    with pytest.raises(ValueError, match="no place"):
        write_tables("two", "", table, doc=doc)
    with pytest.raises(ValueError, match="2 columns"):
        table.add("second")


def test_both_policies_meet_the_same_arrivals() -> None:
    with policy.sites() as running:
        assert min(site.full_rate(2) for site in running.values()) > 0
        found = policy.measure(running, 40, 0.3, 2)
        lone = {name: policy.offer(site, [0.0])[0][0] for name, site in running.items()}
    ours, window = found["policy"], found["fixed window"]
    assert len(ours.ms) == len(window.ms)
    assert ours.rate > 0
    # A lone job waits for the whole window; the policy need not hold it.
    assert lone["fixed window"].ended_us - lone["fixed window"].created_us >= (
        policy.WINDOW_MS * 1000 + policy.FIXED_S * 1_000_000
    )


def test_one_bad_input_is_found_by_halves() -> None:
    with isolation.site() as running:
        (good,), (bad,) = isolation.measure(running, "free", 1)
    assert (good.calls, good.inputs) == (1, 32)
    assert (bad.calls, bad.inputs) == (11, 94)


def test_a_killed_model_process_costs_time_alone() -> None:
    with kills.site() as running:
        first_s, last_s = running.killed(3)
    assert 0 < first_s <= last_s


def test_a_killed_worker_costs_time_alone() -> None:
    assert kills.worker_killed() > 0


def test_a_drain_is_measured_by_process() -> None:
    with drains.site((8,)) as running:
        rate, spent = running.drain(8, 500)
    assert rate > 0
    assert spent["worker"] > 0


def test_the_scripts_are_measured_by_batch_and_by_queue() -> None:
    model = ModelConfig(name="bench", handler="echo", max_queue_depth=1_000_000)
    with (
        redis_server() as server,
        server.client() as client,
        redis_server() as second,
        second.client() as other,
    ):
        bench = Bench(client, model)
        sizes = per_batch_size(bench, 1)
        lengths = per_depth(bench, Bench(other, model), (100, 1000), 1)
        assert client.llen("headrace.bench") == 1000
    assert [row[0] for row in sizes.rows] == ["1", "8", "32", "128"]
    assert [row[0] for row in lengths.rows] == ["100", "1,000"]
