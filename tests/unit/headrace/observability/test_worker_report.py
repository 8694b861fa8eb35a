"""Counters: from what a worker observes to what Prometheus is shown."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from headrace.observability.totals import BOUNDS, Totals, histogram, numbers, read_labelled
from headrace.observability.worker_report import (
    COUNTED,
    HISTOGRAMS,
    LABELLED,
    ModelStats,
    read_report,
)
from tests.harness.clients.totals import ModelTotals

STAGES = (0.001, 0.5, 0.25)


def of_batches(rows: Sequence[bytes | None]) -> Totals:
    field = f"batch_size@{len(HISTOGRAMS['batch_size'])}".encode()
    return Totals([field], [[row] for row in rows])


def drained(stats: ModelStats) -> dict[bytes, bytes]:
    return {name.encode(): by.encode() for name, by in stats.drain()}


def test_totals_are_what_was_drained() -> None:
    stats = ModelStats()
    waits, held, whole = [0.001, 1000.0], [(1, 0.0, 0.4), (1, 0.3, 0.0)], [0.0009, 600.0]
    stats.observe_batch(300, waits, held, whole, STAGES, padding=212, starved_s=0.25)
    stats.observe("job_seconds", [601.0])
    for reason in ("full", "full", "idle"):
        stats.left(reason)
    stats.count("loads")
    stats.count("load_seconds", 2.5)
    fields = {**drained(stats), b"ended:succeeded": b"3", b"ended:retried": b"1"}
    assert stats.drain() == []
    totals = ModelTotals.from_fields(fields)
    assert totals.labelled["ended"] == {"succeeded": 3, "retried": 1}
    assert totals.labelled["left"] == {"full": 2, "idle": 1}
    assert {name: value for name, value in totals.counted.items() if value} == {
        "padding": 212, "starved_seconds": 0.25, "loads": 1, "load_seconds": 2.5,
    }  # fmt: skip
    batch = totals.histograms["batch_size"]
    assert (batch.buckets["1"], batch.buckets["256"], batch.buckets["+Inf"]) == (0, 0, 1)
    assert (batch.sum, batch.count) == (300, 1)
    for name, took_s in {"hold_seconds": 0.3, "device_wait_seconds": 0.4}.items():
        assert (totals.histograms[name].sum, totals.histograms[name].count) == (took_s, 2)
    waited = totals.histograms["queue_seconds"].buckets
    assert (waited["0.001"], waited["600"], waited["+Inf"]) == (1, 1, 2)
    took = totals.histograms["job_seconds"].buckets
    assert (took["0.001"], took["300"], took["600"], took["+Inf"]) == (1, 1, 2, 3)
    for stage, took_s in zip(("preprocess", "inference", "postprocess"), STAGES, strict=True):
        assert totals.histograms[f"{stage}_seconds"].sum == took_s


def test_however_many_batches_there_are_each_counts_once() -> None:
    stats = ModelStats()
    batches = 300
    for _ in range(batches):
        stats.observe_batch(2, [0.1, 0.2], [(2, 0.1, 0.2)], [1.0, 2.0], STAGES)
    totals = ModelTotals.from_fields(drained(stats))
    assert totals.histograms["batch_size"].count == batches
    for name in ("queue_seconds", "hold_seconds", "device_wait_seconds", "job_seconds"):
        assert totals.histograms[name].count == 2 * batches
    assert totals.histograms["inference_seconds"].sum == pytest.approx(0.5 * batches)
    assert drained(stats) == {}


def test_what_another_version_has_counted_is_passed_over() -> None:
    fields = {
        b"batch_size@3": b"1 2 3 4 5",
        b"batch_size@9": b"1 2",
        b"queue_seconds@17": b"\xff",
        b"junk": b"1",
        b"more:junk": b"1",
        b"padding": b"not a number",
    }
    totals = ModelTotals.from_fields(fields)
    assert totals == ModelTotals.from_fields({})


def test_no_counts_are_zeroes() -> None:
    totals = ModelTotals.from_fields({})
    assert totals.histograms.keys() == HISTOGRAMS.keys()
    for name, found in totals.histograms.items():
        assert len(found.buckets) == len(HISTOGRAMS[name]) + 1 == len(BOUNDS[name])
        assert {*found.buckets.values(), found.count, found.sum} == {0}
    assert totals.counted == dict.fromkeys(COUNTED, 0)
    assert totals.labelled == {name: {} for name in LABELLED}


def test_counters_of_no_model_are_read_by_their_name() -> None:
    fields = {b"requests:GET 200 /live": b"3", b"requests_other:x": b"1", b"redis_errors:api": b"2"}
    assert read_labelled(fields, "requests") == {"GET 200 /live": b"3.0"}
    assert read_labelled(fields, "redis_errors") == {"api": b"2.0"}


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"1234567", b"1234567.0"),
        # To the last digit what Redis has, which a float would round.
        (b"0.30000000000000004441", b"0.30000000000000004441"),
        (b"-1.5", b"-1.5"),
        (b"1e3", b"1000.0"),
        (b" 1_0 ", b"10.0"),
        (b"1.2.3", b"0.0"),
        (b".", b"0.0"),
        (b"", b"0.0"),
        ("\u0663".encode(), b"0.0"),
        (b"\xff", b"0.0"),
    ],
)
def test_a_counter_is_shown_as_redis_has_it(raw: bytes, shown: bytes) -> None:
    assert numbers([raw, b"7"]) == [shown, b"7.0"]


def test_the_histograms_of_many_models_follow_each_other() -> None:
    row = b"1 2 3 4 5 6 7 8 9 10 0.5"
    *counts, total = row.split()
    full, none = [*counts, b"10", total], [b"0"] * 12
    assert [*histogram(of_batches([row, None, row]), "batch_size")] == [*full, *none, *full]
    for odd in (
        [b"1 2"], [b"\xff " * 11], [b" "], [b"|"], [b"1 | 3"], [row + b" |"], [row + b" | " + row],
        # As many numbers as there ought to be, though none has its own.
        [row + b" 1", row[:-4]], [row + b" | " + row, b" "], [row[:-4], b"0.5 " + row],
    ):  # fmt: skip
        told = histogram(of_batches([row, *odd, None, row]), "batch_size")
        assert [*told] == [*full, *none * len(odd), *none, *full]
    assert [*histogram(of_batches([]), "batch_size")] == []


def test_fields_that_one_model_has_are_none_of_the_others() -> None:
    totals = Totals([b"padding"], [[b"1"], [None]])
    totals.add(1, {b"padding": b"2", b"left:full": b"3"})
    assert (totals.column("padding"), totals.column("loads")) == ([b"1", b"2"], (None, None))
    assert totals.labelled("left") == {"full": [None, b"3"]}
    assert totals.fields == (b"padding", b"left:full")


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
