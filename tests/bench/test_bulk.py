"""The benchmarks of the whole stack still run; what they measure is asserted nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from benchmarks import torchserve
from benchmarks.bulk import measure_bulk
from benchmarks.stack import Headrace, bare_fastapi


class Site(NamedTuple):
    """The stack, and the other server with its pid."""

    stack: Headrace
    bare: str
    pid: int


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with (
        bare_fastapi(tmp_path_factory.mktemp("bare")) as (bare, pid),
        Headrace(events=False) as stack,
    ):
        yield Site(stack, bare, pid)


def test_a_round_of_bulk_is_measured(site: Site) -> None:
    found = measure_bulk(site.stack, site.bare, 1000, 1)
    assert found.rate > 0
    assert found.ratio > 0
    assert found.cpu["api"] > 0


def test_another_server_is_measured_in_turn_with_ours(site: Site) -> None:
    found = torchserve.compare(site.stack, site.bare, site.pid, 1, 1)
    table = torchserve.show(found, {name: both[0].load for name, both in found.items()})
    assert set(found) == {"Headrace", "TorchServe"}
    assert all(one.cpu_s > 0 for both in found.values() for one in both)
    assert "CPU s per 1,000" in [row[0] for row in table.rows]
