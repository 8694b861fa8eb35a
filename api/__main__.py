"""`python -m api`: one API process, configured by the environment."""

from __future__ import annotations

import gc
import sys


def main() -> int:
    """Serve until SIGTERM or SIGINT; the exit status."""
    # What is imported stays: to look through it for garbage is in vain. `api.process` lets the
    # collector look again once all is loaded.
    gc.disable()
    from api.process import main as serve

    return serve()


if __name__ == "__main__":
    sys.exit(main())
