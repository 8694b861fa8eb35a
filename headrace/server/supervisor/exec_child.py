"""Start a command that does not outlive its parent: `exec_child.py --signal TERM|KILL -- command`.

Sets PR_SET_PDEATHSIG and becomes the command. This is a separate program because Python code
between fork and exec is unsafe once there are threads. It uses only the standard library, so that
the supervisor can run it with `-I -S` in a few milliseconds.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_NOT_STARTED_STATUS = 127


def main(arguments: list[str] | None = None) -> int:
    """Tie this process to its parent and exec the command. Returns only on failure."""
    parser = argparse.ArgumentParser(
        prog="headrace.server.supervisor.exec_child", description=__doc__
    )
    parser.add_argument("--signal", choices=("TERM", "KILL"), default="KILL")
    parser.add_argument("--parent", type=int, default=0, help="pid of the parent")
    parser.add_argument("--private", action="store_true", help="it makes files for its user alone")
    parser.add_argument("command", nargs="+", help="the command, after --")
    options = parser.parse_args(arguments)
    parent = options.parent or os.getppid()
    death_signal = signal.Signals[f"SIG{options.signal}"]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0) != 0:
        error = os.strerror(ctypes.get_errno())
        print(f"headrace: prctl(PR_SET_PDEATHSIG): {error}", file=sys.stderr)  # noqa: T201
        return _NOT_STARTED_STATUS
    # If the parent died before the prctl, no signal will come.
    if os.getppid() != parent:
        return _NOT_STARTED_STATUS
    if options.private:
        os.umask(0o077)
    try:
        os.execvp(options.command[0], options.command)  # noqa: S606
    except OSError as error:
        message = f"headrace: cannot start {options.command[0]}: {error.strerror}"
        print(message, file=sys.stderr)  # noqa: T201
    return _NOT_STARTED_STATUS


if __name__ == "__main__":
    sys.exit(main())
