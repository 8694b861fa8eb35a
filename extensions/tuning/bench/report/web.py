"""Measurements as an HTML page in one file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple
from xml.etree.ElementTree import Element

from extensions.tuning.bench.measurement import Load, Measurement, Usage
from extensions.tuning.bench.report.compare import compare
from extensions.tuning.bench.report.wording import (
    COLUMNS,
    about,
    all_notes,
    busy_warnings,
    load_label,
    load_name,
    objective_name,
    objective_text,
    percentile_ms,
    percentile_of,
    row,
    values,
    verdicts,
)
from extensions.tuning.pages.charts import (
    COLOURS,
    Bar,
    Limit,
    Point,
    Series,
    bar_chart,
    column_chart,
    line_chart,
    missing,
)
from extensions.tuning.pages.elements import Child, element
from extensions.tuning.pages.page import facts, figure, page, section, table, warning
from headrace.text import NOTHING, number, shorter

#: How many charts of one kind, and how many bars of one chart, a reader looks at.
_SMALL_MAX: Final = 6
_BARS_MAX: Final = 16
_NAME_MAX: Final = 48


class _Named(NamedTuple):
    """A load, with its name among all loads of the page."""

    name: str
    load: Load


def html(measurements: Sequence[Measurement]) -> str:
    """Return measurements as a page that needs no server: charts, tables, and what they ran on."""
    models = list(dict.fromkeys(measurement.model for measurement in measurements))
    title = f"Benchmark of {', '.join(models)}" if models else "Benchmark"
    loads = [
        _Named(_named(measurement, load, measurements), load)
        for measurement in measurements
        for load in measurement.loads
        if load.succeeded and not load.refused
    ]
    return page(
        title,
        *map(warning, busy_warnings(measurements)),
        *(_verdict(measurement) for measurement in measurements),
        _comparison(measurements),
        _summary(measurements),
        element("p", missing()) if missing() else _charts(measurements, loads),
        _usage(measurements),
        *(_environment(measurement) for measurement in measurements),
    )


def _named(measurement: Measurement, load: Load, all_: Sequence[Measurement]) -> str:
    name = load_name(load)
    return f"{shorter(measurement.name, _NAME_MAX)}: {name}" if len(all_) > 1 else name


def _verdict(measurement: Measurement) -> Element:
    judged = verdicts(measurement)
    kind = "box"
    if judged:
        # Of several rates some may be too high; then the box is neither.
        words = {word for word, _ in judged}
        kind += " met" if words == {"met"} else ("" if "met" in words else " missed")
    lines = [
        element("p", element("span", f"{word} ", class_=_class_of(word)), text)
        for word, text in judged
    ]
    lines += [element("p", text, class_="bad") for text in all_notes(measurement)]
    if not measurement.loads:
        lines.append(element("p", "No load was run."))
    return element(
        "section",
        element("h2", measurement.name),
        facts(about(measurement)),
        element("div", *lines, class_=kind) if lines else None,
    )


def _class_of(word: str) -> str | None:
    return {"met": "good", NOTHING: None}.get(word, "bad")


def _comparison(measurements: Sequence[Measurement]) -> Element | None:
    if len(measurements) != 2:
        return None
    differences, limits = compare(*measurements)
    rows: list[Sequence[Child]] = []
    for difference in differences:
        kind = {True: "good", False: "bad", None: None}[difference.better]
        verdict = element("span", difference.text, class_=kind)
        rows.append([
            difference.load, difference.figure, difference.before.text, difference.after.text,
            number(difference.ratio), verdict,
        ])  # fmt: skip
    header = ("load", "figure", measurements[0].name, measurements[1].name, "ratio", "verdict")
    return section(
        "Comparison",
        element(
            "p", "A difference is named where the 95 % intervals do not overlap.", class_="soft"
        ),
        table(header, rows, texts=(0, 1, 5)) if rows else element("p", "No load is in both."),
        *(element("p", f"{limit[:1].upper()}{limit[1:]}.") for limit in limits),
    )


def _summary(measurements: Sequence[Measurement]) -> Element | None:
    many = len(measurements) > 1
    rows: list[Sequence[Child]] = []
    for measurement in measurements:
        for load in measurement.loads:
            *cells, _ = row(load)
            word = objective_text(load)
            verdict = element("span", word, class_=_class_of(word))
            rows.append([*([measurement.name] if many else []), *cells, verdict])
    if not rows:
        return None
    header = (["run"] if many else []) + list(COLUMNS)
    return section("Loads", table(header, rows, texts=(0, 1) if many else (0,)))


def _charts(measurements: Sequence[Measurement], loads: Sequence[_Named]) -> list[Element | None]:
    figures = [_throughput(measurements), _latencies(measurements, loads), _stages(loads)]
    charts = element("div", *figures, class_="figures")
    return [
        section("Throughput and latency", charts) if len(charts) else None,
        _batches(loads),
        _over_time(loads),
    ]


def _limits(measurements: Sequence[Measurement]) -> list[Limit]:
    objectives = dict.fromkeys(
        measurement.objective for measurement in measurements if measurement.objective is not None
    )
    return [Limit(objective.latency_ms, objective_name(objective)) for objective in objectives]


def _throughput(measurements: Sequence[Measurement]) -> Element | None:
    percentile = percentile_of([measurement.objective for measurement in measurements])
    series = []
    for colour, measurement in enumerate(measurements):
        # A line joins loads of one kind only.
        for kind in dict.fromkeys(load.scenario for load in measurement.loads):
            loads = [load for load in measurement.loads if load.scenario == kind and load.succeeded]
            points = [
                Point(
                    percentile_ms(load.latency, percentile),
                    load.rate, load.rate_low, load.rate_high,
                    load_label(load), hollow=bool(load.refused),
                )
                for load in loads
            ]  # fmt: skip
            # A search sends some rates again, so a line would cross itself.
            lines = [points] if measurement.peak is None else [[point] for point in points]
            series += [Series(measurement.name, line, colour, dots=True) for line in lines]
    series = [line for line in series if line.points]
    if not series:
        return None
    name = f"p{percentile:g}"
    chart = line_chart(
        f"Results a second over {name}", series, f"{name} of the latency, ms", "results a second",
        limits=_limits(measurements),
    )  # fmt: skip
    hollow = any(point.hollow for line in series for point in line.points)
    caption = (
        "A point is a load, with the 95 % interval of its rate; its label is what was offered."
    )
    caption += " The figures of a hollow point do not count." if hollow else ""
    names = {line.colour: line.name for line in series}
    legend = list(names.items()) if len(measurements) > 1 else []
    return figure(f"Throughput over {name}", chart, caption, legend)


def _some(loads: Sequence[_Named], limit: int) -> tuple[list[_Named], str]:
    """Return at most so many loads, evenly chosen, with the first and the last; and a note."""
    if len(loads) <= limit:
        return list(loads), ""
    chosen = [loads[round(n * (len(loads) - 1) / (limit - 1))] for n in range(limit)]
    return chosen, f" {limit} of {len(loads)} loads are shown."


def _latencies(measurements: Sequence[Measurement], loads: Sequence[_Named]) -> Element | None:
    chosen, note = _some([named for named in loads if named.load.latency_cdf], COLOURS)
    if not chosen:
        return None
    series = [
        Series(name, [Point(ms, share * 100) for ms, share in load.latency_cdf], colour)
        for colour, (name, load) in enumerate(chosen)
    ]
    chart = line_chart(
        "Share of requests by latency", series, "latency, ms", "requests, %",
        limits=_limits(measurements), most_y=100.0,
    )  # fmt: skip
    caption = "The share of results within a time; it counts from the time a request was due."
    legend = [(line.colour, line.name) for line in series]
    return figure("Latency", chart, caption + note, legend)


def _stages(loads: Sequence[_Named]) -> Element | None:
    chosen, note = _some([named for named in loads if named.load.stages], _BARS_MAX)
    if not chosen:
        return None
    parts = list(dict.fromkeys(name for _, load in chosen for name in load.stages))
    bars = [
        Bar(name, [(parts.index(part), time.mean) for part, time in load.stages.items()])
        for name, load in chosen
    ]
    chart = bar_chart("Mean time by stage", bars, "mean time of a request, ms")
    legend = list(enumerate(part.replace("_", " ") for part in parts))
    caption = "The mean time of a request, by what it waited for."
    return figure("Stages", chart, caption + note, legend)


def _batches(loads: Sequence[_Named]) -> Element | None:
    with_sizes = [named for named in loads if sum(named.load.batch_sizes.values())]
    chosen, note = _some(with_sizes, _SMALL_MAX)
    if not chosen:
        return None
    figures = []
    for name, load in chosen:
        total = sum(load.batch_sizes.values())
        columns = [(str(n), 100 * count / total) for n, count in sorted(load.batch_sizes.items())]
        chart = column_chart(f"Batch sizes of {name}", columns, "batch size", "requests, %")
        figures.append(figure(name, chart))
    return section(
        "Batch sizes",
        element("p", f"The share of requests that ran in a batch of each size.{note}",
                class_="soft"),
        element("div", *figures, class_="figures"),
    )  # fmt: skip


def _over_time(loads: Sequence[_Named]) -> Element | None:
    chosen, note = _some([named for named in loads if len(named.load.windows) > 1], _SMALL_MAX)
    if not chosen:
        return None
    figures = []
    for name, load in chosen:
        lines = [
            Series("p99", [Point(window.start_s, window.p99_ms) for window in load.windows], 0),
            Series("p50", [Point(window.start_s, window.p50_ms) for window in load.windows], 2),
        ]
        start = next((window.start_s for window in load.windows if window.steady), None)
        limits = [Limit(start, "steady")] if start is not None and load.steady else []
        chart = line_chart(
            f"Latency over time of {name}", lines, "seconds", "latency, ms", limits=limits,
            log_x=False,
        )  # fmt: skip
        figures.append(figure(name, chart, legend=[(line.colour, line.name) for line in lines]))
    return section(
        "Over time",
        element("p", note.strip(), class_="soft") if note else None,
        element("div", *figures, class_="figures"),
    )


def _usage(measurements: Sequence[Measurement]) -> Element | None:
    rows = [
        [
            _named(measurement, load, measurements),
            *(_of_device(use) if part == "device" else _of_processes(part, use, load)),
        ]
        for measurement in measurements
        for load in measurement.loads
        for part, use in load.usage.items()
    ]  # fmt: skip
    if not rows:
        return None
    header = ("load", "part", "CPU s", "cores", "memory MiB", "processes")
    return section("CPU and memory", table(header, rows, texts=(0, 1)))


def _of_processes(part: str, use: Usage, load: Load) -> list[str]:
    cores = number(use.cpu_s / load.duration_s) if load.duration_s > 0 else ""
    return [part, number(use.cpu_s), cores, number(use.memory_mb), str(use.processes)]


def _of_device(use: Usage) -> list[str]:
    return [f"device, {use.busy:.0%} busy", "", "", number(use.memory_mb), ""]


def _environment(measurement: Measurement) -> Element | None:
    options, machine = values(measurement.options), values(measurement.environment)
    if not options and not machine:
        return None
    return section(
        f"Environment of {measurement.name}",
        facts(machine),
        element("h3", "Options of the model") if options else None,
        facts(options) if options else None,
    )
