"""Prints results and tables on standard output, and everything else on standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

import msgspec
import typer

from headrace import errors
from headrace.cli.shared.exit_codes import ExitCode

if TYPE_CHECKING:
    from headrace.client.models import Job

_WIDE: Final = 10_000
_SHORT_CHARS: Final = 200
_UNITS: Final = (("d", 86_400), ("h", 3600), ("min", 60))


def message(text: str) -> None:
    """Print a line for people on standard error."""
    typer.echo(f"headrace: {text}", err=True)


def error_text(error: errors.HeadraceError) -> str:
    """Return an error's message followed by its hint."""
    hint = error.hint
    if isinstance(error, errors.ServerUnreachable):
        hint = "start it with `headrace up`, or set its address with --url or HEADRACE_URL"
    if isinstance(error, errors.Unauthorized):
        hint = (
            "set HEADRACE_API_KEY; the server's operator creates keys with `headrace keys create`"
        )
    if not hint:
        return error.message
    text = error.message.removesuffix(".")
    separator = " " if text.endswith("?") else ". " if hint[:1].isupper() else "; "
    return f"{text}{separator}{hint.removesuffix('.')}"


def message_unknown(job_id: str) -> None:
    """Print that a job does not exist."""
    message(f"{job_id}: no such job; the id is wrong, or its result_ttl has passed")


def json_line(value: object) -> None:
    """Print a JSON value as one line on standard output."""
    write_bytes(msgspec.json.encode(value, enc_hook=str) + b"\n")


def line(text: str) -> None:
    """Print a line on standard output."""
    write_bytes(text.encode("utf-8", "backslashreplace") + b"\n")


def write_bytes(data: bytes) -> None:
    """Write bytes to standard output and flush them."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table on standard output. Cells are never cut or wrapped, so that ids can be copied.

    Args:
        columns: the headers; a header that begins with `>` is right-aligned.
        rows: the cells as text.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        to_right = column.startswith(">")
        drawn.add_column(column.lstrip(">"), justify="right" if to_right else "left", no_wrap=True)
    for row in rows:
        drawn.add_row(*map(Text, row))
    buffer = StringIO()
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    console = Console(
        file=buffer, width=_WIDE, force_terminal=colour, color_system="standard" if colour else None
    )
    console.print(drawn)
    for text in buffer.getvalue().splitlines():
        line(text.rstrip())


def pairs(facts: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one pair per line."""
    rows = list(facts)
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        line(f"{name:<{width}}  {value}")


def failure_line(job: Job) -> str:
    """Return on one line how a job failed."""
    if job.error is None:
        return job.status
    return " ".join(f"{job.status}: {job.error.message} ({job.error.type})".split())


def printable(text: str) -> str:
    """Return untrusted text with its control characters escaped; line breaks and tabs stay."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()
        for char in text
    )


def short_line(text: str) -> str:
    """Return untrusted text on one line of at most _SHORT_CHARS characters."""
    line_ = printable(" ".join(text.split()))
    return line_ if len(line_) <= _SHORT_CHARS else line_[:_SHORT_CHARS] + "…"


def binary(data: bytes, name: str) -> None:
    """Write bytes to standard output, unless it is a terminal.

    Raises:
        typer.Exit: standard output is a terminal.
    """
    if sys.stdout.isatty():
        message(f"{name} is binary ({count(len(data), 'byte')}); redirect it to a file: > FILE")
        raise typer.Exit(ExitCode.USAGE)
    write_bytes(data)


def result_line(result: object, value: object) -> str:
    """Return a result on one line: JSON, or type and size of a binary result."""
    if isinstance(value, bytes):
        kind = result.get("content_type") if isinstance(result, dict) else None
        return f"{kind or 'application/octet-stream'}, {len(value):,} bytes"
    return as_json(value)


def duration(seconds: float) -> str:
    """Return a duration in one unit: `3 min`."""
    for unit, length in _UNITS:
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def ago(moment: datetime) -> str:
    """Return how long ago a moment was: `3 min ago`."""
    return f"{duration((datetime.now(UTC) - moment).total_seconds())} ago"


def count(number: int, noun: str) -> str:
    """Return a count with its noun: `1 job`, `2,000 jobs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def milliseconds(value: float | None) -> str:
    """Return a duration in milliseconds as text: `12.3 ms` or `4.5 s`."""
    if value is None:
        return ""
    return f"{value:.1f} ms" if value < 1000 else f"{value / 1000:.1f} s"


def as_json(value: Any) -> str:
    """Return a JSON value on one line."""
    return msgspec.json.encode(value, enc_hook=str).decode()
