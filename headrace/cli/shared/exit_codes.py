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


_UNKNOWN_ID: Final = (
    errors.JobNotFound, errors.LetterNotFound, errors.ProfileNotFound, errors.RunNotFound,
    errors.WorkerNotFound,
)  # fmt: skip
_UNREACHABLE: Final = (errors.BrokerError, errors.ServerUnreachable, errors.UnexpectedAnswer)
#: The first match counts.
_BY_CLASS: Final = (
    (_UNKNOWN_ID, ExitCode.UNKNOWN_ID),
    ((errors.ConfigError, errors.RequestError), ExitCode.USAGE),
    (_UNREACHABLE, ExitCode.UNREACHABLE),
    ((errors.WaitTimeout,), ExitCode.TIMED_OUT),
)


def exit_code(error: errors.HeadraceError) -> ExitCode:
    """Return the exit code for an error that ended a command."""
    found = (code for kinds, code in _BY_CLASS if isinstance(error, kinds))
    return next(found, ExitCode.FAILED)
