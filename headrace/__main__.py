"""`headrace`, and `python -m headrace`."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command.

    Its imports take a while. Ctrl-C meanwhile ends the process as it ends any other, without the
    traceback of whichever import it met; from then on each command hears of it in its own way.
    """
    mine = signal.getsignal(signal.SIGINT)
    if mine is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from headrace.cli import main as run

    signal.signal(signal.SIGINT, mine)
    run()


if __name__ == "__main__":
    main()
