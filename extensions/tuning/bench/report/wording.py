"""Figures and words of measurements that all reports share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from extensions.tuning.bench.measurement import Load, Measurement, Objective, Spread
from extensions.tuning.machine import busy_warning
from headrace.text import NOTHING, number

#: The percentiles that a `Spread` has.
_PERCENTILES: Final = {50.0: "p50", 90.0: "p90", 95.0: "p95", 99.0: "p99", 99.9: "p999"}
#: What a reader must know of a measurement that was ended early.
INTERRUPTED: Final = "The measurement was interrupted: it has the loads that had ended."
#: The columns of the table of loads, after the name of the measurement.
COLUMNS: Final = (
    "load", "results/s", "95 % interval", "p50 ms", "p95 ms", "p99 ms", "max ms", "batch",
    "failed", "objective",
)  # fmt: skip


def percentile_of(objectives: Sequence[Objective | None]) -> float:
    """Return the percentile that the reports are about: that of the first objective, else 99."""
    for objective in objectives:
        if objective is not None and objective.percentile in _PERCENTILES:
            return objective.percentile
    return 99.0


def percentile_ms(spread: Spread, percentile: float) -> float:
    """Return one of the percentiles of a `Spread`."""
    value: float = getattr(spread, _PERCENTILES[percentile])
    return value


def load_name(load: Load) -> str:
    """Return what a load is called in tables: its scenario, and its rate or concurrency."""
    if load.scenario == "closed":
        return f"closed:{load.concurrency}"
    if load.offered_rate is not None:
        return f"{load.scenario} {number(load.offered_rate)}/s"
    return load.scenario


def load_label(load: Load) -> str:
    """Return a short name of a load, for a point of a chart."""
    if load.offered_rate is not None:
        return f"{number(load.offered_rate)}/s"
    return str(load.concurrency) if load.scenario == "closed" else load.scenario


def mean_batch(load: Load) -> float | None:
    """Return the mean size of the batches that ran; None if no job reported its batch."""
    # `batch_sizes` counts requests, and each batch of n has n of them.
    batches = sum(count / size for size, count in load.batch_sizes.items() if size > 0)
    return sum(load.batch_sizes.values()) / batches if batches else None


def objective_text(load: Load) -> str:
    """Return whether a load met its objective, in a word or two."""
    if load.refused:
        return "does not count"
    if load.verdict is None:
        return NOTHING
    return load.verdict.word


def row(load: Load) -> list[str]:
    """Return the cells of `COLUMNS`."""
    latency = load.latency if load.succeeded else None
    times = [
        number(getattr(latency, name)) if latency else NOTHING
        for name in ("p50", "p95", "p99", "max")
    ]
    return [
        load_name(load),
        number(load.rate),
        f"{number(load.rate_low)} to {number(load.rate_high)}",
        *times,
        number(mean_batch(load)),
        f"{load.requests - load.succeeded:,}",
        objective_text(load),
    ]


def notes(load: Load) -> list[str]:
    """Return what a reader must know of a load, in sentences."""
    name = load_name(load)
    found = []
    if load.refused:
        found.append(f"{name}: the figures do not count: {load.refused}")
    if load.cut:
        found.append(f"{name}: it was stopped early, as it could no longer meet the objective.")
    elif not load.steady:
        found.append(f"{name}: no steady part was found.")
    if load.errors:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(load.errors.items()))
        found.append(f"{name}: failed requests: {kinds}")
    return found


def why_again(load: Load, earlier: Sequence[Load]) -> str:
    """Return why a search sends the rate of an earlier load again; "" if it does not."""
    before = next((one for one in reversed(earlier) if one.offered_rate == load.offered_rate), None)
    if before is None or before.verdict is None:
        return ""
    if before.refused:
        return f", again as the load before does not count ({before.refused})"
    if before.verdict.met and not before.steady:
        return ", again for longer as the latency was not steady"
    if not before.cut and not before.verdict.refuted and not before.verdict.met:
        return ", again for longer as there were too few requests"
    return ", again as a disturbance may have been the cause"


def busy_warnings(measurements: Sequence[Measurement]) -> list[str]:
    """Return the warnings about busy machines, each once."""
    return list(
        dict.fromkeys(filter(None, (busy_warning(one.environment) for one in measurements)))
    )


def all_notes(measurement: Measurement) -> list[str]:
    """Return the notes of all loads; of a search none, as of its verdicts."""
    found = [INTERRUPTED] if measurement.interrupted else []
    if measurement.peak is not None:
        return found
    return [*found, *(text for load in measurement.loads for text in notes(load))]


def verdicts(measurement: Measurement) -> list[tuple[str, str]]:
    """Return for each load that counts the verdict in a word or two, and its text.

    Of a search only the end is of interest, so it has none.
    """
    if measurement.peak is not None:
        return []
    return [
        (load.verdict.word, f"{load_name(load)}: {load.verdict.text}")
        for load in measurement.loads
        if load.verdict is not None and not load.refused
    ]


def objective_name(objective: Objective) -> str:
    """Return an objective as a user writes it, such as p99=100ms."""
    return f"p{objective.percentile:g}={number(objective.latency_ms)}ms"


def peak_text(measurement: Measurement) -> str:
    """Return the peak with its interval; "" if none was looked for."""
    peak = measurement.peak
    if peak is None:
        return ""
    above = (
        "every rate met the objective" if peak.high is None else f"{number(peak.high)}/s missed it"
    )
    text = (
        f"{number(peak.rate)} requests a second ({number(peak.low)}/s met the objective, {above})"
    )
    if peak.generator_limited:
        text += "; the generator was too slow for more, and the server may be able to do more"
    return text


def cost_text(measurement: Measurement) -> str:
    """Return the cost of a thousand results; "" without a price."""
    if measurement.cost_per_1000 is None:
        return ""
    unit = f" {measurement.currency}" if measurement.currency else ""
    price = measurement.price_per_hour
    hour = f", at {number(price)}{unit} an hour" if price is not None else ""
    return f"{number(measurement.cost_per_1000)}{unit} for 1,000 results{hour}"


def about(measurement: Measurement) -> list[tuple[str, str]]:
    """Return what was measured, and the results of the whole run."""
    version = f" {measurement.version}" if measurement.version else ""
    found = [
        ("model", f"{measurement.model}{version}"),
        ("server", f"{measurement.url} ({measurement.protocol})"),
        ("input", measurement.input),
        ("started", measurement.started_at),
        ("objective", objective_name(measurement.objective) if measurement.objective else ""),
        ("peak", peak_text(measurement)),
        ("cost", cost_text(measurement)),
    ]
    return [(name, text) for name, text in found if text]


def values(fields: dict[str, Any]) -> list[tuple[str, str]]:
    """Return options or an environment as names and texts; what is empty is left out."""
    texts = (
        (str(name).replace("_", " "), value if isinstance(value, str) else _json(value))
        for name, value in fields.items()
    )
    return [(name, text) for name, text in texts if text]


def _json(value: Any) -> str:
    if isinstance(value, float):
        return number(value)
    if isinstance(value, list) and all(isinstance(one, str | int | float) for one in value):
        return ", ".join(map(str, value))
    if isinstance(value, dict) and all(isinstance(one, str | int) for one in value.values()):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError):
        return str(value)
