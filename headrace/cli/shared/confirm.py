"""Asking before something cannot be taken back."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from headrace.cli.shared import output
from headrace.cli.shared.exit_codes import ExitCode


def ask(question: Callable[[], str], *, yes: bool) -> None:
    """Go on once a person at a terminal has agreed. Elsewhere nobody is asked.

    Args:
        question: makes it, where somebody is asked; empty where there is nothing to ask about.
        yes: it was agreed to beforehand.

    Raises:
        typer.Exit: it was not agreed to.
    """
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    text = question()
    if not text:
        return
    try:
        if typer.confirm(f"headrace: {text}", err=True):
            return
    except typer.Abort:  # Ctrl-C, or the end of the input
        typer.echo(err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    output.say("nothing was changed")
    raise typer.Exit(ExitCode.FAILED)
