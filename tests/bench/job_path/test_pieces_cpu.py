"""The benchmark of the pieces still runs; what it measures is asserted nowhere."""

from __future__ import annotations

import pytest

from benchmarks.job_path.pieces_cpu import PIECES, measure


@pytest.mark.parametrize("piece", PIECES)
def test_a_pair_is_measured(piece: str) -> None:
    ((present, removed),) = measure(piece, 1)
    assert present >= 0
    assert removed >= 0
