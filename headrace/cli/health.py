"""`headrace health` without the parser of all commands, for the health checks of containers.

Here are only the arguments that are right. For the help and for mistakes the parser is there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from headrace.cli.shared import output
from headrace.config.secret_files import read_secret_files
from headrace.errors import HeadraceError
from headrace.server.health.probe import run_check

_WORKERS = "--workers"
#: The parser checks larger numbers.
_DIGITS_MAX = 3


def run(arguments: Sequence[str]) -> int | None:
    """Run `health` with these arguments; return the exit code; None: the parser must read them."""
    parts, workers, models = list[str](), None, False
    left = iter(arguments)
    for text in left:
        name, _, value = text.partition("=")
        if text == "--models":
            models = True
        elif name == _WORKERS:
            value = next(left, "") if text == name else value
            if not (value.isascii() and value.isdecimal() and len(value) <= _DIGITS_MAX):
                return None
            workers = int(value)
        elif text and not text.startswith("-"):
            parts.append(text)
        else:
            return None
    if len(parts) != 1:
        return None
    try:
        read_secret_files(os.environ)
        report = run_check(parts[0], workers, os.environ, models=models)
    except HeadraceError as error:
        return output.report(error)
    if sys.stdout is not None:
        # The status is the answer, even if the line has no reader.
        with suppress(OSError):
            os.write(sys.stdout.fileno(), f"{output.printable(report)}\n".encode())
    return 0
