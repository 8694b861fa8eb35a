"""The benchmark of the batching policy still runs; what it measures is asserted nowhere."""

from __future__ import annotations

from benchmarks.batching import policy


def test_both_policies_meet_the_same_arrivals() -> None:
    with policy.sites() as running:
        assert min(site.full_rate(2) for site in running.values()) > 0
        found = policy.measure(running, 40, 0.3, 2)
        lone = {name: policy.offer(site, [0.0])[0][0] for name, site in running.items()}
    ours, window = found["policy"], found["fixed window"]
    assert len(ours.ms) == len(window.ms)
    assert ours.rate > 0
    # A lone job waits for the whole window; the policy need not hold it.
    assert lone["fixed window"].ended_us - lone["fixed window"].created_us >= (
        policy.WINDOW_MS * 1000 + policy.FIXED_S * 1_000_000
    )
