"""The benchmark of consoles still runs; what it measures is asserted nowhere."""

from __future__ import annotations

import os

from benchmarks.operation.console import fill, measure_consoles, measure_page, names_of, pages
from headrace.observability import series
from headrace.redis import keys
from tests.harness.servers.api_server import api_server, catalog
from tests.harness.servers.redis_servers import redis_server


def test_pages_are_read_and_polled() -> None:
    names, own = names_of(2), (os.getpid(), os.getpid())
    with redis_server() as server, server.client() as client:
        some = fill(server, jobs=40, failed=8, models=2)
        assert client.zcard(keys.failures(names[0])) == 8
        assert client.strlen(keys.series(names[1])) == series.SIZE
        with api_server(server.url, catalog(**{name: {} for name in names})) as api:
            for path in pages(some).values():
                assert measure_page(api.http, path, own, reads=2).size_bytes > 2
            took, shares = measure_consoles(api.url, *own, 3, seconds=0.1)
    assert len(took) <= 6
    assert len(shares) == 2
