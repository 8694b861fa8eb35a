"""`python -m api`: one API process, configured by the environment."""

from __future__ import annotations

import gc
import sys


def main() -> int:
    """Serve until SIGTERM or SIGINT; the exit status."""
    # Imported modules stay in memory, so a search for garbage among them finds nothing.
    # `api.process` lets the collector look again once all is loaded.
    gc.disable()
    from api.process import main as serve

    return serve()


if __name__ == "__main__":
    sys.exit(main())
