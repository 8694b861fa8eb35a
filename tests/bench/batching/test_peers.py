"""The benchmark of closed loops still runs; what it measures is asserted nowhere."""

from __future__ import annotations

from benchmarks.batching import peers


def test_headrace_answers_each_number_of_clients() -> None:
    running = peers.servers("", "")
    assert list(running) == ["Headrace", "Headrace, overlap"]
    loads = peers.measure(running["Headrace, overlap"], peers.Device(1.0, 0.5), [1, 3], 0.3)
    assert [load.bad for load in loads.values()] == [0, 0]
    assert peers.median(list(loads.values())).requests > 0
