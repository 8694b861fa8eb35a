"""Measurements as Markdown tables, to paste into an issue or a document."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

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
from extensions.tuning.pages.elements import clean
from headrace.text import number

#: Characters that Markdown or HTML in it reads as something else than text.
_SPECIAL: Final = re.compile(r"([\\`*_\[\]<>|&#~])")


def escaped(text: str) -> str:
    """Return a text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(clean(text).split()))


def markdown(measurements: Sequence[Measurement]) -> str:
    """Return measurements as Markdown: what was measured, a table of the loads, and verdicts."""
    warnings = [f"**{escaped(text)}**\n" for text in busy_warnings(measurements)]
    return "\n".join([*warnings, *map(_measurement, measurements)])


def _measurement(measurement: Measurement) -> str:
    parts = [f"### {escaped(measurement.name)}", ""]
    parts += [f"- {name}: {escaped(text)}" for name, text in about(measurement)]
    parts.append("")
    if measurement.loads:
        parts += _table(COLUMNS, [row(load) for load in measurement.loads])
    else:
        parts.append("No load was run.")
    parts.append("")
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
    header = ("load", "figure", "A", "B", "B/A", "verdict")
    parts = _table(header, rows) if rows else ["The two have no load in common."]
    parts += ["", *(f"- {escaped(limit)}" for limit in limits)]
    return "\n".join(parts).rstrip() + "\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, *([escaped(cell) for cell in one] for one in rows)]
    wide = [max(len(line[n]) for line in lines) for n in range(len(header))]
    made = [
        "| " + " | ".join(c.ljust(wide[n]) for n, c in enumerate(line)) + " |" for line in lines
    ]
    # The first column is text, the others are figures.
    rule = "|" + "|".join("-" * (w + 1) + (":" if n else "-") for n, w in enumerate(wide)) + "|"
    return [made[0], rule, *made[1:]]
