"""Measurements as Markdown tables, to paste into an issue or a document."""

from __future__ import annotations

from collections.abc import Sequence

from extensions.tuning.bench.measurement import Measurement
from extensions.tuning.bench.report.compare import Difference
from extensions.tuning.bench.report.wording import (
    COLUMNS,
    about,
    all_notes,
    busy_warnings,
    row,
    values,
    verdicts,
)
from extensions.tuning.pages.markdown import escaped, table
from headrace.text import number


def markdown(measurements: Sequence[Measurement]) -> str:
    """Return measurements as Markdown: what was measured, a table of the loads, and verdicts."""
    warnings = [f"**{escaped(text)}**\n" for text in busy_warnings(measurements)]
    return "\n".join([*warnings, *map(_measurement, measurements)])


def _measurement(measurement: Measurement) -> str:
    parts = [f"### {escaped(measurement.name)}", ""]
    parts += [f"- {name}: {escaped(text)}" for name, text in about(measurement)]
    first, *figures = COLUMNS
    columns = [first, *(f">{name}" for name in figures)]
    rows = [row(load) for load in measurement.loads]
    parts += ["", table(columns, rows) if rows else "No load was run.", ""]
    sentences = [text for _, text in verdicts(measurement)]
    sentences += all_notes(measurement)
    parts += [f"- {escaped(text)}" for text in sentences]
    environment = "; ".join(f"{name}: {text}" for name, text in values(measurement.environment))
    if environment:
        parts += ["", f"Environment: {escaped(environment)}"]
    return "\n".join(parts).rstrip() + "\n"


def differences_table(differences: Sequence[Difference], limits: Sequence[str] = ()) -> str:
    """Return a comparison as a Markdown table, and then what limits it."""
    rows = [
        [one.load, one.figure, one.before.text, one.after.text, number(one.ratio), one.text]
        for one in differences
    ]
    columns = ("load", "figure", ">A", ">B", ">B/A", "verdict")
    parts = [table(columns, rows) if rows else "The two have no load in common."]
    parts += ["", *(f"- {escaped(limit)}" for limit in limits)]
    return "\n".join(parts).rstrip() + "\n"
