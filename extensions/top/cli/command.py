"""`headrace top`."""

from __future__ import annotations

import sys
from typing import Final

import typer

from headrace.cli.shared import options
from headrace.cli.shared.options import flag, option

INTERVAL_S: Final = 2.0


def top(
    interval: float = option(
        "--interval SECONDS",
        f"Time between two updates (default: {INTERVAL_S:g}).",
        INTERVAL_S,
        min=0.5,
        max=3600,
    ),
    once: bool = flag("--once", "Print one view and exit; for pipes and scripts."),
    url: options.Url = None,
) -> None:
    """Show a live view of queues, models, hosts and devices."""
    # Imported here because the help of `headrace` lists this command.
    from extensions.top.cli.screen import live, print_once
    from headrace import Client

    # The next poll is the retry.
    with Client(url, retry_s=0.0) as client:
        if once:
            print_once(client, interval)
        elif sys.stdin.isatty() and sys.stdout.isatty():
            raise typer.Exit(live(client, interval))
        else:
            raise typer.BadParameter(
                "a live view needs a terminal; --once prints one view",
                param_hint="standard output",
            )
