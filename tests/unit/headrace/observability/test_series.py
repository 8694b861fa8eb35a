"""What is known of a minute and of an hour, and how their records are kept."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.observability import series
from headrace.observability.series import HOUR, MINUTE, UNKNOWN, Bucket, Ring, Sample, State
from headrace.observability.worker_report import HISTOGRAMS, JOB_S

#: The first minute of an hour.
NOON = 29_000_040


def sample(
    minute: int, *, jobs: int = 0, failed: int = 0, depth: int = 0, age_s: float = 0, ready: int = 1
) -> Sample:
    """A model that has run so many jobs, in batches of two, each in 20 ms of 100."""
    took = b" ".join(b"%d" % (jobs if bound >= 0.1 else 0) for bound in HISTOGRAMS[JOB_S])
    counters = [
        b"%d" % jobs, b"%d" % (jobs - failed), b"%d" % failed, b"0 %d %d" % (jobs // 2, jobs),
        b"%b %d %f" % (took, jobs, jobs * 0.1), None, b"0 %f" % (jobs * 0.01), b"nonsense",
    ]  # fmt: skip
    return Sample(minute, series.totals_of(counters), depth, age_s, ready)


def written(samples: Sequence[Sample]) -> tuple[State, list[Bucket], Bucket]:
    """The state, the minutes and the hour after these samples."""
    state, minutes, hour = None, [], UNKNOWN
    for one in samples:
        state, minute, hour = series.advance(state, one)
        state = series.read_state(state.packed())
        assert state is not None
        minutes.append(minute)
    assert state is not None
    return state, minutes, hour


def test_a_minute_is_what_was_counted_since_the_minute_before() -> None:
    _, (first, second), hour = written(
        [sample(NOON, jobs=5000, depth=7, age_s=3), sample(NOON + 1, jobs=5600, failed=6)]
    )
    assert first == Bucket(depth=7, oldest_age_s=3, ready=1)
    assert second == Bucket(600, 594, 6, 0, 0, 1, 2.0, second.p50_s, second.p99_s, 0.1)
    assert 0.05 < (second.p50_s or 0) < (second.p99_s or 0) <= 0.1
    # The most of the hour, in which the second minute alone is known.
    assert hour == second._replace(depth=7, oldest_age_s=3)


def test_what_cannot_be_known_is_unknown_and_never_negative() -> None:
    minutes: list[Bucket]
    _, minutes, hour = written(
        [
            sample(NOON, jobs=100),
            sample(NOON + 1, jobs=110),
            # The counters began anew.
            sample(NOON + 2, jobs=3),
            sample(NOON + 3, jobs=4),
            # Nobody wrote for five minutes.
            sample(NOON + 9, jobs=64),
            sample(NOON + 10, jobs=65),
            # The clock went back by a day.
            sample(NOON - 1440, jobs=70),
            sample(NOON - 1439, jobs=72),
        ]
    )
    assert [one.submitted for one in minutes] == [None, 10, None, 1, None, 1, None, 2]
    assert hour.submitted == 2
    *_, hour = written([sample(NOON + 1, jobs=10), sample(NOON + 7, jobs=70), sample(NOON + 8)])
    assert hour.submitted == 60, "minutes that nobody wrote count in their hour"
    *_, hour = written([sample(NOON - 2, jobs=10), sample(NOON + 1, jobs=70)])
    assert hour.submitted is None, "which of the hours they were in is not known"
    *_, hour = written([sample(NOON - 1, jobs=10), sample(NOON, jobs=30)])
    assert hour.submitted == 20
    *_, idle = written([sample(NOON, ready=0), sample(NOON + 1, ready=0)])
    assert (idle.submitted, idle.batch_size, idle.p50_s, idle.busy) == (0, None, None, None)


def test_records_come_back_and_old_ones_do_not() -> None:
    whole = Bucket(2**40, 2, 3, 4, 86_400.0, 99_999, 7.5, 0.0123, 600.0, 1.0)
    for ring in (MINUTE, HOUR):
        string = bytearray(series.SIZE)

        def put(number: int, bucket: Bucket, ring: Ring = ring, into: bytearray = string) -> None:
            record = series.pack(number, bucket)
            place = series.place(ring, number)
            into[place : place + len(record)] = record

        def read(first: int, end: int, ring: Ring = ring, of: bytearray = string) -> list[Bucket]:
            reads = series.reads("m", ring, first, end)
            replies = [bytes(of[int(at) : int(to) + 1]) for _, _, at, to in reads]
            return series.buckets(replies, first, end)

        # It goes over the end of the ring.
        last = ring.kept * 20_001
        for number in range(last - 10, last + 10):
            put(number, Bucket(depth=number - last + 10, ready=1))
        put(last + 3, whole)
        depths = [one.depth for one in read(last - 10, last + 11)]
        assert depths == [*range(13), 4, *range(14, 20), None]
        (kept,) = read(last + 3, last + 4)
        assert kept._replace(p50_s=0.0123) == whole._replace(submitted=0xFFFF_FFFE, ready=0xFFFF)
        assert read(last - 10 + ring.kept, last + ring.kept) == [UNKNOWN] * 10
        assert read(last - 2 * ring.kept, last) == [
            *[UNKNOWN] * (2 * ring.kept - 10), *(Bucket(depth=n, ready=1) for n in range(10))
        ]  # fmt: skip
        assert read(last, last) == []
    assert series.SIZE < 80_000
