"""`headrace top`: a live view of a server, or one view printed once."""

from __future__ import annotations

import os
import sys
import time

import typer
from rich.console import Console

from headrace import Client
from headrace.cli.shared import output
from headrace.cli.shared.exit_codes import ExitCode
from headrace.cli.shared.interrupts import InterruptHandler, Terminated
from headrace.cli.top import screen
from headrace.cli.top.poller import Poller
from headrace.cli.top.sample import read
from headrace.cli.top.view import view_of


def top(url: str | None, *, interval_s: float, once: bool) -> ExitCode:
    """Show a live view of queues, models, hosts and devices.

    Raises:
        HeadraceError: with `once`, the server does not answer.
        typer.BadParameter: a live view has no terminal.
    """
    # The next poll is the retry.
    with Client(url, retry_s=0.0) as client:
        if once:
            _print_once(client, interval_s)
            return ExitCode.DONE
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise typer.BadParameter(
                "a live view needs a terminal; --once prints one view",
                param_hint="standard output",
            )
        return _live(client, interval_s)


def _print_once(client: Client, interval_s: float) -> None:
    before = client.run(read(client.session))
    time.sleep(interval_s)
    view = view_of(client.run(read(client.session)), before)
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    console = Console(no_color=not coloured)
    for line in screen.once(view, console):
        if coloured:
            line.rstrip()
            console.print(line, no_wrap=True, overflow="crop")
        else:
            output.line(line.plain.rstrip())


def _live(client: Client, interval_s: float) -> ExitCode:
    poller = Poller(client, interval_s)
    with InterruptHandler(None) as stops:
        try:
            screen.run(poller, client.session.url)
        except KeyboardInterrupt:
            return ExitCode.INTERRUPTED
        except Terminated:
            return ExitCode.TERMINATED
        finally:
            stops.ignore()
            poller.stop()
    return ExitCode.DONE
