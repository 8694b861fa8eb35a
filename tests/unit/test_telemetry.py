"""Counters: from what a worker observes to what Prometheus is shown."""

from __future__ import annotations

import msgspec

from headrace.telemetry import HISTOGRAMS, ModelStats, ModelTotals, read_report


def added(*drained: list[tuple[str, float]]) -> dict[bytes, bytes]:
    """What Redis holds once each drain was added."""
    fields: dict[str, float] = {}
    for name, by in (pair for pairs in drained for pair in pairs):
        fields[name] = fields.get(name, 0) + by
    return {name.encode(): repr(value).encode() for name, value in fields.items()}


def test_totals_are_the_sum_of_all_drains() -> None:
    one, two = ModelStats(), ModelStats()
    one.observe_batch(1, [0.001], 0.5)
    first = one.drain()
    assert one.drain() == []
    one.observe_batch(300, [1000.0], 0.5, padding=212, starved_s=0.25)
    for reason in ("full", "full", "idle"):
        one.left(reason)
    two.left("idle")
    scripts = [("ended:succeeded", 3.0), ("ended:expired", 1.0)]
    totals = ModelTotals.from_fields(added(first, one.drain(), two.drain(), scripts))
    assert totals.ended == {"succeeded": 3, "expired": 1}
    assert totals.left == {"full": 2, "idle": 2}
    assert totals.padding == 212
    assert totals.starved_s == 0.25
    batch = totals.histograms["batch_size"]
    assert (batch.buckets[0], batch.buckets[-2], batch.buckets[-1]) == (
        ("1", 1),
        ("256", 1),
        ("+Inf", 2),
    )
    assert batch.sum == 301
    waited = dict(totals.histograms["queue_seconds"].buckets)
    assert (waited["0.001"], waited["600"], waited["+Inf"]) == (1, 1, 2)


def test_a_bucket_of_an_older_worker_is_kept_in_its_place() -> None:
    fields = {b"batch_size:3": b"2", b"batch_size:4": b"1", b"batch_size:sum": b"10", b"junk": b"1"}
    buckets = ModelTotals.from_fields(fields).histograms["batch_size"].buckets
    assert buckets[1:4] == [("2", 0), ("3", 2), ("4", 3)]
    assert buckets[-1] == ("+Inf", 3)


def test_no_counts_are_zeroes() -> None:
    totals = ModelTotals.from_fields({})
    assert totals.histograms.keys() == HISTOGRAMS.keys()
    for name, histogram in totals.histograms.items():
        assert len(histogram.buckets) == len(HISTOGRAMS[name]) + 1
        assert {count for _, count in histogram.buckets} == {0}


def test_a_report_of_another_version_is_read_as_far_as_it_goes() -> None:
    encode = msgspec.json.encode
    report = read_report(
        {
            b"": encode({"node": "gpu0@h", "pid": 3, "more": 1}),
            b"good": encode({"state": "ready", "ready": 2, "colour": "blue"}),
            b"bad": b"nonsense",
            b"\xff": b"{}",
        }
    )
    assert (report.node, report.pid) == ("gpu0@h", 3)
    assert report.models.keys() == {"good"}
    assert report.models["good"].ready == 2
