"""Prints results and tables on standard output; messages and questions on standard error.

The parser is imported only for what needs it: `headrace health` works without.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from headrace import errors
from headrace.cli.shared.exit_codes import ExitCode, exit_code
from headrace.text import count
from headrace.text import printable as escaped

if TYPE_CHECKING:
    from headrace.client.models import Job

T = TypeVar("T")

_WIDE: Final = 10_000
_SHORT_CHARS: Final = 200


def message(text: str) -> None:
    """Print a line for people on standard error; its control characters are escaped."""
    if sys.stderr is None:  # it was closed at the start
        return
    sys.stderr.write(f"headrace: {printable(text)}\n")
    sys.stderr.flush()


def report(error: errors.HeadraceError) -> ExitCode:
    """Print an error that ended the command, and return the exit code for it."""
    for text in (error_text(error) or error.code).splitlines():
        message(text)
    return exit_code(error)


def error_text(error: errors.HeadraceError) -> str:
    """Return an error's message followed by its hint."""
    hint = error.hint
    if isinstance(error, errors.ServerUnreachable) and "[SSL" not in error.message:
        hint = "start it with `headrace up`, or set its address with --url or HEADRACE_URL"
    if isinstance(error, errors.Unauthorized):
        hint = (
            "set HEADRACE_API_KEY; the server's operator creates keys with `headrace keys create`"
        )
    return errors.with_hint(error.message, hint.removesuffix("."))


def unknown_job(job_id: str) -> ExitCode:
    """Print that a job does not exist, and return the exit code for it."""
    message(f"{job_id}: no such job; the id is wrong, or its result_ttl has passed")
    return ExitCode.UNKNOWN_ID


def json_text(value: object) -> str:
    """Return a JSON value as one line, without its end; what is not printable is escaped."""
    if isinstance(value, msgspec.Struct):
        # With the members that the API leaves out.
        value = msgspec.structs.asdict(value)
    text = msgspec.json.encode(value, enc_hook=str).decode()
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def json_line(value: object) -> None:
    """Print a JSON value as one line on standard output."""
    line(json_text(value))


def line(text: str, *, styled: bool = False) -> None:
    """Print a line on standard output; a `styled` one has escapes for colours."""
    write_text(f"{text}\n", styled=styled)


def write_text(text: str, *, styled: bool = False) -> None:
    """Write text to standard output; on a terminal its control characters are escaped."""
    if sys.stdout.isatty() and not styled:
        text = printable(text)
    write_bytes(text.encode("utf-8", "backslashreplace"))


def write_bytes(data: bytes) -> None:
    """Write bytes to standard output and flush them."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def coloured() -> bool:
    """Return whether standard output is a terminal and NO_COLOR (no-color.org) is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table on standard output. Cells are never cut or wrapped, so that ids can be copied.

    Control characters and line breaks in cells are escaped.

    Args:
        columns: the headers. One that begins with `>` is right-aligned; a column whose header
            begins with `?` is left out if all its cells are empty.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    rows = list(rows)
    shown = [n for n, head in enumerate(columns) if head[:1] != "?" or any(row[n] for row in rows)]
    for head in (columns[n].removeprefix("?") for n in shown):
        to_right = head.startswith(">")
        drawn.add_column(head.lstrip(">"), justify="right" if to_right else "left", no_wrap=True)
    for row in rows:
        drawn.add_row(*(Text(printable(row[n]).replace("\n", "\\n")) for n in shown))
    buffer = StringIO()
    colour = coloured()
    console = Console(
        file=buffer, width=_WIDE, force_terminal=colour, color_system="standard" if colour else None
    )
    console.print(drawn)
    for text in buffer.getvalue().splitlines():
        line(text.rstrip(), styled=True)


def item(value: object, text: str, *, as_json: bool) -> None:
    """Print a value as a JSON line, or a line of text about it."""
    if as_json:
        json_line(value)
    else:
        line(printable(text))


def listing(
    items: Iterable[T],
    columns: Sequence[str],
    row: Callable[[T], Sequence[str]],
    *,
    as_json: bool,
    fields: Sequence[str] = (),
    empty: str = "",
) -> None:
    """Print a list of objects of the client, as a table or as JSON lines.

    Args:
        fields: only these fields as JSON; all by default.
        empty: the message in place of an empty table; by default the table's header.
    """
    if as_json:
        for item in items:
            json_line({name: getattr(item, name) for name in fields} if fields else item)
        return
    rows = [row(item) for item in items]
    if rows or not empty:
        table(columns, rows)
    else:
        message(empty)


def pairs(facts: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one pair per line."""
    rows = list(facts)
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        line(f"{name:<{width}}  {printable(value)}")


def failure_line(job: Job) -> str:
    """Return on one line how a job failed."""
    if job.error is None:
        return job.status
    return " ".join(f"{job.status}: {job.error.message} ({job.error.type})".split())


def printable(text: str) -> str:
    """Return untrusted text with its control characters escaped; line breaks and tabs stay."""
    return escaped(text, keep="\n\t")


def one_line(text: str) -> str:
    """Return untrusted text on one line with its control characters escaped."""
    return printable(" ".join(text.split()))


def short_line(text: str) -> str:
    """Return untrusted text on one line of at most _SHORT_CHARS characters."""
    text = one_line(text)
    return text if len(text) <= _SHORT_CHARS else text[:_SHORT_CHARS] + "…"


def error_line(error: BaseException) -> str:
    """Return an error as `short_line` does, without a full stop."""
    return short_line(str(error)).rstrip(".") or type(error).__name__


def binary(data: bytes, name: str) -> None:
    """Write bytes to standard output; raise Exit if it is a terminal."""
    if sys.stdout.isatty():
        import typer

        message(f"{name} is binary ({count(len(data), 'byte')}); redirect it to a file: > FILE")
        raise typer.Exit(ExitCode.USAGE)
    write_bytes(data)


def result_line(result: object, value: object) -> str:
    """Return a result on one line: JSON, or type and size of a binary result."""
    if isinstance(value, bytes):
        kind = result.get("content_type") if isinstance(result, dict) else None
        return f"{kind or 'application/octet-stream'}, {len(value):,} bytes"
    return json_text(value)


def confirm(question: Callable[[], str], *, yes: bool) -> None:
    """Return after the user at the terminal confirms; without a terminal return at once.

    Args:
        question: returns the question; an empty one needs no confirmation.

    Raises:
        typer.Exit: the user declined.
    """
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    text = question()
    if not text:
        return
    import typer

    try:
        if typer.confirm(f"headrace: {printable(text)}", err=True):
            return
    except typer.Abort:  # Ctrl-C or end of input
        typer.echo(err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    message("nothing was changed")
    raise typer.Exit(ExitCode.FAILED)
