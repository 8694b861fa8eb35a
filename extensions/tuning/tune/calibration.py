"""What the times of a batch decide before any trial: what cannot win, and where to start.

The times come from a `Comparison`, which a model process measures without a server.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from extensions.tuning.optimize.report import BatchTime, Comparison, Variant
from extensions.tuning.tune.space import (
    BATCH_MAX,
    VARIANT,
    Candidate,
    Point,
    Space,
    moved,
    variant_label,
    variant_options,
)

#: Under load a job waits for the batch that runs, and then for its own.
_BATCHES_OF_A_JOB = 2
#: Fewer batch sizes do not show that a variant is slower with all of them.
_SIZES_MIN = 2


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A variant, or the batches above a size, that no trial measures."""

    what: str
    reason: str


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a comparison.

    Attributes:
        variants: those that can win, the fastest within the objective first.
        batch_max: the largest batch that can meet the objective with one of them.
        start: the batch with which the first of them has its highest rate within the objective, of
            the measured sizes and the powers of two between them.
        preprocess_share: the part of the time of that batch that `preprocess` takes.
        measured: all variants with times, for `expected_rate`.
    """

    variants: list[Variant]
    batch_max: int
    start: int
    preprocess_share: float
    left_out: list[LeftOut] = []
    measured: list[Variant] = []


def calibrated(comparison: Comparison, objective_ms: float) -> Calibration:
    """Leave out what cannot meet the objective or cannot win.

    A variant stays under three conditions. It has no `refused`. Its smallest batch is in time. And
    no other one is faster at every size, beyond the intervals, with no more memory. What was not
    measured because the comparison was cut off is not left out, if it is a batch size.
    """
    left_out: list[LeftOut] = []
    possible: list[Variant] = []
    for variant in comparison.variants:
        reason = variant.refused or _too_slow(variant.times, objective_ms)
        if reason:
            left_out.append(LeftOut(what=_name(variant), reason=reason))
        else:
            possible.append(variant)
    kept = []
    for variant in possible:
        winner = next((one for one in possible if _dominates(one, variant)), None)
        if winner is None:
            kept.append(variant)
            continue
        reason = f"{_name(winner)} is faster at every batch size"
        left_out.append(LeftOut(what=_name(variant), reason=reason))
    kept.sort(key=lambda variant: -_rate(_start(variant.times, objective_ms)))
    batch_max = max((_batch_max(variant.times, objective_ms) for variant in kept), default=0)
    larger = [time.size for variant in kept for time in variant.times if time.size > batch_max]
    if larger:
        # Not all sizes were measured: those below the first one that is too large may be in time.
        batch_max = max(batch_max, 1 << (min(larger) - 1).bit_length() - 1)
        reason = "no variant is in time with it, or a smaller batch has a higher rate"
        left_out.append(LeftOut(what=f"batches of {min(larger)} and more", reason=reason))
    else:  # larger batches were not measured, and may be in time
        batch_max = max([batch_max, *(_beyond(variant.times, objective_ms) for variant in kept)])
    first = _start(kept[0].times, objective_ms) if kept else None
    return Calibration(
        variants=kept,
        batch_max=batch_max,
        start=first.size if first else 0,
        preprocess_share=first.preprocess_ms / _total_ms(first) if first else 0.0,
        left_out=left_out,
        measured=[variant for variant in comparison.variants if variant.times],
    )


def start_of(space: Space, calibration: Calibration) -> Point:
    """Return the point where the search begins: the fastest variant with its best batch."""
    point = space.present
    for place, axis in enumerate(space.axes):
        if axis.name == VARIANT and calibration.variants:
            wanted = variant_label(variant_options(calibration.variants[0].optimize))
            labels = [choice.label for choice in axis.choices]
            if wanted in labels:
                point = moved(point, place, labels.index(wanted))
        if axis.name == "max_batch_size" and calibration.start:
            sizes = [choice.options["max_batch_size"] for choice in axis.choices]
            nearest = min(sizes, key=lambda size: (abs(size - calibration.start), size))
            point = moved(point, place, sizes.index(nearest))
    return point


def expected_rate(calibration: Calibration, objective_ms: float, candidate: Candidate) -> float:
    """Return the requests a second of a candidate by the times of its batches; 0 if unknown."""
    label = variant_label(candidate.options.get("optimize"))
    most = candidate.options.get("max_batch_size", BATCH_MAX)
    for variant in calibration.measured:
        if _name(variant) == label:
            times = [time for time in _filled(variant.times) if time.size <= most]
            return 1000 * _rate(_start(times, objective_ms))
    return 0.0


def _beyond(times: Sequence[BatchTime], objective_ms: float) -> int:
    """Return the largest batch that may be in time, by the two largest that were measured."""
    if len(times) < _SIZES_MIN:
        return BATCH_MAX
    one, other = times[-2:]
    per_item = max((_total_ms(other) - _total_ms(one)) / (other.size - one.size), 1e-9)
    items = other.size + (objective_ms - _total_ms(other)) / per_item
    return min(BATCH_MAX, 1 << max(0, int(items).bit_length() - 1)) if items >= 1 else 0


def _name(variant: Variant) -> str:
    return variant_label(variant_options(variant.optimize))


def _total_ms(time: BatchTime) -> float:
    return time.preprocess_ms + time.inference_ms + time.postprocess_ms


def _rate(time: BatchTime | None) -> float:
    return time.size / _total_ms(time) if time and _total_ms(time) > 0 else 0.0


def _too_slow(times: Sequence[BatchTime], objective_ms: float) -> str:
    if not times:
        return "it was not measured"
    # The lower end: a neighbour on the machine makes a batch slower and never faster.
    fastest = min(time.low_ms for time in times)
    if fastest > objective_ms:
        return f"a batch takes {fastest:.0f} ms at least, more than {objective_ms:g} ms"
    return ""


def _dominates(one: Variant, other: Variant) -> bool:
    if one is other or one.memory_mb > other.memory_mb or len(other.times) < _SIZES_MIN:
        return False
    of_one = {time.size: time for time in one.times}
    return all(
        time.size in of_one and of_one[time.size].high_ms < time.low_ms for time in other.times
    )


def _in_time(times: Iterable[BatchTime], limit_ms: float) -> list[BatchTime]:
    return [time for time in times if time.low_ms + _total_ms(time) - time.inference_ms <= limit_ms]


def _start(times: Sequence[BatchTime], objective_ms: float) -> BatchTime | None:
    """Return the batch with the highest rate among those in time, if possible under load."""
    sizes = _filled(times)
    usable = _in_time(sizes, objective_ms / _BATCHES_OF_A_JOB) or _in_time(sizes, objective_ms)
    return max(usable, key=_rate, default=None)


def _filled(times: Sequence[BatchTime]) -> list[BatchTime]:
    """Return the times with those of the powers of two between the sizes, by straight lines."""
    found = list(times)
    for one, other in pairwise(times):
        size = 1 << one.size.bit_length()
        while size < other.size:
            part = (size - one.size) / (other.size - one.size)
            names = [name for name in BatchTime.__struct_fields__ if name != "size"]
            ms = {
                name: getattr(one, name) * (1 - part) + getattr(other, name) * part
                for name in names
            }
            found.append(BatchTime(size=size, **ms))
            size *= 2
    return sorted(found, key=lambda time: time.size)


def _batch_max(times: Sequence[BatchTime], objective_ms: float) -> int:
    """Return the largest batch in time that does not have a lower rate than a smaller one."""
    best, found = 0.0, 0
    for time in sorted(_in_time(times, objective_ms), key=lambda time: time.size):
        rest_ms = _total_ms(time) - time.inference_ms
        if time.size / max(time.low_ms + rest_ms, 1e-9) >= best:
            found = time.size
        best = max(best, time.size / max(time.high_ms + rest_ms, 1e-9))
    return found
