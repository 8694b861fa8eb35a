"""The benchmark of the scripts still runs; what it measures is asserted nowhere."""

from __future__ import annotations

from benchmarks.redis.scripts import QUEUE, Bench, per_batch_size, per_depth
from headrace.config.model.catalog import ModelConfig
from tests.harness.servers.redis_servers import redis_server


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
        assert client.llen(QUEUE) == 1000
    assert [row[0] for row in sizes.rows] == ["1", "8", "32", "128"]
    assert [row[0] for row in lengths.rows] == ["100", "1,000"]
