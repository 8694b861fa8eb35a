"""Asks for confirmation before an action that cannot be undone."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from headrace.cli.shared import output
from headrace.cli.shared.exit_codes import ExitCode


def confirm(question: Callable[[], str], *, yes: bool) -> None:
    """Return after the user at the terminal confirms; without a terminal return at once.

    Args:
        question: returns the question; an empty one needs no confirmation.
        yes: the user gave `--yes`.

    Raises:
        typer.Exit: the user declined.
    """
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    text = question()
    if not text:
        return
    try:
        if typer.confirm(f"headrace: {text}", err=True):
            return
    except typer.Abort:  # Ctrl-C or end of input
        typer.echo(err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    output.message("nothing was changed")
    raise typer.Exit(ExitCode.FAILED)
