"""The benchmark beside TorchServe still runs; what it measures is asserted nowhere."""

from __future__ import annotations

import pytest

from benchmarks.torchserve import real_torchserve


@pytest.mark.usefixtures("_real")
def test_both_servers_and_the_own_route_are_measured_in_turn() -> None:
    with real_torchserve.both((8,)) as servers:
        table = real_torchserve.measure(servers, (8,), 0.5, 2)
    names = [row[0] for row in table.rows]
    assert names[0] == "batch 8: requests a second"
    assert len(names) == 5
    assert all(cell for row in table.rows for cell in row)
