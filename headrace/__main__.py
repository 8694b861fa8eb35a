"""`headrace`, and `python -m headrace`."""

from __future__ import annotations

import gc
import signal
import sys


def main() -> None:
    """Run the command.

    The imports take a while. Until then Ctrl-C ends the process without a traceback; once the
    command is known, `headrace.cli.main.every` restores Python's handling of Ctrl-C.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Imported modules stay: a garbage collection among them finds nothing.
    gc.disable()
    if sys.argv[1:2] == ["health"]:
        from headrace.cli import health

        if (code := health.run(sys.argv[2:])) is not None:
            sys.exit(code)
    from headrace.cli.main import main as run

    gc.freeze()
    gc.enable()
    run()


if __name__ == "__main__":
    main()
