"""The benchmark of bulk submits still runs; what it measures is asserted nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from benchmarks.common.systems import Headrace, bare_fastapi
from benchmarks.job_path import bulk_submit


class Site(NamedTuple):
    """The stack, and the URL of the other server."""

    stack: Headrace
    bare: str


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with (
        bare_fastapi(tmp_path_factory.mktemp("bare")) as (bare, _pid),
        Headrace(events=False) as stack,
    ):
        yield Site(stack, bare)


def test_a_round_of_bulk_is_measured(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_submit, "BARE_S", 0.2)
    found = bulk_submit.measure_bulk(site.stack, site.bare, 1000, 1)
    assert found.rate > 0
    assert found.ratio > 0
    # A fast API may use less than the clock's tick.
    assert {"api", "redis", "client"} <= found.cpu.keys()
