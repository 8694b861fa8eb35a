"""TorchServe's metrics of one process, and how Redis adds them up for `/metrics`.

A process keeps what has changed since its last write: an API process for a second, a worker for
50 ms. The hash
`hr:ts:<host> <model>` has one field per series: JSON of name, type, unit, the label of the host and
the other labels. Its value is a number, or the counts at or below each bucket, the total count and
the sum of a histogram.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import accumulate
from typing import Any, Final, NamedTuple

import msgspec

from extensions.torchserve.config.metrics_config import BUCKETS, MetricSpec, MetricType
from extensions.torchserve.logs.lines import Labels
from extensions.torchserve.redis import script
from headrace.redis.scripts import Arg, Command

logger = logging.getLogger(__name__)

#: The most series of one model on one host.
SERIES_MAX: Final = 1000
#: How often values that have not changed are written, so that they do not expire, in seconds.
KEEP_S: Final = 3600.0
#: The metrics of no model.
NO_MODEL: Final = ""

_encode: Final = msgspec.json.encode
_field_of: Final = msgspec.json.Decoder(tuple[str, str, str, str, list[tuple[str, str]]]).decode


class Series(NamedTuple):
    """One series of one host.

    Attributes:
        labels: with the host, in the order in which they are shown.
        values: one number; for a histogram the count at or below each bucket, the total count and
            the sum.
    """

    name: str
    type: MetricType
    unit: str
    labels: Labels
    values: tuple[float, ...]


class Changes:
    """Changes of series, by model and field."""

    def __init__(self) -> None:
        self.counters: defaultdict[tuple[str, bytes], float] = defaultdict(float)
        self.gauges: dict[tuple[str, bytes], float] = {}
        self.histograms: dict[tuple[str, bytes], list[float]] = {}

    def give_back(self, older: Changes) -> None:
        """Add changes that could not be written."""
        for place, by in older.counters.items():
            self.counters[place] += by
        self.gauges = older.gauges | self.gauges
        for place, counts in older.histograms.items():
            known = self.histograms.setdefault(place, [0.0] * len(counts))
            known[:] = [one + more for one, more in zip(known, counts, strict=True)]

    def arguments(self) -> list[Arg]:
        """Return the arguments of metrics.lua."""
        found: list[Arg] = []
        for (model, field), by in self.counters.items():
            found += (model, field, repr(by))
        for (model, field), value in self.gauges.items():
            found += (model, field, f"={value!r}")
        for (model, field), counts in self.histograms.items():
            *buckets, total = counts
            found += (model, field, f"{' '.join(map(repr, accumulate(buckets)))} {total!r}")
        return found


class TorchServeTotals:
    """What one process has counted since its last write. Used by one thread."""

    def __init__(self, host: str, series_max: int = SERIES_MAX) -> None:
        self._host = host
        self._series_max = series_max
        self._known: dict[str, set[bytes]] = {}
        self._full: set[str] = set()
        self._changes = Changes()
        self._kept_at = time.monotonic()

    def add(self, model: str, spec: MetricSpec, labels: Labels, value: float) -> None:
        """Add a value of a metric; labels are without the host."""
        field = _encode((spec.name, spec.type, spec.unit, spec.host, labels))
        known = self._known.setdefault(model, set())
        if field not in known:
            if len(known) >= self._series_max:
                self._refuse(model)
                return
            known.add(field)
        place = (model, field)
        changes = self._changes
        if spec.type is MetricType.COUNTER:
            if value >= 0:
                changes.counters[place] += value
        elif spec.type is MetricType.GAUGE:
            changes.gauges[place] = value
        else:
            counts = changes.histograms.setdefault(place, [0.0] * (len(BUCKETS) + 2))
            counts[bisect_left(BUCKETS, value)] += 1
            counts[-1] += value

    def take(self, served: Collection[str] = ()) -> tuple[Changes, Command | None]:
        """Return what has changed since the last call, and the command that writes it.

        `served` are the models whose metrics are kept although they do not change.
        """
        changes, self._changes = self._changes, Changes()
        arguments, now = changes.arguments(), time.monotonic()
        if now >= self._kept_at + KEEP_S:
            self._kept_at = now
            self._full.intersection_update(served)
            for model in list(self._known):
                if model in served or model == NO_MODEL:
                    arguments += (model, "", "")
                else:
                    del self._known[model]
        if not arguments:
            return changes, None
        call = script("metrics").call([], self._host, self._series_max, *arguments)
        return changes, call

    def give_back(self, changes: Changes) -> None:
        """Keep changes that could not be written for the next time."""
        self._changes.give_back(changes)

    def _refuse(self, model: str) -> None:
        if model not in self._full:
            self._full.add(model)
            logger.warning(
                "more than %d series of metrics: further ones are left out. A handler should not "
                "put ids or other free values into dimensions",
                self._series_max,
                extra={"model": model},
            )


def read_series(member: str, fields: Mapping[bytes, bytes]) -> list[Series]:
    """Return the series of one hash; fields that cannot be read are left out."""
    host, found = member.partition(" ")[0], []
    for field, raw in fields.items():
        try:
            name, kind, unit, label, labels = _field_of(field)
            values = tuple(map(float, raw.split()))
            if values:
                all_labels = (*labels, (label, host))
                found.append(Series(name, MetricType(kind), unit, all_labels, values))
        except (msgspec.MsgspecError, ValueError):
            continue
    return found


def merged(replies: Iterable[tuple[str, Any]]) -> list[Series]:
    """Return the series of all hashes; of one name only those of the type that was found first."""
    first: dict[str, MetricType] = {}
    return [
        one
        for member, fields in replies
        for one in read_series(member, fields if isinstance(fields, dict) else {})
        if first.setdefault(one.name, one.type) is one.type
    ]
