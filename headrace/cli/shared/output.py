"""What a command says: results and tables on standard output, everything else on standard error."""

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


def say(message: str) -> None:
    """A line for people, on standard error."""
    typer.echo(f"headrace: {message}", err=True)


def advice(error: errors.HeadraceError) -> str:
    """An error with what to do about it."""
    hint = error.hint
    if isinstance(error, errors.ServerUnreachable):
        hint = "start it with `headrace up`, or name another address: --url, or HEADRACE_URL"
    if isinstance(error, errors.Unauthorized):
        hint = (
            "set HEADRACE_API_KEY; whoever operates the server makes keys: `headrace keys create`"
        )
    if not hint:
        return error.message
    message = error.message.removesuffix(".")
    between = " " if message.endswith("?") else ". " if hint[:1].isupper() else "; "
    return f"{message}{between}{hint.removesuffix('.')}"


def say_unknown(job_id: str) -> None:
    """That there is no such job."""
    say(f"{job_id}: no such job; it never was, or its result_ttl has passed")


def json_line(value: object) -> None:
    """A JSON value as a line on standard output."""
    write_bytes(msgspec.json.encode(value, enc_hook=str) + b"\n")


def line(text: str) -> None:
    """A line on standard output."""
    write_bytes(text.encode("utf-8", "backslashreplace") + b"\n")


def write_bytes(data: bytes) -> None:
    """Bytes as they are on standard output, there at once for whoever reads them."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on standard output. No cell is cut or wrapped: ids are there to be copied.

    Args:
        columns: the heads; one that begins with `>` is aligned to the right.
        rows: cells as text.
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
    """Names and values, one a line."""
    known = list(facts)
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        line(f"{name:<{width}}  {value}")


def why(job: Job) -> str:
    """How a job ended that did not succeed, on one line."""
    if job.error is None:
        return job.status
    return " ".join(f"{job.status}: {job.error.message} ({job.error.type})".split())


def printable(text: str) -> str:
    """A text of strangers as a terminal can show it: lines stay, control characters are spelt."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()
        for char in text
    )


def short_line(text: str) -> str:
    """A text of strangers on one line, cut where it is long."""
    line_ = printable(" ".join(text.split()))
    return line_ if len(line_) <= _SHORT_CHARS else line_[:_SHORT_CHARS] + "…"


def raw(data: bytes, name: str) -> None:
    """Bytes on standard output as they are.

    Raises:
        typer.Exit: standard output is a terminal.
    """
    if sys.stdout.isatty():
        say(f"{name} is {count(len(data), 'byte')}; write them to a file: > FILE")
        raise typer.Exit(ExitCode.USAGE)
    write_bytes(data)


def short(result: object, value: object) -> str:
    """A result on one line: JSON, or what a binary one is."""
    if isinstance(value, bytes):
        kind = result.get("content_type") if isinstance(result, dict) else None
        return f"{kind or 'application/octet-stream'}, {len(value):,} bytes"
    return as_json(value)


def span(seconds: float) -> str:
    """A time in one unit: `3 min`."""
    for unit, length in _UNITS:
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def ago(moment: datetime) -> str:
    """How long ago a moment was: `3 min ago`."""
    return f"{span((datetime.now(UTC) - moment).total_seconds())} ago"


def count(number: int, noun: str) -> str:
    """So many of them: `1 job`, `2,000 jobs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def milliseconds(value: float | None) -> str:
    """A duration that is given in ms: `12.3 ms` or `4.5 s`."""
    if value is None:
        return ""
    return f"{value:.1f} ms" if value < 1000 else f"{value / 1000:.1f} s"


def as_json(value: Any) -> str:
    """A JSON value on one line."""
    return msgspec.json.encode(value, enc_hook=str).decode()
