"""What workers say of their models: counters for /metrics, and states for /ready.

A worker adds what happened since its last sweep to the hash `hr:stats:<model>` with HINCRBYFLOAT,
so that totals never go backwards when a worker ends. Field names: `left:<reason>`, `padding`,
`starved_seconds`, and per histogram `<name>:<upper bound>` (not cumulative) and `<name>:sum`. The
API's processes add theirs: `admitted`, and `rejected:<code>`. How jobs have ended is counted by the
scripts that end them, in the same call: `ended:<status>`, with the status `succeeded`, `failed`,
`expired` or `cancelled`, and `retried` for those that were put off for another try.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from headrace.jobs import US_PER_S
from headrace.model_section import RETRY_BACKOFF_MAX_S, RETRY_BACKOFF_S

BATCH_SIZE_BOUNDS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
#: Fit both 1 ms and 10 min.
SECONDS_BOUNDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0, 600.0,
)  # fmt: skip
HISTOGRAMS: Final = {
    "batch_size": BATCH_SIZE_BOUNDS,
    "queue_seconds": SECONDS_BOUNDS,
    "inference_seconds": SECONDS_BOUNDS,
}
#: Fields that the API's processes add to.
ADMITTED: Final = "admitted"
REJECTED: Final = "rejected"
#: Fields that the workers add to, beside the histograms.
LEFT: Final = "left"
PADDING: Final = "padding"
STARVED: Final = "starved_seconds"


#: Per histogram, the hash's field of each bucket, the last one without a bound, and of the sum.
_FIELDS: Final = {
    name: ([*(f"{name}:{bound:g}" for bound in bounds), f"{name}:+Inf"], f"{name}:sum")
    for name, bounds in HISTOGRAMS.items()
}


@dataclass(slots=True)
class ModelStats:
    """What happened to one model since the last `drain`."""

    _deltas: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def left(self, reason: str) -> None:
        """A batch has run, or was lost; it had left for this reason of `workers.batcher.Reason`."""
        self._deltas[f"{LEFT}:{reason}"] += 1

    def observe_batch(
        self,
        size: int,
        queue_s: Iterable[float],
        inference_s: float,
        padding: int = 0,
        starved_s: float = 0.0,
    ) -> None:
        """A batch ran.

        Args:
            size: jobs in it.
            queue_s: how long each of them had waited.
            inference_s: the handler's time for it.
            padding: inputs that were added to reach an allowed size.
            starved_s: how long the device waited for its `preprocess`.
        """
        if starved_s:
            self._deltas[STARVED] += starved_s
        if padding:
            self._deltas[PADDING] += padding
        self._observe("batch_size", float(size))
        self._observe("inference_seconds", inference_s)
        for seconds in queue_s:
            self._observe("queue_seconds", seconds)

    def _observe(self, name: str, value: float) -> None:
        fields, total = _FIELDS[name]
        self._deltas[fields[bisect_left(HISTOGRAMS[name], value)]] += 1
        self._deltas[total] += value

    def drain(self) -> list[tuple[str, float]]:
        """Take the increments, to be added in Redis."""
        taken = list(self._deltas.items())
        self._deltas.clear()
        return taken


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram as Prometheus has it: how many fell at or below each bound, and their sum."""

    buckets: list[tuple[str, float]]
    sum: float


@dataclass(frozen=True, slots=True)
class ModelTotals:
    """All that the workers of one model and the API's processes have counted.

    Attributes:
        ended: jobs, by status.
        histograms: by name.
        left: batches that left for a model process, by reason.
        padding: inputs that were added to batches to reach an allowed size.
        starved_s: seconds for which devices waited for a batch that was in `preprocess`.
        admitted: jobs that were enqueued over HTTP.
        rejected: submits that were refused, by the code of the problem.
    """

    ended: dict[str, float]
    histograms: dict[str, Histogram]
    left: dict[str, float] = field(default_factory=dict)
    padding: float = 0.0
    starved_s: float = 0.0
    admitted: float = 0.0
    rejected: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_fields(cls, fields: Mapping[bytes, bytes]) -> ModelTotals:
        """Read `hr:stats:<model>`. Bounds that only an older worker knew are kept."""
        by_name: dict[str, dict[str, float]] = {"ended": {}, LEFT: {}, REJECTED: {}}
        plain = {ADMITTED: 0.0, PADDING: 0.0, STARVED: 0.0}
        counts: dict[str, dict[str, float]] = {
            name: {f"{bound:g}": 0.0 for bound in bounds} for name, bounds in HISTOGRAMS.items()
        }
        sums = dict.fromkeys(HISTOGRAMS, 0.0)
        for raw, value in fields.items():
            name, _, part = raw.decode("utf-8", "replace").partition(":")
            if name in by_name:
                by_name[name][part] = float(value)
            elif name in plain:
                plain[name] = float(value)
            elif part == "sum" and name in sums:
                sums[name] = float(value)
            elif name in counts:
                counts[name][part] = float(value)
        histograms = {name: _cumulative(counts[name], sums[name]) for name in HISTOGRAMS}
        return cls(
            by_name["ended"],
            histograms,
            by_name[LEFT],
            plain[PADDING],
            plain[STARVED],
            plain[ADMITTED],
            by_name[REJECTED],
        )


def _cumulative(counts: dict[str, float], total: float) -> Histogram:
    buckets, seen = [], 0.0
    for bound in sorted(counts.keys() | {"+Inf"}, key=float):
        seen += counts.get(bound, 0.0)
        buckets.append((bound, seen))
    return Histogram(buckets, total)


class ModelState(msgspec.Struct, frozen=True):
    """What one worker says of one model.

    Attributes:
        state: ready, draining, warming, loading, restarting, failed or stopped; the best of its
            replicas.
        replicas: model processes that it is to have.
        ready: those that are loaded.
        device: where they run.
        error: the traceback of a failed load, or why lost processes wait; or "".
        node: the worker's Celery node name.
        pids: the model processes.
        backoff_us: base and bound of the wait of a job that is tried again, unless it says.
    """

    state: str
    replicas: int = 0
    ready: int = 0
    device: str = ""
    error: str = ""
    node: str = ""
    pids: list[int] = []
    backoff_us: tuple[int, int] = (
        int(RETRY_BACKOFF_S * US_PER_S),
        int(RETRY_BACKOFF_MAX_S * US_PER_S),
    )


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What one worker says of itself.

    Attributes:
        node: its Celery node name.
        pid: its process.
        models: by name.
    """

    node: str
    pid: int
    models: dict[str, ModelState]


class _Own(msgspec.Struct, frozen=True):
    node: str = ""
    pid: int = 0


def read_report(fields: Mapping[bytes, bytes]) -> WorkerReport:
    """Read `hr:worker:<owner>`. What cannot be read, as from another version, is left out."""
    own, models = _Own(), {}
    for name, value in fields.items():
        try:
            if name:
                models[name.decode()] = msgspec.json.decode(value, type=ModelState)
            else:
                own = msgspec.json.decode(value, type=_Own)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
    return WorkerReport(own.node, own.pid, models)
