"""The benchmark of the API's answers still runs; what it measures is asserted nowhere."""

from __future__ import annotations

import pytest

from benchmarks.job_path.submit_cpu import PIECES, measure


@pytest.mark.parametrize("piece", PIECES)
def test_a_pair_is_measured(piece: str) -> None:
    # Each of the 64 connections sends one request at least. A request that fails raises an error.
    ((present, removed),) = measure(piece, 0.2, 1)
    # A fast API may use less than the clock's tick.
    assert present >= 0
    assert removed >= 0
