"""Ids of jobs, from the command line or from lines of standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from headrace.cli.shared.inputs import STDIN


def given_ids(arguments: Sequence[str]) -> Iterator[str]:
    """Yield job ids; `-` means the first word of each line of standard input."""
    for argument in arguments:
        if argument != STDIN:
            yield argument
            continue
        for line in sys.stdin.buffer:
            words = line.split(maxsplit=1)
            if words:
                yield words[0].decode("utf-8", "backslashreplace")
