"""The exit codes of the command; docs/cli.md documents them."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from headrace import errors


class ExitCode(IntEnum):
    """How a command ended. If several codes apply, the highest one is used."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    UNKNOWN_ID = 4
    TIMED_OUT = 5
    INTERRUPTED = 130
    TERMINATED = 143


_BY_CLASS: Final[tuple[tuple[type[errors.HeadraceError], ExitCode], ...]] = (
    (errors.ConfigError, ExitCode.USAGE),
    (errors.JobNotFound, ExitCode.UNKNOWN_ID),
    (errors.LetterNotFound, ExitCode.UNKNOWN_ID),
    (errors.RunNotFound, ExitCode.UNKNOWN_ID),
    (errors.RequestError, ExitCode.USAGE),
    (errors.BrokerError, ExitCode.UNREACHABLE),
    (errors.ServerUnreachable, ExitCode.UNREACHABLE),
    (errors.UnexpectedAnswer, ExitCode.UNREACHABLE),
    (errors.WaitTimeout, ExitCode.TIMED_OUT),
)


def exit_code(error: errors.HeadraceError) -> ExitCode:
    """Return the exit code for an error that ended a command."""
    for kind, code in _BY_CLASS:
        if isinstance(error, kind):
            return code
    return ExitCode.FAILED
