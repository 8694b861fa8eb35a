"""The benchmark of scrapes still runs; what it measures is asserted nowhere."""

from __future__ import annotations

from benchmarks.operation.scrape import fill, measure
from tests.harness.servers.redis_servers import redis_server


def test_a_round_is_measured() -> None:
    with redis_server() as server:
        fill(server, models=2, jobs=10)
        cost = measure(server, models=2, scrapes=3)
    assert cost.p50_ms > 0
    assert cost.lines > 300
