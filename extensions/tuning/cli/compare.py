"""`headrace bench compare`: what differs between two measurements, with intervals."""

from __future__ import annotations

from pathlib import Path

import typer

from extensions.tuning.cli.arguments import write_file
from headrace.cli.shared import options, output
from headrace.cli.shared.options import argument, flag, option


def compare(
    before: Path = argument("A", "Measurement (a file of --json).", ...),
    after: Path = argument("B", "Measurement that is compared with A.", ...),
    markdown: bool = flag("--markdown", "Print Markdown."),
    html: Path | None = option("--html FILE", "Write a page with the charts of both."),
    as_json: options.Json = False,
) -> None:
    """Compare two measurements; a difference is named only where the intervals do not overlap."""
    # Imported here to keep other commands fast.
    from extensions.tuning.bench import report
    from extensions.tuning.bench.measurement import read_measurement

    one, other = read_measurement(before), read_measurement(after)
    found, limits = report.compare(one, other)
    if html is not None:
        write_file(html, report.html([one, other]))
    if as_json:
        differences = [
            {**row._asdict(), "before": row.before._asdict(), "after": row.after._asdict()}
            for row in found
        ]
        output.json_line({"differences": differences, "limits": limits})
    elif markdown:
        typer.echo(report.differences_table(found, limits), nl=False)
    else:
        rows = [(one.load, one.figure, one.before.text, one.after.text, one.text) for one in found]
        output.table(("load", "figure", before.stem, after.stem, "verdict"), rows)
        for limit in limits:
            output.message(limit)
