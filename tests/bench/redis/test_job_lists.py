"""The benchmark of lists still runs; what it measures is asserted nowhere."""

from __future__ import annotations

from benchmarks.redis.job_lists import measure_pages, measure_submit
from tests.harness.servers.api_server import api_server, catalog
from tests.harness.servers.redis_servers import RedisServer


def test_a_round_is_measured(redis_db: RedisServer) -> None:
    without, with_it = measure_submit(8, pairs=4)
    assert without > 0
    assert with_it > 0
    with api_server(redis_db.url, catalog(echo={})) as api:
        found = measure_pages(api.http, pages=2)
    assert all(page.p50_ms > 0 for page in found)
