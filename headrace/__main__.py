"""`headrace`, and `python -m headrace`."""

from __future__ import annotations

import gc
import signal


def main() -> None:
    """Run the command.

    Its imports, and putting the commands together, take a while. Ctrl-C meanwhile ends the process
    as it ends any other, without the traceback of whichever import it met. Once it is known which
    command was asked for, `headrace.cli.main.every` lets Ctrl-C be heard.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # What is imported stays: to look through it for garbage is in vain.
    gc.disable()
    from headrace.cli.main import main as run

    gc.freeze()
    gc.enable()
    run()


if __name__ == "__main__":
    main()
