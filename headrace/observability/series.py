"""The time series of a model: what it did in each minute of a day and each hour of 30 days.

`hr:series:<model>` is one string: a head, then a ring of minutes, then a ring of hours, each record
as long as any other. docs/architecture/time-series.md gives the reasons. Another layout needs
another key: an older background worker may write this one meanwhile.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from headrace.observability.worker_report import (
    ADMITTED,
    BATCH_SIZE,
    ENDED,
    HISTOGRAMS,
    JOB_S,
    STAGES_S,
    field_of,
)
from headrace.redis import keys
from headrace.redis.scripts import Command

MINUTE_S: Final = 60
MINUTES: Final = 60
#: The counters of `hr:stats:<model>` that `totals_of` reads.
FIELDS: Final = (
    ADMITTED, f"{ENDED}:succeeded", f"{ENDED}:failed",
    *map(field_of, (BATCH_SIZE, JOB_S, *STAGES_S)),
)  # fmt: skip
_BOUNDS: Final = HISTOGRAMS[JOB_S]
#: Jobs submitted, succeeded and failed; batches, and their jobs; seconds in the handler's verbs;
#: then how many jobs took at most as long as each bound, and all.
_TOTALS: Final = 6 + len(_BOUNDS) + 1
_NOTHING: Final = (0.0,) * _TOTALS
#: The fields of `State`.
_HEAD: Final = struct.Struct(f"<IIIfd{_TOTALS}d{_TOTALS}d")
#: The number of the minute or hour since 1970, then the fields of `Bucket`.
_RECORD: Final = struct.Struct("<IIIIIfHeeee")
#: An unknown count; an unknown float is not a number.
_UNKNOWN: Final = 0xFFFF_FFFF
_COUNT_MAX: Final = _UNKNOWN - 1
_REPLICAS_MAX: Final = 0xFFFF


class Ring(NamedTuple):
    """The records of one length of time.

    Attributes:
        step_s: how long it is.
        kept: how many there are.
        at: where the first is.
    """

    step_s: int
    kept: int
    at: int


MINUTE: Final = Ring(MINUTE_S, 24 * 60, _HEAD.size)
HOUR: Final = Ring(MINUTE_S * MINUTES, 30 * 24, _HEAD.size + MINUTE.kept * _RECORD.size)
#: How long the string is.
SIZE: Final = HOUR.at + HOUR.kept * _RECORD.size


class Bucket(NamedTuple):
    """What a model did in one minute or hour; None for what is not known.

    Attributes:
        depth: of its queue at the end of the minute; the most of the hour. So is the oldest age, in
            which 0 means that no job waits.
        ready: loaded replicas at the end.
        batch_size: the mean; None without a batch.
        p50_s: from submit to outcome; None if no job ended.
        busy: the share of the replicas' time in the handler's verbs.
    """

    submitted: int | None = None
    succeeded: int | None = None
    failed: int | None = None
    depth: int | None = None
    oldest_age_s: float | None = None
    ready: int | None = None
    batch_size: float | None = None
    p50_s: float | None = None
    p99_s: float | None = None
    busy: float | None = None


UNKNOWN: Final = Bucket()


class Sample(NamedTuple):
    """A model at the end of a minute, whose number counts from 1970."""

    minute: int
    totals: Sequence[float]
    depth: int
    oldest_age_s: float
    ready: int


class State(NamedTuple):
    """What the next sample is compared with, as it is in the head.

    Attributes:
        totals: at the end of `minute`.
        hour_minutes: how many minutes of the hour `hour` has; 0 if none is known.
        hour_depth: the most of the hour; so is `hour_age_s`.
        hour_replica_s: how long replicas were ready.
        hour: what was counted in the hour of `minute`.
    """

    minute: int
    totals: Sequence[float]
    hour_minutes: int = 0
    hour_depth: int = 0
    hour_age_s: float = 0.0
    hour_replica_s: float = 0.0
    hour: Sequence[float] = _NOTHING

    def packed(self) -> bytes:
        """Return the head."""
        return _HEAD.pack(
            self.minute,
            self.hour_minutes,
            min(self.hour_depth, _COUNT_MAX),
            self.hour_age_s,
            self.hour_replica_s,
            *self.totals,
            *self.hour,
        )


def read_state(head: bytes) -> State | None:
    """Read the head; None if nothing was written yet."""
    if len(head) < _HEAD.size:
        return None
    minute, minutes, depth, age_s, replica_s, *numbers = _HEAD.unpack(head[: _HEAD.size])
    totals, hour = numbers[:_TOTALS], numbers[_TOTALS:]
    return State(minute, totals, minutes, depth, age_s, replica_s, hour) if minute else None


def head_of(model: str) -> Command:
    """Return the command that reads the head."""
    return ("GETRANGE", keys.series(model), 0, _HEAD.size - 1)


def totals_of(counters: Sequence[bytes | None]) -> Sequence[float]:
    """Return the counters of `FIELDS` as numbers; those that cannot be read are 0."""
    submitted, succeeded, failed, batches, jobs, *stages = (
        [_float(word) for word in (raw or b"").split()] for raw in counters
    )
    took = jobs[:-1] if len(jobs) == len(_BOUNDS) + 2 else [0.0] * (len(_BOUNDS) + 1)
    return (
        sum(submitted), sum(succeeded), sum(failed), sum(batches[-2:-1]), sum(batches[-1:]),
        sum(sum(stage[-1:]) for stage in stages), *took,
    )  # fmt: skip


def _float(word: bytes) -> float:
    try:
        value = float(word)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0


def advance(before: State | None, now: Sample) -> tuple[State, Bucket, Bucket]:
    """Return the next state, and the buckets of the minute and of its hour so far.

    What was counted is not known without the minute before, and where a counter was reset.
    """
    gap = now.minute - before.minute if before is not None else 0
    state = State(now.minute, now.totals)
    counted: Sequence[float] | None = None
    if before is not None and gap > 0:
        grown = [new - old for new, old in zip(now.totals, before.totals, strict=True)]
        counted = grown if min(grown) >= 0 else None
        if _hour(before.minute) == _hour(now.minute):
            state = before._replace(minute=now.minute, totals=now.totals)
    # What was counted over several minutes still belongs to their hour, if they have the same one.
    if counted is not None and before and _hour(before.minute + 1) == _hour(now.minute):
        state = state._replace(
            hour_minutes=state.hour_minutes + gap,
            hour_replica_s=state.hour_replica_s + gap * MINUTE_S * now.ready,
            hour=[old + new for old, new in zip(state.hour, counted, strict=True)],
        )
    state = state._replace(
        hour_depth=max(state.hour_depth, now.depth),
        hour_age_s=max(state.hour_age_s, now.oldest_age_s),
    )
    minute = _bucket(
        counted if gap == 1 else None, now.depth, now.oldest_age_s, now.ready, MINUTE_S * now.ready
    )
    hour = _bucket(
        state.hour if state.hour_minutes else None,
        state.hour_depth, state.hour_age_s, now.ready, state.hour_replica_s,
    )  # fmt: skip
    return state, minute, hour


def _hour(minute: int) -> int:
    return minute // MINUTES


def _bucket(
    counted: Sequence[float] | None, depth: int, age_s: float, ready: int, replica_s: float
) -> Bucket:
    bucket = Bucket(depth=depth, oldest_age_s=age_s, ready=ready)
    if counted is None:
        return bucket
    submitted, succeeded, failed, batches, jobs, busy_s, *took = counted
    return bucket._replace(
        submitted=round(submitted),
        succeeded=round(succeeded),
        failed=round(failed),
        batch_size=jobs / batches if batches else None,
        p50_s=_quantile(took, 0.5),
        p99_s=_quantile(took, 0.99),
        busy=min(busy_s / replica_s, 1.0) if replica_s else None,
    )


def _quantile(at_most: Sequence[float], share: float) -> float | None:
    """Return a quantile of times by their counts at or below each bound; None without any.

    Inside of a bucket the times count as evenly spread; times above the last bound count as that.
    """
    wanted = share * at_most[-1]
    if wanted <= 0:
        return None
    low, below = 0.0, 0.0
    for bound, count in zip(_BOUNDS, at_most, strict=False):
        if count >= wanted:
            return low + (bound - low) * (wanted - below) / (count - below)
        low, below = bound, count
    return low


def pack(number: int, bucket: Bucket) -> bytes:
    """Return the record of a minute or hour, whose number counts from 1970."""
    counts = (bucket.submitted, bucket.succeeded, bucket.failed, bucket.depth)
    shares = (bucket.batch_size, bucket.p50_s, bucket.p99_s, bucket.busy)
    age_s = bucket.oldest_age_s
    return _RECORD.pack(
        number,
        *(_UNKNOWN if count is None else min(count, _COUNT_MAX) for count in counts),
        math.nan if age_s is None else age_s,
        min(bucket.ready or 0, _REPLICAS_MAX),
        # Of half the precision: three digits, up to 65,504.
        *(math.nan if share is None else min(share, 65_504.0) for share in shares),
    )


def place(ring: Ring, number: int) -> int:
    """Return where the record of a minute or hour is."""
    return ring.at + number % ring.kept * _RECORD.size


def reads(model: str, ring: Ring, first: int, end: int) -> list[Command]:
    """Return the commands that read the records from `first` to before `end`: one or two.

    They read at most all of them.
    """
    first = max(first, end - ring.kept)
    if first >= end:
        return []
    key, start, last = keys.series(model), place(ring, first), place(ring, end - 1)
    if start <= last:
        return [("GETRANGE", key, start, last + _RECORD.size - 1)]
    ring_end = ring.at + ring.kept * _RECORD.size
    return [
        ("GETRANGE", key, start, ring_end - 1),
        ("GETRANGE", key, ring.at, last + _RECORD.size - 1),
    ]


def buckets(replies: Iterable[bytes], first: int, end: int) -> list[Bucket]:
    """Return the buckets from `first` to before `end` by the replies to `reads`."""
    found = [UNKNOWN] * (end - first)
    for reply in replies:
        whole = len(reply) - len(reply) % _RECORD.size
        for number, *fields in _RECORD.iter_unpack(reply[:whole]):
            # A record of another day, or none.
            if first <= number < end and number:
                found[number - first] = _unpacked(fields)
    return found


def _unpacked(fields: Sequence[float]) -> Bucket:
    submitted, succeeded, failed, depth = (
        None if count == _UNKNOWN else int(count) for count in fields[:4]
    )
    age_s, ready, batch_size, p50_s, p99_s, busy = fields[4:]
    return Bucket(
        submitted, succeeded, failed, depth, _known(age_s), int(ready),
        _known(batch_size), _known(p50_s), _known(p99_s), _known(busy),
    )  # fmt: skip


def _known(value: float) -> float | None:
    """Return a number with four digits; None if it is unknown."""
    return float(f"{value:.4g}") if math.isfinite(value) else None
