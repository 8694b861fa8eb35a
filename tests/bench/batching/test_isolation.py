"""The benchmark of a bad input: how often the handler is called, and with how many inputs."""

from __future__ import annotations

from benchmarks.batching import isolation


def test_one_bad_input_is_found_by_halves() -> None:
    with isolation.site() as running:
        (good,), (bad,) = isolation.measure(running, "free", 1)
    assert (good.calls, good.inputs) == (1, 32)
    assert (bad.calls, bad.inputs) == (11, 94)
